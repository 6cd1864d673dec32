"""descend: trains neural networks by first-order descent at any batch size, and says who deserves the credit.

    result = descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1, momentum=0.9))

Importing this package imports no torch and does nothing else; a public name is fetched when it is first used. Names of
layers, weights, rules and callbacks are descriptions; `descend.optim` has the optimizers for anybody's own torch loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from descend.version import __version__

if TYPE_CHECKING:
    from descend import callbacks, data, errors, experiment, graph, launch, lower, optim, runtime, train, zoo
    from descend.callbacks import *  # noqa: F403
    from descend.data import ArrayReader, DataReader, Reader, open_readers
    from descend.errors import *  # noqa: F403
    from descend.experiment import Experiment, load, main, save_prototext
    from descend.experiment.fit import fit
    from descend.experiment.run import Result, run
    from descend.graph import *  # noqa: F403
    from descend.train import *  # noqa: F403

# Where each public name lives. A room's whole list is public when it stands in _WHOLE.
_ROOMS = (
    "callbacks",
    "data",
    "errors",
    "experiment",
    "graph",
    "launch",
    "lower",
    "optim",
    "runtime",
    "train",
    "zoo",
)
_WHOLE = ("graph", "callbacks", "errors")
_SINGLE = {
    "ArrayReader": "data",
    "DataReader": "data",
    "Reader": "data",
    "open_readers": "data",
    "Experiment": "experiment",
    "load": "experiment",
    "main": "experiment",
    "save_prototext": "experiment",
    "fit": "experiment.fit",
    "Result": "experiment.conduct",
    "run": "experiment.run",
    "BatchedIterativeOptimizer": "train",
    "Callback": "train",
    "Epochs": "train",
    "Mode": "train",
    "Reached": "train",
    "Seconds": "train",
    "SecondsPerRun": "train",
    "Steps": "train",
    "Trainer": "train",
    "TrainingAlgorithm": "train",
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its room."""
    if name in _ROOMS:
        return importlib.import_module(f"descend.{name}")
    if name in _SINGLE:
        return getattr(importlib.import_module(f"descend.{_SINGLE[name]}"), name)
    if not name.startswith("_"):
        for room in _WHOLE:
            module = importlib.import_module(f"descend.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'descend' has no attribute '{name}'{_hint(name)}")


def _hint(name: str) -> str:
    from descend.errors import nearest

    return "" if name.startswith("_") else nearest(name, __dir__())


def __dir__() -> list[str]:
    """Every public name."""
    whole = [name for room in _WHOLE for name in importlib.import_module(f"descend.{room}").__all__]
    return sorted({"__version__", *_ROOMS, *_SINGLE, *whole})
