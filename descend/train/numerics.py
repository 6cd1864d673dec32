"""What keeps an update sound: the scale of the loss, a look for values that are not finite, and clipping.

In the order of a step: `scaled` before the backward pass; `unscale` after it, and then the division by the denominator;
`faulty`; `clip`; `step`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_

from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Norms = Callable[[Mapping[str, torch.Tensor]], list[torch.Tensor]]

__all__ = ["BufferSnapshot", "Numerics"]


@dataclass
class Numerics:
    """How gradients are looked at and bounded before the optimizer sees them.

    Args:
        on_nonfinite: What a NaN or an infinity in a gradient does: "stop" ends the run, "skip" leaves the step out and
            ends the run after 10 in a row, "allow" does not look.
        clip_value: Bound on the magnitude of each element of a gradient.
        clip_norm: Bound on the Euclidean norm of each weight's gradient.
        clip_global_norm: Bound on the Euclidean norm of all gradients together.
        scaler: The loss scale of float16, torch's own; None for other types.

    Raises:
        ConfigurationError: a bound is not above 0, or the policy is unknown.
    """

    POLICIES: ClassVar[tuple[str, ...]] = ("stop", "skip", "allow")
    IN_A_ROW: ClassVar[int] = 10

    on_nonfinite: str = "stop"
    clip_value: float | None = None
    clip_norm: float | None = None
    clip_global_norm: float | None = None
    scaler: torch.amp.GradScaler | None = None

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.on_nonfinite not in self.POLICIES:
            options = ", ".join(f"'{policy}'" for policy in self.POLICIES)
            hint = nearest(str(self.on_nonfinite), self.POLICIES)
            problems.append(f"on_nonfinite is {self.on_nonfinite!r} and is to be one of {options}{hint}")
        for name in ("clip_value", "clip_norm", "clip_global_norm"):
            bound: Any = getattr(self, name)
            if bound is not None and not (isinstance(bound, (int, float)) and bound > 0):
                problems.append(f"{name} is {bound!r} and is to be a number above 0, or None for no bound")
        if problems:
            raise ConfigurationError(problems)

    def scaled(self, start: torch.Tensor) -> torch.Tensor:
        """What the backward pass starts from, times the scale of the loss."""
        return start if self.scaler is None else self.scaler.scale(start)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the scale out of the gradients again."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def nonfinite_parameters(self, weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Names of the weights whose gradient is not finite. Waits for the device, once.

        The sum of all elements shows a NaN or an infinity in a twentieth of the time of a norm; what overflows in the
        sum alone is cleared by looking at each element.
        """
        unseen = self.on_nonfinite == "allow" and self.scaler is None
        if unseen or math.isfinite(abs(_total(weights.values()))):
            return []
        return [name for name, gradient in _gradients(weights) if not bool(torch.isfinite(gradient).all())]

    def clip(self, weights: Mapping[str, torch.Tensor], norms: Norms | None = None) -> None:
        """Bound the gradients.

        Args:
            weights: By name.
            norms: What finds the norm of each gradient where `weights` are parts of what is cut up among ranks.
        """
        if self.clip_value is self.clip_norm is self.clip_global_norm is None:
            return
        named = {name: p for name, p in weights.items() if p.grad is not None}
        if any(_has_rows(p) for p in named.values()):
            named = {name: _rows_of(p) for name, p in named.items()}
        parameters = list(named.values())
        if self.clip_value is not None:
            clip_grad_value_(parameters, self.clip_value)
        if norms is not None:
            self._clip_by(lambda: norms(named), parameters)
            return
        if self.clip_norm is not None:
            for p in parameters:
                clip_grad_norm_([p], self.clip_norm)
        if self.clip_global_norm is not None:
            clip_grad_norm_(parameters, self.clip_global_norm)

    def _clip_by(self, norms: Callable[[], list[torch.Tensor]], parameters: list[torch.Tensor]) -> None:
        """Bound norms that others have a part in; see `clip`."""
        if self.clip_norm is not None:
            for p, norm in zip(parameters, norms(), strict=True):
                clip_grads_with_norm_([p], self.clip_norm, norm)
        if self.clip_global_norm is not None and parameters:
            total = torch.linalg.vector_norm(torch.stack(norms()))
            clip_grads_with_norm_(parameters, self.clip_global_norm, total)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """One update by gradients that have been unscaled.

        Raises:
            ConfigurationError: a learning rate is negative or not finite, as a schedule may have made it; or the
                optimizer does not take the gradients, which is found out in the first step.
        """
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if type(rate) is float and not 0.0 <= rate < math.inf:
                raise ConfigurationError(
                    f"the learning rate of group {number} has become {rate!r} and is to be finite and at least 0: look "
                    "at what sets it"
                )
        try:
            if self.scaler is None:
                _step_of(optimizer)()
            else:
                self.scaler.step(optimizer)
                self.scaler.update()
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

    def lower_scale(self) -> bool:
        """Answer gradients that overflowed with a smaller scale; False where the scale is not to blame."""
        if self.scaler is None or self.scaler.get_scale() <= 1:
            return False
        self.scaler.update()
        return True

    def keep_scale(self) -> None:
        """Leave a step out for which the scale is not to blame: it stays, and torch is told that the step is over."""
        if self.scaler is not None:
            self.scaler.update(self.scaler.get_scale())


def _step_of(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The step of an optimizer; where no hook and no profiler listens, without the record that torch opens for them."""
    step: Any = type(optimizer).step
    listened = (
        optimizer._optimizer_step_pre_hooks  # pyright: ignore[reportPrivateUsage]  # what the wrapper looks at
        or optimizer._optimizer_step_post_hooks  # pyright: ignore[reportPrivateUsage]  # as above
        or _HOOKS["_global_optimizer_pre_hooks"]
        or _HOOKS["_global_optimizer_post_hooks"]
        or torch.autograd.profiler._is_profiler_enabled  # pyright: ignore[reportPrivateUsage]  # as above
    )
    if listened or "step" in vars(optimizer) or not _is_wrapped_by_torch(step):
        return optimizer.step
    return partial(step.__wrapped__, optimizer)


def _is_wrapped_by_torch(step: Any) -> bool:
    """Whether a method is what torch's optimizers put around the `step` of their class."""
    return getattr(step, "__code__", None) is _WRAPPER and hasattr(step, "__wrapped__")


# The code of the wrapper, whatever it wraps.
_WRAPPER = torch.optim.Optimizer.profile_hook_step(lambda self: None).__code__
_HOOKS = vars(sys.modules[torch.optim.Optimizer.__module__])


def _rows_of(p: torch.Tensor) -> torch.Tensor:
    """Of weights with a sparse gradient, a stand-in whose gradient is the rows that it has, repeated ones summed once.

    The values share their memory with the gradient, so what is clipped there is clipped.
    """
    if p.grad is None or not p.grad.is_sparse:
        return p
    p.grad = p.grad.coalesce()
    rows = p.grad.values()
    stand_in = torch.empty_like(rows)
    stand_in.grad = rows
    return stand_in


def _sparse(optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the weights with a sparse gradient."""
    found: list[str] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [f"weights {i}" for i in range(len(group["params"]))]
        found += [f"'{name}'" for name, p in zip(names, group["params"], strict=True) if _has_rows(p)]
    return found


def _has_rows(p: torch.Tensor) -> bool:
    return p.grad is not None and p.grad.is_sparse


def _total(weights: Iterable[torch.Tensor]) -> complex:
    """The sum of all elements of all gradients. What lies on a device is read once; to read a number on a CPU takes
    less time than to add two there."""
    total, elsewhere = 0.0, list[torch.Tensor]()
    for p in weights:
        gradient = p.grad
        if gradient is None:
            continue
        if gradient.is_cpu:
            total += gradient.sum().item()
        else:
            elsewhere.append(gradient.sum())
    return total + torch.stack(elsewhere).sum().item() if elsewhere else total


def _gradients(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The gradients that are there; of a sparse one, the values of the rows that it has."""
    for name, p in weights.items():
        if p.grad is not None:
            yield name, p.grad.coalesce().values() if p.grad.is_sparse else p.grad


class BufferSnapshot:
    """The buffers of a module as they were before a step, so that a step that is left out leaves no trace in them.

    All are copied before each forward pass. Torch's count of writes to a tensor does not tell which ones are needed:
    its batch norm writes to running statistics without counting.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._owners = [part for part in module.modules() if any(True for _ in part.buffers(recurse=False))]
        self._kept: dict[tuple[torch.nn.Module, str], torch.Tensor] = {}

    def keep(self) -> None:
        """Remember what all buffers hold now."""
        if self._owners:
            self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        for place, buffer in self._buffers():
            copy = self._kept.get(place)
            if copy is None or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                self._kept[place] = buffer.detach().clone()
            else:
                copy.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Give all buffers what they held at `keep`."""
        for place, buffer in self._buffers():
            if place in self._kept:
                buffer.copy_(self._kept[place])

    def _buffers(self) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
        """All buffers that are there now; a module may put another tensor in the place of one."""
        for part in self._owners:
            for name, buffer in part.named_buffers(recurse=False):
                yield (part, name), buffer
