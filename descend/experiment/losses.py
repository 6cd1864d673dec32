"""Losses as numerator and denominator, so that the parts of a batch add up to the batch.

    a torch loss module              taken apart as its own mean is defined
    a name, "cross_entropy", …       the torch module of that name
    a function (output, *targets)    gives (numerator, denominator), or a scalar that is a mean over samples

What torch's `reduction="mean"` divides by (torch 2.13, torch.nn.functional):

    CrossEntropyLoss, NLLLoss        Σ weight[y] over the entries that are not ignored, with class numbers;
                                     the number of entries with class probabilities
    KLDivLoss("batchmean")           the number of samples
    CTCLoss                          the number of samples, after each loss was divided by the length of its target
    all others                       the number of entries of the loss without reduction
"""

from __future__ import annotations

import copy
import inspect
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from descend.errors import ConfigurationError, DataError, Unsupported, nearest
from descend.train.task import Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    LossLike = str | nn.Module | Callable[..., Any]

__all__ = ["NAMED", "FunctionLoss", "Loss", "TorchLoss", "describe", "loss_of"]

NAMED: Mapping[str, Callable[[], nn.Module]] = {
    "bce": nn.BCELoss,
    "bce_with_logits": nn.BCEWithLogitsLoss,
    "cross_entropy": nn.CrossEntropyLoss,
    "ctc": nn.CTCLoss,
    "gaussian_nll": nn.GaussianNLLLoss,
    "huber": nn.HuberLoss,
    "kl_div": lambda: nn.KLDivLoss(reduction="batchmean"),
    "l1": nn.L1Loss,
    "mse": nn.MSELoss,
    "multi_margin": nn.MultiMarginLoss,
    "nll": nn.NLLLoss,
    "poisson_nll": nn.PoissonNLLLoss,
    "smooth_l1": nn.SmoothL1Loss,
    "triplet_margin": nn.TripletMarginLoss,
}

# How many tensors of the output and how many targets a loss takes, where that is not one of each.
_OUTPUTS: dict[type[nn.Module], int] = {
    nn.CosineEmbeddingLoss: 2,
    nn.GaussianNLLLoss: 2,
    nn.MarginRankingLoss: 2,
    nn.TripletMarginLoss: 3,
    nn.TripletMarginWithDistanceLoss: 3,
}
_TARGETS: dict[type[nn.Module], int] = {nn.CTCLoss: 3, nn.TripletMarginLoss: 0, nn.TripletMarginWithDistanceLoss: 0}

# Losses whose target has the shape of the output; a target that broadcasts is a mistake, and torch lets it pass.
_SAME_SHAPE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.KLDivLoss)
CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
FRACTIONS = (nn.BCELoss, nn.BCEWithLogitsLoss)
_FLOATS = (*_SAME_SHAPE, *FRACTIONS, nn.GaussianNLLLoss, nn.HingeEmbeddingLoss)


class Loss:
    """What training and evaluation ask of a loss.

    Attributes:
        targets: How many of the last fields of a sample are targets, where the data do not say.
    """

    targets: int = 1

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int, plain: bool = False) -> Ratio:
        """The loss over a part of a batch.

        Args:
            output: What the module returned for `count` samples.
            targets: Tensors (count, …).
            count: Number of samples.
            plain: The targets are known to be class numbers none of which is to be ignored.
        """
        raise NotImplementedError

    def to(self, device: torch.device) -> None:
        """Bring what the loss holds, class weights for example, to a device."""


@dataclass
class FunctionLoss(Loss):
    """A user's own loss."""

    function: Callable[..., Any]

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int, plain: bool = False) -> Ratio:
        """See `Loss.ratio`."""
        value = self.function(output, *targets)
        if isinstance(value, (tuple, list)) and len(cast("list[Any]", value)) == 2:
            return Ratio(self._scalar(value[0]), cast("Tensor | float", value[1]))
        return Ratio(self._scalar(value) * count, float(count))

    def _scalar(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.reshape(())
        form = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigurationError(
            f"loss {describe(self.function)} returned {form}; it is to return (numerator, denominator), or one number "
            "that is the mean over the samples"
        )

    def to(self, device: torch.device) -> None:
        """See `Loss.to`."""
        if isinstance(self.function, nn.Module):
            self.function.to(device)


class TorchLoss(Loss):
    """A loss module of torch, its mean taken apart.

    Args:
        module: Any of torch.nn's losses; it is copied, not changed.

    Raises:
        ConfigurationError: its reduction is "sum".
    """

    def __init__(self, module: nn.Module) -> None:
        self.kind = nn.NLLLoss if isinstance(module, nn.NLLLoss) else type(module)  # torch keeps an old subclass of it
        self.reduction = str(getattr(module, "reduction", "mean"))
        self.outputs = _OUTPUTS.get(self.kind, 1)
        self.targets = _TARGETS.get(self.kind, 1)
        self.ignore_index = cast("int | None", getattr(module, "ignore_index", None))
        if self.reduction == "sum":
            raise ConfigurationError(
                f"{self.kind.__name__}(reduction='sum') makes the step grow with the batch; pass reduction='mean', or "
                "a function that returns (sum, 1.0) if that is what you want"
            )
        self._module = copy.deepcopy(module)
        self._summed = self.kind in (nn.CrossEntropyLoss, nn.NLLLoss) and self.reduction == "mean"
        cast("Any", self._module).reduction = "sum" if self._summed else "none"

    def to(self, device: torch.device) -> None:
        """See `Loss.to`."""
        self._module.to(device)

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int, plain: bool = False) -> Ratio:
        """See `Loss.ratio`."""
        outputs = self._outputs(output)
        targets = [self._fit(target, outputs[0]) for target in targets]
        arguments = (outputs[0], *targets, outputs[1]) if self.kind is nn.GaussianNLLLoss else (*outputs, *targets)
        loss = self._module(*arguments)
        if self._summed:
            return Ratio(loss, self._weight(outputs[0], targets[0], plain))
        if self.kind is nn.CTCLoss and self.reduction == "mean":
            loss = loss / targets[2].clamp(min=1)
        samples = self.kind is nn.KLDivLoss and self.reduction == "batchmean"
        return Ratio(loss.sum(), float(count if samples else loss.numel()))

    def _outputs(self, output: Any) -> tuple[Tensor, ...]:
        if isinstance(output, Tensor):
            output = (output,)
        if not isinstance(output, (tuple, list)) or not all(isinstance(o, Tensor) for o in output[: self.outputs]):
            raise ConfigurationError(
                f"the module returned a {type(output).__name__}, and {self.kind.__name__} takes a tensor: pass a "
                "function such as loss=lambda output, target: torch.nn.functional.mse_loss(output['x'], target)"
            )
        parts = cast("Sequence[Tensor]", output)
        if len(parts) < self.outputs:
            raise ConfigurationError(
                f"{self.kind.__name__} takes {self.outputs} tensors and the module returned {len(parts)}"
            )
        if len(parts) > self.outputs:
            warnings.warn(
                f"the module returned {len(parts)} things and {self.kind.__name__} is given the first "
                f"{'one' if self.outputs == 1 else self.outputs}; pass a function (output, target) to use the others",
                stacklevel=2,
            )
        return tuple(parts[: self.outputs])

    def _fit(self, target: Tensor, output: Tensor) -> Tensor:
        """The target in the type that torch wants, where nothing is lost by it; a wrong shape is an error."""
        if self.kind in (*_SAME_SHAPE, *FRACTIONS) and target.shape != output.shape:
            raise DataError(
                f"{self.kind.__name__}: the output has shape {tuple(output.shape)} and the target "
                f"{tuple(target.shape)}; make them equal, for example with target.unsqueeze(1) or output.squeeze(1)"
            )
        whole = not target.is_floating_point() and not target.is_complex()
        if self.kind in CLASSES and whole:
            return target.long()
        return target.to(output.dtype) if self.kind in _FLOATS and whole else target

    def _weight(self, output: Tensor, target: Tensor, plain: bool) -> Tensor | float:
        """What the mean over entries with class numbers or probabilities divides by."""
        if target.is_floating_point():
            return float(output.numel() // output.shape[1 if output.ndim > 1 else 0])
        weight = cast("Tensor | None", self._module.weight)
        if weight is None and plain:
            return float(target.numel())
        counted = target != self.ignore_index
        if weight is None:
            return counted.sum()
        return weight[torch.where(counted, target, 0)].mul(counted).sum()


_TORCHS_OWN = frozenset(
    value
    for value in vars(nn.modules.loss).values()
    if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == nn.modules.loss.__name__
)


def loss_of(loss: Any) -> Loss:
    """A loss from anything that may be handed to `fit`.

    Raises:
        ConfigurationError: it is none of the things listed above, its name is unknown, or it has weights of its own.
    """
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ConfigurationError(f"there is no loss '{loss}'; there are {', '.join(NAMED)}{nearest(loss, NAMED)}")
        return TorchLoss(NAMED[loss]())
    if inspect.isclass(loss) and issubclass(loss, nn.Module):
        raise ConfigurationError(f"loss={loss.__name__} is a class; make one: loss={loss.__name__}()")
    if isinstance(loss, nn.Module):
        if names := [name for name, p in loss.named_parameters() if p.requires_grad]:
            raise ConfigurationError(
                f"loss {type(loss).__name__} has weights ({', '.join(names)}) that the optimizer would never see; make "
                "it a part of the module and let the module return the loss"
            )
        if type(loss) is nn.AdaptiveLogSoftmaxWithLoss:
            raise Unsupported("AdaptiveLogSoftmaxWithLoss is a layer with weights; make it a part of the module")
        return TorchLoss(loss) if type(loss) in _TORCHS_OWN else FunctionLoss(loss)
    if callable(loss):
        return FunctionLoss(loss)
    raise ConfigurationError(
        f"loss is {loss!r}; it is to be a loss module of torch, a name such as 'cross_entropy', or a function "
        "(output, *targets)"
    )


def describe(thing: Any) -> str:
    """A name for a function, a class or a module that is the same in every process."""
    if isinstance(thing, (str, nn.Module)):
        return str(thing)
    function = getattr(thing, "func", thing)  # of a functools.partial
    return getattr(function, "__qualname__", type(function).__qualname__)
