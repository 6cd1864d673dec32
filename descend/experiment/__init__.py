"""An experiment as one value: trainer, model, data and optimizer, with its text form, its checks and its runs.

The names here import no torch; `descend.experiment.run` runs an experiment.
"""

from typing import TYPE_CHECKING

from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.experiment.check import Checked
    from descend.experiment.check import check as check_experiment
    from descend.experiment.experiment import Experiment
    from descend.experiment.inspect.layer_table import layer_table
    from descend.experiment.text import classes, experiment_text, load, save_prototext

if TYPE_CHECKING:  # an annex offers this; see descend/__init__.py
    from descend.pages.graph_svg import picture


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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "check": ("Checked", "check as check_experiment"),
        "experiment": ("Experiment",),
        "inspect.layer_table": ("layer_table",),
        "text": ("classes", "experiment_text", "load", "save_prototext"),
    },
)
