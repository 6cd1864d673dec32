"""descend: trains neural networks by first-order descent at any batch size, and compares optimizers on equal terms.

    result = descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1, momentum=0.9))

Importing this package imports no torch and does nothing else; a public name is fetched when it is first used. Names of
layers, weights, rules and callbacks are descriptions; `descend.optim` has the optimizers for anybody's own torch loop.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from descend import lazy
from descend.machine import __version__ as __version__
from descend.old_paths import OLD_PATHS

if TYPE_CHECKING:
    from descend import callbacks as callbacks
    from descend import data as data
    from descend import errors as errors
    from descend import experiment as experiment
    from descend import graph as graph
    from descend import launch as launch
    from descend import lbann as lbann
    from descend import lower as lower
    from descend import onnx as onnx
    from descend import optim as optim
    from descend import runtime as runtime
    from descend import study as study
    from descend import train as train
    from descend import zoo as zoo
    from descend.callbacks import *  # noqa: F403
    from descend.data import ArrayReader as ArrayReader
    from descend.data import ClassBalancedSampler as ClassBalancedSampler
    from descend.data import DataReader as DataReader
    from descend.data import Reader as Reader
    from descend.data import Sampler as Sampler
    from descend.data import WeightedSampler as WeightedSampler
    from descend.data import open_readers as open_readers
    from descend.errors import *  # noqa: F403
    from descend.errors import main as main
    from descend.experiment import Experiment as Experiment
    from descend.experiment import launcher as launcher
    from descend.experiment import load as load
    from descend.experiment import save_prototext as save_prototext
    from descend.experiment.best import Best as Best
    from descend.experiment.fit import fit as fit
    from descend.experiment.infer import Inference as Inference
    from descend.experiment.infer import evaluate as evaluate
    from descend.experiment.infer import infer as infer
    from descend.experiment.infer import predict as predict
    from descend.experiment.phases import Phase as Phase
    from descend.experiment.run import run as run
    from descend.experiment.runner import Result as Result
    from descend.experiment.saved_weights import load_weights as load_weights
    from descend.graph import *  # noqa: F403
    from descend.lbann import models as models
    from descend.runtime import distributed as distributed
    from descend.study.comparing import compare as compare
    from descend.study.design import Study as Study
    from descend.study.learning_rate_range import LearningRateRange as LearningRateRange
    from descend.study.learning_rate_range import find_learning_rate as find_learning_rate
    from descend.train import *  # noqa: F403
    from descend.zoo import modules as modules

# Where each public name lives. A room's whole list is public when it is in _WHOLE.
_ROOMS = (
    "callbacks",
    "data",
    "distributed",
    "errors",
    "experiment",
    "graph",
    "launch",
    "launcher",
    "lbann",
    "lower",
    "models",
    "modules",
    "onnx",
    "optim",
    "runtime",
    "study",
    "train",
    "zoo",
)
_WHOLE = ("graph", "callbacks", "errors")
_SINGLE = {
    "ArrayReader": "data",
    "ClassBalancedSampler": "data",
    "DataReader": "data",
    "Reader": "data",
    "Sampler": "data",
    "WeightedSampler": "data",
    "open_readers": "data",
    "Experiment": "experiment",
    "load": "experiment",
    "main": "errors",
    "save_prototext": "experiment",
    "Inference": "experiment.infer",
    "evaluate": "experiment.infer",
    "fit": "experiment.fit",
    "infer": "experiment.infer",
    "predict": "experiment.infer",
    "Best": "experiment.best",
    "Phase": "experiment.phases",
    "load_weights": "experiment.saved_weights",
    "Result": "experiment.runner",
    "run": "experiment.run",
    "Study": "study.design",
    "LearningRateRange": "study.learning_rate_range",
    "find_learning_rate": "study.learning_rate_range",
    "compare": "study.comparing",
    "BatchedInference": "train",
    "BatchedIterativeOptimizer": "train",
    "Callback": "train",
    "Epochs": "train",
    "KFAC": "train",
    "LTFB": "train",
    "LocalSGD": "train.strategies.local_sgd",
    "GradientAccumulation": "train.transforms.accumulation",
    "GradientTransform": "train.transforms.base",
    "Withheld": "train.transforms.base",
    "MajorityVote": "train",
    "ParameterServer": "train",
    "ExchangeStrategy": "train",
    "MutationStrategy": "train",
    "RandomPairwiseExchange": "train",
    "RegularizedEvolution": "train",
    "TruncationSelectionExchange": "train",
    "Mode": "train",
    "Reached": "train",
    "Seconds": "train",
    "SecondsPerRun": "train",
    "Steps": "train",
    "Trainer": "train",
    "TrainingAlgorithm": "train",
}


lazy.provide("plain_module", "descend.experiment.saved_weights", "plain_module")  # for Model.to_torch
lazy.provide("message_classes", "descend.experiment.text", "classes")  # for graph.from_text
lazy.provide("lbann_readers", "descend.lbann.readers", "LBANN_READERS")
lazy.provide("refused_lbann_readers", "descend.lbann.readers", "REFUSED")
lazy.provide("refused_optimizers", "descend.compat.torch_optim", "REFUSED")  # why descend.optim lacks a name of torch's
lazy.provide("write_after_run", "descend.pages.run.write", "write_after_run")  # report.html of a run directory

# Names that annexes have, in the rooms whose users look for them there.
lazy.offer(
    "descend.optim",
    {
        "GluonTrainer": "descend.compat.mxnet.gluon",
        "from_library": "descend.compat",
        "schedule_from_library": "descend.compat",
    },
)
lazy.offer(
    "descend.callbacks",
    {
        "CheckInit": "descend.lbann.callbacks.without_effect",
        "ComputeModelSize": "descend.lbann.callbacks.describe",
        "Debug": "descend.lbann.callbacks.timeline",
        "DebugIO": "descend.lbann.callbacks.timeline",
        "DispIOStats": "descend.lbann.callbacks.describe",
        "DumpErrorSignals": "descend.lbann.callbacks.dump",
        "DumpGradients": "descend.lbann.callbacks.dump",
        "DumpMBIndices": "descend.lbann.callbacks.dump",
        "DumpModelGraph": "descend.lbann.callbacks.describe",
        "DumpOutputs": "descend.lbann.callbacks.dump",
        "DumpWeights": "descend.lbann.callbacks.dump",
        "ExportOnnx": "descend.onnx.callback",
        "GPUMemoryUsage": "descend.lbann.callbacks.timeline",
        "Hang": "descend.lbann.callbacks.without_effect",
        "ImComm": "descend.lbann.callbacks.without_effect",
        "LoadModel": "descend.lbann.callbacks.models",
        "MemoryProfiler": "descend.lbann.callbacks.timeline",
        "PerturbAdam": "descend.lbann.callbacks.perturbation",
        "PerturbDropout": "descend.lbann.callbacks.perturbation",
        "PerturbLearningRate": "descend.lbann.callbacks.perturbation",
        "PerturbWeights": "descend.lbann.callbacks.perturbation",
        "PrintModelDescription": "descend.lbann.callbacks.describe",
        "Profiler": "descend.lbann.callbacks.timeline",
        "SaveModel": "descend.lbann.callbacks.models",
        "SaveTopKModels": "descend.lbann.callbacks.models",
        "SyncLayers": "descend.lbann.callbacks.without_effect",
        "Timeline": "descend.lbann.callbacks.timeline",
        "Timer": "descend.lbann.callbacks.timer",
    },
)
lazy.offer("descend.experiment", {"picture": "descend.pages.graph_svg"})
lazy.moved({f"descend.{old}": f"descend.{new}" for old, new in OLD_PATHS.items()})


def __getattr__(name: str) -> Any:
    """Fetch a public name from its room."""
    # `from descend import arguments` asks here before it looks for a file, and must not import whole rooms.
    if not name.startswith("_") and importlib.util.find_spec(f"descend.{name}"):
        return importlib.import_module(f"descend.{name}")
    rooms = [_SINGLE[name]] if name in _SINGLE else [] if name.startswith("_") else _WHOLE
    for room in rooms:
        module = importlib.import_module(f"descend.{room}")
        if name in _SINGLE or name in module.__all__:
            value = globals()[name] = getattr(module, name)  # looking for a file takes longer than a step of a network
            return value
    raise AttributeError(f"module 'descend' has no attribute '{name}'{_hint(name)}")


# What other libraries call things that a search by letters does not find.
_CALLED_HERE = {
    "load_checkpoint": "load_weights",
    "load_model": "load_weights",
    "load_state_dict": "load_weights",
    "ModelCheckpoint": "Checkpoint",
    "LRFinder": "find_learning_rate",
    "train": "fit",
}


def _hint(name: str) -> str:
    from descend.errors import nearest

    if name.startswith("_"):
        return ""
    if name.lower() in (rules := importlib.import_module("descend.rule_index").rules()):
        ours = f"descend.optim.{rules[name.lower()].name}"
        return f"; it is {ours}, and for fit optimizer=functools.partial({ours}, lr=...)"
    if name in _CALLED_HERE:
        return f"; did you mean '{_CALLED_HERE[name]}'?"
    known, bare = __dir__(), name.removeprefix("Callback")  # as LBANN calls them
    return nearest(bare if bare in known else name, known)


def __dir__() -> list[str]:
    """Every public name."""
    whole = [name for room in _WHOLE for name in importlib.import_module(f"descend.{room}").__all__]
    return sorted({"__version__", *_ROOMS, *_SINGLE, *whole})
