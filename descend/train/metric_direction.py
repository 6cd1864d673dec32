"""Whether a metric is better when it is lower or when it is higher, by its name.

    "train/objective", "mse", "word error rate", "val_loss"       lower
    "validation/accuracy", "top-5 accuracy", "top5", "f1"         higher
    "gradient_norm", "score", a metric of the user's own          unknown: the user has to say

Only the last part of a path counts, and of that the whole name or its last words: `loss_scale` is not a loss.
"""

from __future__ import annotations

import re
from typing import Literal

from descend.errors import nearest

__all__ = ["KNOWN_METRICS", "Direction", "better", "direction_of", "range_of", "unknown_direction"]

Direction = Literal["min", "max"]

_LOWER = {
    "objective",
    "loss",
    "error",
    "cost",
    "nll",
    "mse",
    "mae",
    "rmse",
    "mape",
    "perplexity",
    "deviance",
    "divergence",
    "bce",
    "bce_with_logits",
    "cross_entropy",
    "ctc",
    "gaussian_nll",
    "huber",
    "kl_div",
    "l1",
    "multi_margin",
    "poisson_nll",
    "smooth_l1",
    "triplet_margin",
    "error_rate",
    "wer",
    "cer",
    "fid",
    "brier",
}
_HIGHER = {
    "accuracy",
    "acc",
    "precision",
    "recall",
    "f1",
    "fbeta",
    "specificity",
    "sensitivity",
    "auroc",
    "auc",
    "roc_auc",
    "auprc",
    "average_precision",
    "r2",
    "iou",
    "miou",
    "dice",
    "jaccard",
    "mcc",
    "kappa",
    "bleu",
    "rouge",
    "psnr",
    "ssim",
    "pearson",
    "spearman",
    "correlation",
}
_TOP_K = re.compile(r"top_?\d+(_accuracy)?|accuracy_?(top|at)?_?\d+")

_BELOW_ONE = {
    *("accuracy", "acc", "precision", "recall", "f1", "fbeta", "specificity", "sensitivity", "auroc", "auc", "roc_auc"),
    *("auprc", "average_precision", "iou", "miou", "dice", "jaccard"),
}

KNOWN_METRICS = tuple(sorted(_LOWER | _HIGHER))


def direction_of(name: str) -> Direction | None:
    """The direction of the metric `name`, which may be a path such as "validation/accuracy"; None where unknown."""
    known = _known(name)
    return "min" if known in _LOWER else "max" if known is not None else None


def range_of(name: str) -> float | None:
    """The largest difference that two values of the metric `name` can have: 1 for an accuracy; None where unbounded."""
    known = _known(name)
    return 1.0 if known is not None and (known in _BELOW_ONE or _TOP_K.fullmatch(known)) else None


def _known(name: str) -> str | None:
    """The metric that a name ends with, in one spelling; None where none is known."""
    metric = re.sub(r"[^a-z0-9]+", "_", name.rpartition("/")[2].lower()).strip("_")
    words = metric.split("_")
    endings = ("_".join(words[start:]) for start in range(len(words)))  # the longest first
    found = next((ending for ending in endings if ending in _LOWER or ending in _HIGHER), None)
    return found if found is not None or not _TOP_K.fullmatch(metric) else metric


def better(value: float, reference: float, direction: Direction, margin: float = 0.0) -> bool:
    """Whether `value` is better than `reference` by more than `margin`. NaN is never better."""
    return value < reference - margin if direction == "min" else value > reference + margin


def unknown_direction(where: str, name: str, remedy: str) -> str:
    """The sentence for a metric whose direction is not known.

    Args:
        where: What asks for it, such as "Reached('score')".
        name: The metric.
        remedy: How the user says it.
    """
    metric = name.rpartition("/")[2]
    hint = nearest(metric, KNOWN_METRICS) or ";"
    return f"{where}: it is not known whether a lower or a higher '{metric}' is better{hint} {remedy}"
