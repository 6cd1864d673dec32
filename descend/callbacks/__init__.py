"""Callbacks that observe, save or change a run; names are LBANN's without the word Callback. See `docs/callbacks.md`.

Describing a callback or reading it from a text does not import torch.
"""

from typing import TYPE_CHECKING

from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.callbacks.batch_size import MinibatchRamp, MinibatchSchedule, MinibatchScheduleStep, StepMinibatch
    from descend.callbacks.check_gradients import CheckGradients
    from descend.callbacks.check_metric import CheckMetric
    from descend.callbacks.check_values import CheckDataset, CheckNaN, CheckSmall
    from descend.callbacks.checkpoint import Checkpoint
    from descend.callbacks.confusion_matrix import ConfusionMatrix
    from descend.callbacks.curvature import Sharpness
    from descend.callbacks.early_stopping import EarlyStopping
    from descend.callbacks.evaluate_progress import EvaluateProgress
    from descend.callbacks.images import SaveImages
    from descend.callbacks.interventions import (
        AlternateUpdates,
        ClipGradientNorm,
        Mixup,
        ReplaceWeights,
        SetWeightsValue,
    )
    from descend.callbacks.learning_rate import (
        AdaptiveLearningRate,
        CosineDecayLearningRate,
        CustomLearningRate,
        DropFixedLearningRate,
        LinearGrowthLearningRate,
        OptimizerwiseAdaptiveLearningRate,
        PolyLearningRate,
        SetLearningRate,
        StepLearningRate,
    )
    from descend.callbacks.local_tournament import LocalTournament
    from descend.callbacks.loggers import CSVLogger, Logger, MLflowLogger, TensorBoardLogger, WandbLogger
    from descend.callbacks.norms import GradientNoiseScale, GradientNorm, UpdateNorm, WeightNorm
    from descend.callbacks.print import Print
    from descend.callbacks.progress_bar import ProgressBar, ProgressLines
    from descend.callbacks.tensorboard import (
        CategoricalAccuracyStrategy,
        MatchType,
        SummarizeImages,
        Summary,
        TrackSampleIDsStrategy,
    )
    from descend.callbacks.weight_average import EMA, SWA

if TYPE_CHECKING:  # annexes offer these; see descend/__init__.py
    from descend.lbann.callbacks.describe import ComputeModelSize, DispIOStats, DumpModelGraph, PrintModelDescription
    from descend.lbann.callbacks.dump import DumpErrorSignals, DumpGradients, DumpMBIndices, DumpOutputs, DumpWeights
    from descend.lbann.callbacks.models import LoadModel, SaveModel, SaveTopKModels
    from descend.lbann.callbacks.perturbation import PerturbAdam, PerturbDropout, PerturbLearningRate, PerturbWeights
    from descend.lbann.callbacks.timeline import Debug, DebugIO, GPUMemoryUsage, MemoryProfiler, Profiler, Timeline
    from descend.lbann.callbacks.timer import Timer
    from descend.lbann.callbacks.without_effect import CheckInit, Hang, ImComm, SyncLayers
    from descend.onnx.callback import ExportOnnx


__all__ = [
    "EMA",
    "SWA",
    "AdaptiveLearningRate",
    "AlternateUpdates",
    "CSVLogger",
    "CategoricalAccuracyStrategy",
    "CheckDataset",
    "CheckGradients",
    "CheckInit",
    "CheckMetric",
    "CheckNaN",
    "CheckSmall",
    "Checkpoint",
    "ClipGradientNorm",
    "ComputeModelSize",
    "ConfusionMatrix",
    "CosineDecayLearningRate",
    "CustomLearningRate",
    "Debug",
    "DebugIO",
    "DispIOStats",
    "DropFixedLearningRate",
    "DumpErrorSignals",
    "DumpGradients",
    "DumpMBIndices",
    "DumpModelGraph",
    "DumpOutputs",
    "DumpWeights",
    "EarlyStopping",
    "EvaluateProgress",
    "ExportOnnx",
    "GPUMemoryUsage",
    "GradientNoiseScale",
    "GradientNorm",
    "Hang",
    "ImComm",
    "LinearGrowthLearningRate",
    "LoadModel",
    "LocalTournament",
    "Logger",
    "MLflowLogger",
    "MatchType",
    "MemoryProfiler",
    "MinibatchRamp",
    "MinibatchSchedule",
    "MinibatchScheduleStep",
    "Mixup",
    "OptimizerwiseAdaptiveLearningRate",
    "PerturbAdam",
    "PerturbDropout",
    "PerturbLearningRate",
    "PerturbWeights",
    "PolyLearningRate",
    "Print",
    "PrintModelDescription",
    "Profiler",
    "ProgressBar",
    "ProgressLines",
    "ReplaceWeights",
    "SaveImages",
    "SaveModel",
    "SaveTopKModels",
    "SetLearningRate",
    "SetWeightsValue",
    "Sharpness",
    "StepLearningRate",
    "StepMinibatch",
    "SummarizeImages",
    "Summary",
    "SyncLayers",
    "TensorBoardLogger",
    "Timeline",
    "Timer",
    "TrackSampleIDsStrategy",
    "UpdateNorm",
    "WandbLogger",
    "WeightNorm",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batch_size": ("MinibatchRamp", "MinibatchSchedule", "MinibatchScheduleStep", "StepMinibatch"),
        "check_gradients": ("CheckGradients",),
        "check_metric": ("CheckMetric",),
        "check_values": ("CheckDataset", "CheckNaN", "CheckSmall"),
        "checkpoint": ("Checkpoint",),
        "confusion_matrix": ("ConfusionMatrix",),
        "curvature": ("Sharpness",),
        "early_stopping": ("EarlyStopping",),
        "evaluate_progress": ("EvaluateProgress",),
        "images": ("SaveImages",),
        "interventions": ("AlternateUpdates", "ClipGradientNorm", "Mixup", "ReplaceWeights", "SetWeightsValue"),
        "learning_rate": (
            "AdaptiveLearningRate",
            "CosineDecayLearningRate",
            "CustomLearningRate",
            "DropFixedLearningRate",
            "LinearGrowthLearningRate",
            "OptimizerwiseAdaptiveLearningRate",
            "PolyLearningRate",
            "SetLearningRate",
            "StepLearningRate",
        ),
        "local_tournament": ("LocalTournament",),
        "loggers": ("CSVLogger", "Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"),
        "norms": ("GradientNoiseScale", "GradientNorm", "UpdateNorm", "WeightNorm"),
        "print": ("Print",),
        "progress_bar": ("ProgressBar", "ProgressLines"),
        "tensorboard": (
            "CategoricalAccuracyStrategy",
            "MatchType",
            "SummarizeImages",
            "Summary",
            "TrackSampleIDsStrategy",
        ),
        "weight_average": ("EMA", "SWA"),
    },
)
