"""Callbacks of LBANN's format that do nothing here: its spellings, so that its files can be read unchanged.

Each is accepted and prints once that it has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.graph.fields import described_openly
from descend.train import Callback

if TYPE_CHECKING:
    from descend.train import RunView

__all__ = ["CheckInit", "Hang", "ImComm", "SyncLayers"]


class _WithoutEffect(Callback):
    """Base of callbacks without effect; `reason` ends the line that is printed about it."""

    reads_weights = False
    reason: ClassVar[str]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        say(f"{type(self).__name__} has no effect here: {self.reason}")


@described_openly
class SyncLayers(_WithoutEffect):
    """Waited for the device after each layer. Has no effect.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackSyncLayers"
    reason: ClassVar[str] = "for true times of layers use torch.profiler together with the callback Profiler"

    sync_gpus: bool = False
    sync_mpi: bool = False
    only_input: bool = False


@described_openly
class Hang(_WithoutEffect):
    """Waited for a debugger. Has no effect.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackHang"
    reason: ClassVar[str] = "start the run under a debugger instead: python -m pdb -m descend run FILE"

    rank: int = 0


@described_openly
class CheckInit(_WithoutEffect):
    """Compares the first weights of several trainers. With one trainer there is nothing to compare.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackCheckInit"
    reason: ClassVar[str] = "there is one trainer, and nothing to compare its weights with"


@described_openly
class ImComm(_WithoutEffect):
    """LBANN's CallbackImComm, which sums gradients over models. Has no effect.

    LBANN's format has the message and no callback that holds it, so no text can ask for it.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackImComm"
    reason: ClassVar[str] = "trainers exchange models by the training algorithm LTFB, and never gradients"

    intertrainer_comm_method: str = ""
    all_optimizers: bool = False
