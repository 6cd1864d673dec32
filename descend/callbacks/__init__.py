"""What watches or saves a run, one file each. Names are LBANN's without the word Callback."""

from descend.callbacks.checkpoint import Checkpoint
from descend.callbacks.print import Print
from descend.callbacks.progress_bar import ProgressBar
from descend.callbacks.timer import Timer

__all__ = ["Checkpoint", "Print", "ProgressBar", "Timer"]
