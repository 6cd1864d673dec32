"""Losses as numerator and denominator, which can be summed over micro-batches and ranks.

    a torch loss module              its mean is split into numerator and denominator
    a name, "cross_entropy", …       the torch module of that name
    torch.nn.functional.mse_loss, …  the torch module that calls it; a functools.partial of it sets its options
    a function (output, *targets)    returns (numerator, denominator), or a scalar that is a mean over samples

What torch's `reduction="mean"` divides by (torch 2.13, torch.nn.functional):

    CrossEntropyLoss, NLLLoss        Σ weight[y] over the entries that are not ignored, with class numbers;
                                     the number of entries with class probabilities
    KLDivLoss("batchmean")           the number of samples
    CTCLoss                          the number of samples, each loss being divided by the length of its target
    all others                       the number of entries of the loss without reduction
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from descend.arguments import shown
from descend.errors import ConfigurationError, DataError, Unsupported, nearest, warn
from descend.torch_private import has_hooks
from descend.train.objective import Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["NAMED", "FunctionLoss", "Loss", "TorchLoss", "describe", "looked_at", "loss_of", "takes_class_numbers"]

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

_FUNCTIONS: Mapping[Callable[..., Any], type[nn.Module]] = {
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.cosine_embedding_loss: nn.CosineEmbeddingLoss,
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.ctc_loss: nn.CTCLoss,
    functional.gaussian_nll_loss: nn.GaussianNLLLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.l1_loss: nn.L1Loss,
    functional.margin_ranking_loss: nn.MarginRankingLoss,
    functional.mse_loss: nn.MSELoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
    functional.triplet_margin_loss: nn.TripletMarginLoss,
}

# How many output tensors and how many targets a loss takes, if not one of each.
_OUTPUTS: dict[type[nn.Module], int] = {
    nn.CosineEmbeddingLoss: 2,
    nn.GaussianNLLLoss: 2,
    nn.MarginRankingLoss: 2,
    nn.TripletMarginLoss: 3,
    nn.TripletMarginWithDistanceLoss: 3,
}
_TARGETS: dict[type[nn.Module], int] = {nn.CTCLoss: 3, nn.TripletMarginLoss: 0, nn.TripletMarginWithDistanceLoss: 0}

# Losses whose target has the shape of the output; one that broadcasts is a mistake that torch accepts.
_SAME_SHAPE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.KLDivLoss)
CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
FRACTIONS = (nn.BCELoss, nn.BCEWithLogitsLoss)
# Returns the sum of the losses and the sum of the weights.
_NLL: Any = torch.ops.aten.nll_loss_forward.default
_SUM = 2  # reduction="sum"
_NOT_CAST = (torch.float32, torch.float64)  # autocast converts other dtypes before the loss
_FLOATS = (*_SAME_SHAPE, *FRACTIONS, nn.GaussianNLLLoss, nn.HingeEmbeddingLoss)


class Loss:
    """Interface of a loss.

    Attributes:
        targets: How many of the last fields of a sample are targets, if the data do not name them.
    """

    targets: int = 1

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
        """The loss over a micro-batch.

        Args:
            output: What the module returned for `count` samples.
            targets: Tensors (count, …).
            count: Number of samples.
        """
        raise NotImplementedError

    def to(self, device: torch.device) -> None:
        """Move tensors of the loss, such as class weights, to a device."""


@dataclass
class FunctionLoss(Loss):
    """A user's own loss."""

    function: Callable[..., Any]
    fits: bool = field(default=False, repr=False)  # whether it is known to take the output and the targets
    metric: str = field(default="", repr=False)  # its name, where it is a metric
    exact: bool = field(default=False, repr=False)  # whether it is known to return a numerator and a denominator
    _looked_at: bool = field(default=False, init=False, repr=False)
    _counted: bool = field(default=False, init=False, repr=False)

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
        """See `Loss.ratio`."""
        if not self.fits:
            self._check_arguments(len(targets))
        value = self.function(output, *targets)
        if isinstance(value, (tuple, list)) and len(cast("list[Any]", value)) == 2:
            return Ratio(self._scalar(value[0]), self._count(value[1]))
        return Ratio(self._scalar(value) * count, float(count))

    def look_at_parts(self, output: Any, targets: Sequence[Tensor], count: int) -> None:
        """Check, once, whether a scalar loss is a mean over samples, as micro-batches require.

        Warns:
            UserWarning: the loss over `count` samples is not the mean of the losses over its halves.
        """
        if self.exact or self._looked_at or count < 2 or not _of_samples((output, *targets), count):
            return
        half, devices = count // 2, [output.device] if isinstance(output, Tensor) and output.is_cuda else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            try:
                values = [
                    self.function(_rows_of(output, rows), *(_rows_of(target, rows) for target in targets))
                    for rows in (slice(None), slice(half), slice(half, None))
                ]
            except Exception:  # a loss that fails on halves may be fine on whole batches
                return
        if not all(isinstance(value, Tensor) and value.numel() == 1 for value in values):
            return
        whole, first, second = (float(value) for value in values)
        mean = (half * first + (count - half) * second) / count
        if not math.isfinite(whole):
            return
        self._looked_at = True
        rounding = 2e-2 if values[0].dtype in (torch.float16, torch.bfloat16) else 1e-4
        if not abs(whole - mean) <= rounding * max(abs(first), abs(second)):
            what = "its value depends on the batch" if self.metric else "the update depends on the micro-batch"
            more = " or pass an object of torchmetrics" if self.metric else " instead"
            warn(
                f"{self._title} is not a mean over samples: it is {whole:.6g} over {count} samples and {mean:.6g} on "
                f"average over their halves, so {what} size: return (sum, count){more}"
            )

    @property
    def _title(self) -> str:
        return f"metric '{self.metric}'" if self.metric else f"loss {describe(self.function)}"

    def takes_a_target(self) -> bool:
        """Whether it can be called with the output and one target; False for a function of C without a signature."""
        signature = self._signature()
        if signature is None:
            return False
        try:
            signature.bind(None, None)
        except TypeError:
            return False
        return True

    def _signature(self) -> inspect.Signature | None:
        """Its signature, of a module that of `forward`; None for a function of C without one."""
        try:
            return inspect.signature(self.function.forward if isinstance(self.function, nn.Module) else self.function)
        except (TypeError, ValueError):
            return None

    def _check_arguments(self, targets: int) -> None:
        signature = self._signature()
        if signature is None:
            return
        try:
            signature.bind(None, *[None] * targets)
        except TypeError as error:
            raise ConfigurationError(
                f"{self._title}{'' if self.metric else signature} is called with the output and {targets} "
                f"{'target' if targets == 1 else 'targets'}: {error}; targets= says which fields of a sample are these"
            ) from None
        self.fits = True

    def _scalar(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            return value.reshape(()) if value.ndim else value
        if (
            isinstance(value, Real) and value is not True and value is not False
        ):  # such as a metric that ends with .item()
            return torch.tensor(float(value), dtype=torch.float64)
        form = str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
        if isinstance(value, Tensor) and value.is_complex():
            form = f"{form} {str(value.dtype).removeprefix('torch.')}, which cannot be minimized"
        raise ConfigurationError(
            f"{self._title} must return (numerator, denominator), or one number that is the mean over "
            f"the samples, got {form}"
        )

    def _count(self, value: Any) -> Tensor | float:
        if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad:
            return value.reshape(()) if value.ndim else value
        if isinstance(value, Real) and 0 <= float(value) < math.inf:
            return float(value)
        form = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        if isinstance(value, Tensor) and value.requires_grad:
            form += " that requires a gradient, which is not computed for a denominator"
        raise self._no_count(form)

    def look_at_count(self, ratio: Ratio) -> None:
        """Check, once, that a denominator that is a tensor is >= 0. Synchronizes with the device.

        Raises:
            ConfigurationError: it is negative.
        """
        if not self._counted and isinstance(ratio.denominator, Tensor) and bool(ratio.denominator < 0):
            raise self._no_count(repr(ratio.denominator.item()))
        self._counted = True

    def _no_count(self, form: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._title}: the denominator must be how much was counted, a number >= 0 or a tensor "
            f"with one element and without gradient, got {form}"
        )

    def to(self, device: torch.device) -> None:
        """See `Loss.to`."""
        if isinstance(self.function, nn.Module):
            self.function.to(device)


def looked_at(loss: Loss, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
    """`Loss.ratio` with a check of a user's denominator, once.

    Raises:
        ConfigurationError: it is negative.
    """
    ratio = loss.ratio(output, targets, count)
    if isinstance(loss, FunctionLoss):
        loss.look_at_count(ratio)
    return ratio


def _of_samples(values: Any, count: int) -> bool:
    """Whether `values` consists of tensors with one row per sample."""
    if isinstance(values, Tensor):
        return values.ndim > 0 and len(values) == count
    if type(values) is dict:
        values = tuple(cast("dict[str, Any]", values).values())
    return type(values) in (tuple, list) and all(_of_samples(value, count) for value in cast("tuple[Any, ...]", values))


def _rows_of(values: Any, rows: slice) -> Any:
    if isinstance(values, Tensor):
        return values[rows]
    if isinstance(values, dict):
        return {name: _rows_of(value, rows) for name, value in cast("dict[str, Any]", values).items()}
    return type(values)(_rows_of(value, rows) for value in values)


class TorchLoss(Loss):
    """A loss module of torch, its mean split into numerator and denominator.

    Args:
        module: Any of torch.nn's losses; a copy is used.

    Attributes:
        divides_by_count: Whether its denominator is the number of class numbers that are not ignored.

    Raises:
        ConfigurationError: its reduction is "sum".
    """

    def __init__(self, module: nn.Module) -> None:
        self.kind = nn.NLLLoss if isinstance(module, nn.NLLLoss) else type(module)  # torch has an old subclass of it
        self.reduction = str(getattr(module, "reduction", "mean"))
        self.outputs = _OUTPUTS.get(self.kind, 1)
        self.targets = _TARGETS.get(self.kind, 1)
        self.ignore_index = cast("int | None", getattr(module, "ignore_index", None))
        self.blank = cast("int | None", getattr(module, "blank", None))
        self.log_target = bool(getattr(module, "log_target", False))
        if self.reduction == "sum":
            raise ConfigurationError(
                f"{self.kind.__name__}(reduction='sum') makes the step grow with the batch: pass reduction='mean', or "
                "a function that returns (sum, 1.0) if that is what you want"
            )
        self._module = _copy_of(module)
        self._takes_classes, self._needs_one_shape = self.kind in CLASSES, self.kind in (*_SAME_SHAPE, *FRACTIONS)
        self._summed = self.kind in (nn.CrossEntropyLoss, nn.NLLLoss) and self.reduction == "mean"
        cast("Any", self._module).reduction = "sum" if self._summed else "none"
        self.divides_by_count = self._summed and getattr(module, "weight", None) is None
        self._counts = self._summed and not getattr(module, "label_smoothing", 0.0) and not has_hooks(module)

    def to(self, device: torch.device) -> None:
        """See `Loss.to`."""
        self._module.to(device)

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
        """See `Loss.ratio`."""
        if self._counts and isinstance(output, Tensor) and targets and _is_table(output, targets[0]):
            return self._of_classes(output, targets[0])  # most networks, so without what others need
        outputs = self._outputs(output)
        targets = [self._fit(target, outputs[0]) for target in targets]
        if self._counts and _is_table(outputs[0], targets[0]):
            return self._of_classes(outputs[0], targets[0])
        arguments = (outputs[0], *targets, outputs[1]) if self.kind is nn.GaussianNLLLoss else (*outputs, *targets)
        loss = self._module(*arguments)
        if self._summed:
            return Ratio(loss, self._weight(outputs[0], targets[0]))
        if self.kind is nn.CTCLoss and self.reduction == "mean":
            loss = loss / targets[2].clamp(min=1)
        samples = self.kind is nn.KLDivLoss and self.reduction == "batchmean"
        return Ratio(loss.sum(), float(count if samples else loss.numel()))

    def _outputs(self, output: Any) -> tuple[Tensor, ...]:
        if isinstance(output, Tensor):
            if self.outputs == 1:
                return (output,)
            output = (output,)
        if not isinstance(output, (tuple, list)) or not all(isinstance(o, Tensor) for o in output[: self.outputs]):
            raise ConfigurationError(
                f"the module returned {_describe_output(output)}, and {self.kind.__name__} takes {self._wanted()}: "
                f"pass a function such as loss=lambda output, target: {self._called()}({_chosen(output)}, target)"
            )
        parts = cast("Sequence[Tensor]", output)
        if len(parts) < self.outputs:
            raise ConfigurationError(
                f"{self.kind.__name__} takes {self.outputs} tensors and the module returned {len(parts)}"
            )
        if len(parts) > self.outputs:
            warn(
                f"the module returned {len(parts)} things and {self.kind.__name__} is given the first "
                f"{'one' if self.outputs == 1 else self.outputs}; pass a function (output, target) to use the others"
            )
        return tuple(parts[: self.outputs])

    def refusal(self, output: Any, targets: Sequence[Tensor], error: Exception) -> str:
        """The message for an output and targets that torch refuses, with a remedy if one is known."""
        first = self._outputs(output)[0]
        given = ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in (first, *targets))
        target = targets[0] if targets else first
        remedy = ""
        if self.kind in CLASSES and target.ndim == first.ndim and target.shape[1:] == (1,):
            remedy = "; class numbers are one for each sample: pass target.squeeze(1)"
        elif self.kind is nn.CrossEntropyLoss and target.shape == first.shape:
            remedy = f"; for class probabilities pass target.to({first.dtype}), for class numbers target.argmax(1)"
        elif self.kind is nn.BCELoss:
            remedy = "; the output must be a probability: end the module with a Sigmoid, or use 'bce_with_logits'"
        return f"{self.kind.__name__} cannot take an output and targets of {given}: {error}{remedy}"

    def _wanted(self) -> str:
        return "a tensor" if self.outputs == 1 else f"{self.outputs} tensors"

    def _called(self) -> str:
        """The name of the torch function that computes the same loss."""
        found = next((function for function, kind in _FUNCTIONS.items() if kind is self.kind), functional.mse_loss)
        return f"torch.nn.functional.{cast('Any', found).__name__}"

    def _fit(self, target: Tensor, output: Tensor) -> Tensor:
        """The target in the dtype that torch needs, if the conversion is exact; a wrong shape is an error."""
        if self._takes_classes and target.dtype is torch.int64:
            return target
        if self._needs_one_shape and target.shape != output.shape:
            raise DataError(
                f"{self.kind.__name__}: the output has shape {tuple(output.shape)} and the target "
                f"{tuple(target.shape)}; make them equal, for example {_reshaped(target, output)}"
            )
        whole = not target.is_floating_point() and not target.is_complex()
        if self._takes_classes and whole:
            return target.long()
        return target.to(output.dtype) if self.kind in _FLOATS and whole else target

    def _of_classes(self, output: Tensor, target: Tensor) -> Ratio:
        """Loss and sum of weights of (n, classes) and (n,) class numbers, by the kernel that torch's loss calls."""
        log_p = output.log_softmax(1) if self.kind is nn.CrossEntropyLoss else output
        return Ratio(*_NLL(log_p, target, self._module.weight, _SUM, self.ignore_index))

    def _weight(self, output: Tensor, target: Tensor) -> Tensor | float:
        """The denominator of the mean, for class numbers or class probabilities."""
        if target.is_floating_point():
            return float(output.numel() // output.shape[1 if output.ndim > 1 else 0])
        weight = cast("Tensor | None", self._module.weight)
        counted = target != self.ignore_index
        if weight is None:
            return counted.sum()
        return weight[torch.where(counted, target, 0)].mul(counted).sum()


def takes_class_numbers(loss: Loss) -> bool:
    """Whether a target of one number for each sample is a class number."""
    return isinstance(loss, TorchLoss) and loss.kind in CLASSES


def _describe_output(output: Any) -> str:
    """The type of a module's output, for messages."""
    if isinstance(output, dict):
        return f"a dict with {', '.join(repr(name) for name in cast('dict[str, Any]', output))}"
    if isinstance(output, (tuple, list)):
        kinds = ", ".join(type(part).__name__ for part in cast("Sequence[Any]", output))
        return f"a {type(output).__name__} of {kinds}"
    return f"a {type(output).__name__}"


def _chosen(output: Any) -> str:
    """An expression for the first tensor in a module's output, for messages."""
    if isinstance(output, (dict, tuple, list)):
        pairs = cast("dict[Any, Any]", output).items() if isinstance(output, dict) else enumerate(output)
        found = next((place for place, part in pairs if isinstance(part, Tensor)), None)
        return "output[...]" if found is None else f"output[{found!r}]"
    found = next((name for name, part in getattr(output, "__dict__", {}).items() if isinstance(part, Tensor)), "x")
    return f"output.{found}"


def _reshaped(target: Tensor, output: Tensor) -> str:
    """What makes a target and an output that have as many entries equal in shape."""
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        return f"by .squeeze({output.ndim - 1}) at the end of forward, or by target.unsqueeze({target.ndim})"
    if target.ndim == output.ndim + 1 and target.shape[-1] == 1:
        return f"by target.squeeze({target.ndim - 1})"
    return "by reshaping one of them"


def _copy_of(module: nn.Module) -> nn.Module:
    """A copy that can be changed and moved; where there are no tensors in it, without what takes long."""
    holds = next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
    return copy.deepcopy(module) if holds or next(module.children(), None) is not None else copy.copy(module)


def _is_table(output: Tensor, target: Tensor) -> bool:
    """Whether these are (n, classes) and (n,) int64, in dtypes that are not converted."""
    if output.dtype not in _NOT_CAST or target.dtype is not torch.int64:
        return False
    return output.ndim == 2 and target.ndim == 1 and target.shape[0] == output.shape[0]


_TORCHS_OWN = frozenset(
    value
    for value in vars(nn.modules.loss).values()
    if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == nn.modules.loss.__name__
)


def loss_of(loss: Any) -> Loss:
    """A loss from anything that `fit` accepts.

    Raises:
        ConfigurationError: it is none of the forms listed above, its name is unknown, or it has parameters.
    """
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ConfigurationError(f"loss must be one of {', '.join(NAMED)}, got '{loss}'{nearest(loss, NAMED)}")
        return TorchLoss(NAMED[loss]())
    if inspect.isclass(loss):
        raise ConfigurationError(f"loss={loss.__name__} is a class: construct it, loss={loss.__name__}()")
    if isinstance(loss, nn.Module):
        if names := [name for name, p in loss.named_parameters() if p.requires_grad]:
            raise ConfigurationError(
                f"loss {type(loss).__name__} has parameters ({', '.join(names)}) that would not be trained: make "
                "it a part of the module and let the module return the loss"
            )
        if type(loss) is nn.AdaptiveLogSoftmaxWithLoss:
            raise Unsupported("AdaptiveLogSoftmaxWithLoss is a layer with parameters: make it a part of the module")
        return TorchLoss(loss) if type(loss) in _TORCHS_OWN else FunctionLoss(loss)
    if (module := _module_of(loss)) is not None:
        return TorchLoss(module)
    if callable(loss):
        return FunctionLoss(loss)
    raise ConfigurationError(
        f"loss must be a loss module of torch, a name such as 'cross_entropy', or a function (output, *targets), got "
        f"{shown(loss)}; of a module that computes its loss itself, write loss=lambda output: output.loss"
    )


def _module_of(loss: Any) -> nn.Module | None:
    """The module for a loss function of torch, or a partial of one that sets options; None for anything else."""
    is_partial = isinstance(loss, functools.partial) and not loss.args
    function, options = (loss.func, loss.keywords) if is_partial else (loss, {})
    kind = _FUNCTIONS.get(function) if inspect.isroutine(function) else None
    if kind is None or not options.keys() <= inspect.signature(kind).parameters.keys():
        return None
    return kind(**options)


def describe(thing: Any) -> str:
    """A name of a function, class or module, the same in every process; for torch's losses with its options."""
    if isinstance(thing, str):
        return describe(NAMED[thing]()) if thing in NAMED else thing
    if (module := _module_of(thing)) is not None:
        return describe(module)
    if type(thing) in _TORCHS_OWN:
        return f"{type(thing).__name__}({', '.join(_options(thing))})"
    if isinstance(thing, nn.Module):
        return str(thing)
    function = getattr(thing, "func", thing)  # of a functools.partial
    return getattr(function, "__qualname__", type(function).__qualname__)


def _options(loss: nn.Module) -> Iterator[str]:
    """The options of a torch loss that differ from the defaults."""
    for name, parameter in inspect.signature(type(loss)).parameters.items():
        value = getattr(loss, name, parameter.default)
        if isinstance(value, Tensor):
            yield f"{name}={value.tolist()}"
        elif value != parameter.default and not callable(value):
            yield f"{name}={value!r}"
