"""Checks targets on the host, before they are sent to a device, and names the samples of wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from descend.errors import ConfigurationError, DataError
from descend.experiment.losses import CLASSES, FRACTIONS, TorchLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from descend.data import Batch

__all__ = ["LabelCheck"]

_SHOWN = 5


def _is_fraction(values: NDArray[Any]) -> NDArray[Any]:
    return (values >= 0) & (values <= 1)


def _is_sign(values: NDArray[Any]) -> NDArray[Any]:
    return (values == 1) | (values == -1)


# What targets must be besides class numbers. Torch computes a loss of any others without an error.
_ASKED: dict[type[nn.Module], tuple[Callable[[NDArray[Any]], NDArray[Any]], str]] = {
    **dict.fromkeys(
        (*CLASSES, *FRACTIONS, nn.MultiLabelSoftMarginLoss, nn.KLDivLoss), (_is_fraction, "probabilities in [0, 1]")
    ),
    **dict.fromkeys(
        (nn.SoftMarginLoss, nn.HingeEmbeddingLoss, nn.CosineEmbeddingLoss, nn.MarginRankingLoss), (_is_sign, "1 or -1")
    ),
    nn.PoissonNLLLoss: (lambda values: (values >= 0) & np.isfinite(values), "counts of at least 0"),
}


class LabelCheck:
    """Checks the targets of a torch loss. Those of a user's own function are not checked.

    Args:
        loss: The loss.
        fields: Names of the target fields.
        on_cpu: Whether the loss is computed on the CPU, where torch itself refuses class numbers out of range.

    Attributes:
        loss: The loss.
        all_count: Whether the targets of the newest batch have been looked at and are classes that all count.
    """

    def __init__(self, loss: TorchLoss, fields: Sequence[str], on_cpu: bool) -> None:
        self.loss = loss
        self._fields = fields
        self._refused_by_torch = on_cpu and loss.kind in CLASSES
        self._shape: torch.Size | None = None  # of the newest output
        self._seen = False
        self.all_count = False

    def learn(self, output: Any) -> bool:
        """Take the number of classes from the shape of an output; True the first time."""
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(first, torch.Tensor):
            return False  # the loss reports that
        is_first = self._shape is None
        self._shape = first.shape
        return is_first

    @property
    def _form(self) -> tuple[int, ...]:
        """The shape of an output without the dimension of samples."""
        return () if self._shape is None else (*self._shape[1:],)

    def check(self, batch: Batch, refused: bool = False) -> None:
        """Check the targets of a batch, once the shape of the output is known.

        Args:
            batch: The batch.
            refused: Torch has raised an error that they may have caused.

        Raises:
            DataError: a target is out of range, not finite or of a wrong type; names the sample, the value and the
                allowed range.
            ConfigurationError: the output has no dimension of classes.
        """
        self.all_count = False
        if self._shape is None:
            return
        trusted = self._refused_by_torch and self._seen and not refused
        if self.loss.kind is nn.CTCLoss:
            self._check_labellings(batch)
        for field in self._fields:
            targets = batch.fields[field]
            if trusted and isinstance(targets, torch.Tensor) and not targets.is_floating_point():
                continue
            values = _on_host(targets, first=not self._seen)
            if values is not None and len(values):
                self._check(field, values, batch.ids)
        self._seen = True

    def _check(self, field: str, values: NDArray[Any], ids: NDArray[np.int64]) -> None:
        kind, real = self.loss.kind, values.dtype.kind == "f"
        if kind in CLASSES and not real:
            self._check_classes(field, values, ids)
            return
        if kind in CLASSES and values.shape[1:] != self._form:
            self._refuse_real_classes(field, values, ids)
        if kind in _ASKED and not self.loss.log_target:
            is_good, allowed = _ASKED[kind]
            self._refuse(field, values, ids, ~is_good(values), allowed)
        elif real and not np.isfinite(values.sum()):
            self._refuse(field, values, ids, ~np.isfinite(values), "finite numbers")

    def _refuse_real_classes(self, field: str, values: NDArray[Any], ids: NDArray[np.int64]) -> None:
        """Refuse class numbers with a point: those of a table are such where some are missing."""
        kind = self.loss.kind.__name__
        self._refuse(field, values, ids, np.isnan(values), "class numbers, which are missing (nan)")
        self._refuse(field, values, ids, values != np.floor(values), "class numbers, which are integers")
        raise DataError(
            f"field '{field}' holds class numbers as {values.dtype} (sample {ids[0]}: {_first(values)}), and {kind} "
            "takes integers: convert them, for example with .long(), or with .astype('int64') where they are an array; "
            "in a file write 0 in place of 0.0, and leave out samples without a class, as integers of which some are "
            "missing are read as numbers with a point"
        )

    def _check_classes(self, field: str, values: NDArray[Any], ids: NDArray[np.int64]) -> None:
        if not self._form:
            raise ConfigurationError(
                f"{self.loss.kind.__name__}: the output must have shape (samples, classes) with at least "
                f"{values.max() + 1} classes, got one number per sample"
            )
        classes, ignored = self._form[0], self.loss.ignore_index
        if values.min() >= 0 and values.max() < classes:
            self.all_count = ignored is None or not 0 <= ignored < classes
            return
        wrong = ((values < 0) | (values >= classes)) & (True if ignored is None else values != ignored)
        also = "" if ignored is None else f" or {ignored} to be ignored"
        self._refuse(field, values, ids, wrong, f"class numbers from 0 to {classes - 1}{also}")

    def _check_labellings(self, batch: Batch) -> None:
        """Check labels within the length of their sequence; torch reads out of bounds for classes out of range."""
        if len(self._fields) != self.loss.targets or not self._form:
            return
        arrays = [_on_host(batch.fields[field], first=not self._seen) for field in self._fields]
        labels, _, lengths = arrays
        if labels is None or lengths is None or labels.dtype.kind == "f":
            return
        classes, blank = self._form[-1], self.loss.blank
        wrong = (labels < 0) | (labels >= classes) | (labels == blank)
        if labels.ndim == 2:
            most = labels.shape[1]
            self._refuse(self._fields[2], lengths, batch.ids, (lengths < 0) | (lengths > most), f"lengths up to {most}")
            wrong &= np.arange(most) < lengths.reshape(-1, 1)
        allowed = f"class numbers from 0 to {classes - 1} other than the blank {blank}"
        self._refuse(self._fields[0], labels, batch.ids, wrong, allowed)

    def _refuse(
        self, field: str, values: NDArray[Any], ids: NDArray[np.int64], wrong: NDArray[Any], allowed: str
    ) -> None:
        where = np.argwhere(wrong)
        if len(where) == 0:
            return
        _, firsts = np.unique(where[:, 0], return_index=True)  # one entry per sample
        shown = [f"    sample {ids[place[0]]}: {values[tuple(place)]}" for place in where[firsts[:_SHOWN]]]
        more = f", in {len(firsts)} samples of which {_SHOWN} are" if len(firsts) > _SHOWN else ""
        raise DataError(
            [
                f"field '{field}': {len(where)} targets are not {allowed}, as {self.loss.kind.__name__} takes{more}:",
                *shown,
            ]
        )


def _on_host(values: NDArray[Any] | Tensor, first: bool) -> NDArray[Any] | None:
    """The targets as an array; None for targets on a device after the first batch, since reading them synchronizes."""
    if isinstance(values, np.ndarray):
        return values
    if values.device.type != "cpu" and not first:
        return None
    values = values.detach().cpu()
    return (values.float() if values.dtype.itemsize == 2 and values.is_floating_point() else values).numpy()


def _first(values: NDArray[Any]) -> Any:
    return values.reshape(-1)[0]
