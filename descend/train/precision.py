"""The precision of a run: the dtype that it computes in, the scale of the loss, and one update of the optimizer.

`Precision` scales nothing; `LossScaling` is float16's, with torch's own scaler. In the order of a step: `scale` before
the backward pass, `unscale` after it, `lower_scale` or `keep_scale` where the step is skipped, else `optimizer_step`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from descend.arguments import shown
from descend.errors import ConfigurationError, nearest, warn
from descend.lazy import instance_check
from descend.torch_private import step_is_observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

    from descend.graph import AutomaticMixedPrecision

__all__ = ["LossScaling", "Precision", "bare_step", "precision_for", "precision_of", "require_castable"]


class Precision:
    """A loss that is not scaled: float32, float64, bfloat16.

    Attributes:
        found_inf: A 0-d tensor for the next update, which is left out where it is above 0; None for none. The optimizer
            gets it as from torch's `GradScaler`.
    """

    found_inf: torch.Tensor | None = None
    resets_with_optimizer: ClassVar[bool] = False
    checks_for_overflow: bool = False

    @property
    def loss_scale(self) -> float:
        """The scale in force."""
        return 1.0

    def scale(self, start: torch.Tensor) -> torch.Tensor:
        """The tensor that a backward pass starts with, times the loss scale."""
        return start

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the loss scale."""

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """One update by gradients that have been unscaled.

        Raises:
            ConfigurationError: a learning rate is negative or not finite, as a schedule may have made it; or the
                optimizer does not take the gradients, which shows in the first step.
        """
        _check_learning_rates(optimizer)
        try:
            self._step(optimizer)
        except RuntimeError as error:
            if sparse := _sparse(optimizer):
                raise ConfigurationError(
                    f"{type(optimizer).__name__} does not take the sparse gradient of {', '.join(sparse)} ({error}): "
                    "build the embedding with sparse=False, or choose torch.optim.SGD, Adagrad or SparseAdam for it"
                ) from error
            if "dense gradients" in str(error):
                raise ConfigurationError(
                    f"{type(optimizer).__name__} takes sparse gradients alone ({error}): build its embedding with "
                    "sparse=True, and give the other weights another rule"
                ) from error
            raise

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        flag, self.found_inf = self.found_inf, None
        if flag is None:
            bare_step(optimizer)()
            return
        flagged: Any = optimizer
        flagged.found_inf, flagged.grad_scale = flag, None
        try:
            bare_step(optimizer)()
        finally:
            del flagged.found_inf, flagged.grad_scale

    def lower_scale(self) -> bool:
        """Answer gradients that overflowed with a smaller scale; False where the scale is not to blame."""
        return False

    def keep_scale(self) -> None:
        """A step is skipped for which the scale is not to blame: it stays."""

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, where there is one."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; that of another precision is left alone."""


class LossScaling(Precision):
    """A loss scaled up before the backward pass, so that float16 gradients do not underflow.

    Args:
        scaler: Torch's own.
    """

    checks_for_overflow = True

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler

    @property
    def loss_scale(self) -> float:
        """See `Precision.loss_scale`."""
        return self._scaler.get_scale()

    def scale(self, start: torch.Tensor) -> torch.Tensor:
        """See `Precision.scale`."""
        return self._scaler.scale(start)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Precision.unscale`."""
        self._scaler.unscale_(optimizer)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        self._scaler.step(optimizer)
        self._scaler.update()

    def lower_scale(self) -> bool:
        """See `Precision.lower_scale`."""
        if self._scaler.get_scale() <= 1:
            return False
        self._scaler.update()
        return True

    def keep_scale(self) -> None:
        """See `Precision.keep_scale`; torch's scaler learns that the step is over."""
        self._scaler.update(self._scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """Torch's."""
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `Precision.load_state_dict`."""
        if state_dict:
            self._scaler.load_state_dict(state_dict)


def precision_for(scaler: torch.amp.GradScaler | None) -> Precision:
    """The precision of a run with this scaler, or without one."""
    return Precision() if scaler is None else LossScaling(scaler)


def _check_learning_rates(optimizer: torch.optim.Optimizer) -> None:
    for number, group in enumerate(optimizer.param_groups):
        rate = group.get("lr")
        if type(rate) is float and not 0.0 <= rate < math.inf:
            raise ConfigurationError(
                f"the learning rate of group {number} must be finite and at least 0, and was set to {rate!r}: see "
                "what sets it"
            )


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The step of an optimizer, without the profiler record that torch opens around it where nothing listens."""
    step: Any = type(optimizer).step
    if step_is_observed(optimizer) or "step" in vars(optimizer) or not _is_wrapped_by_torch(step):
        return optimizer.step
    return partial(step.__wrapped__, optimizer)


def _is_wrapped_by_torch(step: Any) -> bool:
    """Whether a method is what torch's optimizers put around the `step` of their class."""
    return getattr(step, "__code__", None) is _WRAPPER and hasattr(step, "__wrapped__")


# The code of the wrapper, whatever it wraps.
_WRAPPER = torch.optim.Optimizer.profile_hook_step(lambda self: None).__code__


def _sparse(optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the weights with a sparse gradient."""
    found: list[str] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [f"weights {i}" for i in range(len(group["params"]))]
        found += [f"'{name}'" for name, p in zip(names, group["params"], strict=True) if _has_rows(p)]
    return found


def _has_rows(p: torch.Tensor) -> bool:
    return p.grad is not None and p.grad.is_sparse


# ---- the settings: the dtype of the weights, or autocast to half precision with a loss scale for
# float16

_NAMES = ("float32", "bfloat16", "float16")
_is_description: Callable[[object], TypeIs[AutomaticMixedPrecision]] = instance_check(
    "descend.graph.model", "AutomaticMixedPrecision"
)


class PrecisionSettings(NamedTuple):
    """The precision of a run.

    Attributes:
        autocast: The dtype of torch's autocast; None computes in the dtype of the weights.
        scaler: The loss scaler of float16; None otherwise.
    """

    autocast: torch.dtype | None
    scaler: torch.amp.GradScaler | None


def precision_of(given: Any, device: torch.device) -> PrecisionSettings:
    """The precision of a name, of a description, or of None, which is float32.

    Raises:
        ConfigurationError: it is none of these.
    """
    if (
        given is None
        or (isinstance(given, str) and given == "float32")
        or (_is_description(given) and not given.enabled)
    ):
        return PrecisionSettings(None, None)
    if isinstance(given, str) and given in _NAMES:
        from descend.graph import AutomaticMixedPrecision

        given = AutomaticMixedPrecision(enabled=True, format=given)
    if not _is_description(given):
        options = ", ".join(f"'{name}'" for name in _NAMES)
        raise ConfigurationError(
            f"precision must be one of {options}, or a descend.AutomaticMixedPrecision, got {shown(given)}"
            f"{nearest(given, _NAMES) if isinstance(given, str) else ''}"
        )
    if given.format == "bfloat16":
        return PrecisionSettings(torch.bfloat16, None)
    scaler = torch.amp.GradScaler(
        device.type,
        init_scale=given.init_scale or 65536.0,
        growth_factor=given.growth_factor or 2.0,
        backoff_factor=given.backoff_factor or 0.5,
        growth_interval=given.growth_interval or 2000,
    )
    return PrecisionSettings(torch.float16, scaler)


def require_castable(module: torch.nn.Module, autocast: torch.dtype | None, *, scaled: bool) -> None:
    """See that the weights of a module are of a type that the precision of a run is for.

    Args:
        module: What is trained.
        autocast: The dtype of torch's autocast; None for no autocast.
        scaled: Whether the loss is scaled.

    Warns:
        UserWarning: weights are float64, which torch's autocast leaves as they are.

    Raises:
        ConfigurationError: the loss is scaled and weights in training are float16 already.
    """
    if autocast is None:
        return
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if scaled and (half := [name for name, p in trained if p.dtype == torch.float16]):
        raise ConfigurationError(
            f"precision='float16' computes in half precision with weights of float32, and '{half[0]}' is float16, so "
            "that its gradient cannot be scaled: call module.float() before the run"
        )
    if double := [name for name, p in trained if p.dtype == torch.float64]:
        every = "" if len(double) == len(trained) else " where such weights are used"
        word = str(autocast).removeprefix("torch.")
        warn(
            f"precision='{word}' has no effect{every}: '{double[0]}' is float64, which torch's autocast leaves alone: "
            "call module.float() before the run, or leave precision out"
        )
