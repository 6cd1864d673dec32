"""An experiment as one value: trainer, model, data and optimizer, with its text form, its checks and its runs.

The names here import no torch; `descend.experiment.run` runs an experiment.
"""

from descend.experiment.check import Checked
from descend.experiment.check import check as check_experiment
from descend.experiment.experiment import Experiment
from descend.experiment.inspect.graph_svg import picture
from descend.experiment.inspect.layer_table import layer_table
from descend.experiment.text import classes, experiment_text, load, save_prototext

__all__ = [
    "Checked",
    "Experiment",
    "check_experiment",
    "classes",
    "experiment_text",
    "layer_table",
    "load",
    "picture",
    "save_prototext",
]
