"""MXNet's learning-rate schedulers as our schedules.

num_update, the argument of MXNet's schedulers, is 1 for the first update; our step is one less.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from descend.arguments import is_finite
from descend.compat.translation import call
from descend.errors import RuleError, nearest
from descend.optim.schedules import (
    Constant,
    Cosine,
    Joined,
    LargeBatchWarmup,
    MultiStep,
    Polynomial,
    Ramp,
    Schedule,
    Shifted,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SCHEDULERS", "scheduler"]


def _warm(then: Schedule, begin: float, peak: float, steps: int, mode: str) -> Schedule:
    """`then` after MXNet's warm-up of `steps` updates, both already in our steps."""
    if mode not in ("linear", "constant"):
        raise RuleError(f"warmup_mode must be linear or constant, got {mode!r}{nearest(mode, ('linear', 'constant'))}")
    if begin > peak:
        raise RuleError(f"warmup_begin_lr {begin} is above base_lr {peak}")
    if steps == 0:
        return then
    rising = Ramp(begin, peak, steps) if mode == "linear" else Constant(begin)
    return Joined(Shifted(rising, 1), then, steps - 1)


def _factor(
    step: int,
    factor: float = 1.0,
    stop_factor_lr: float = 1e-8,
    base_lr: float = 0.01,
    warmup_steps: int = 0,
    warmup_begin_lr: float = 0.0,
    warmup_mode: str = "linear",
    optimizer_learning_rate: float | None = None,
) -> Schedule:
    if factor > 1:
        raise RuleError(f"factor must be a number <= 1, got {factor!r}")
    start = base_lr if optimizer_learning_rate is None else optimizer_learning_rate
    falling = Step(start, step, factor, stop_factor_lr)
    return _warm(falling, warmup_begin_lr, base_lr, warmup_steps, warmup_mode)


def _multi_factor(
    step: Sequence[int],
    factor: float = 1.0,
    base_lr: float = 0.01,
    warmup_steps: int = 0,
    warmup_begin_lr: float = 0.0,
    warmup_mode: str = "linear",
    optimizer_learning_rate: float | None = None,
) -> Schedule:
    if factor > 1 or any(at < 1 for at in step):
        raise RuleError(
            f"factor must be a number <= 1, got {factor!r}; every step must be an integer >= 1, got {step!r}"
        )
    start = base_lr if optimizer_learning_rate is None else optimizer_learning_rate
    after = tuple(math.floor(at) for at in step)  # the first num_update above 2.5 is 3, our step 2
    return _warm(MultiStep(start, after, factor), warmup_begin_lr, base_lr, warmup_steps, warmup_mode)


def _after_warmup(title: str, max_update: int, warmup_steps: int) -> int:
    """Updates of the fall; below 0 where the warm-up ends after it, and MXNet stays at the full rate."""
    if max_update < 1:
        raise RuleError(f"{title}: max_update must be an integer >= 1, got {max_update!r}")
    if max_update == warmup_steps:
        raise RuleError(
            f"{title}: the warm-up of {warmup_steps} updates leaves none of max_update={max_update}, and MXNet divides "
            "by that; give a larger max_update"
        )
    return max_update - warmup_steps


def _poly(
    max_update: int,
    base_lr: float = 0.01,
    pwr: float = 2,
    final_lr: float = 0.0,
    warmup_steps: int = 0,
    warmup_begin_lr: float = 0.0,
    warmup_mode: str = "linear",
    optimizer_learning_rate: float | None = None,
) -> Schedule:
    # MXNet announces that the optimizer's rate replaces base_lr; this schedule continues with the one it was made with.
    steps = _after_warmup("PolyScheduler", max_update, warmup_steps)
    if pwr < 0:
        raise RuleError(f"PolyScheduler: pwr must be a number >= 0, got {pwr!r}: below it the last rate is infinite")
    if steps < 0:
        falling = Constant(base_lr if optimizer_learning_rate is None else optimizer_learning_rate)
    elif pwr == 0:
        falling = Constant(base_lr)  # 0⁰ is 1, so it never ends
    else:
        falling = Shifted(Polynomial(base_lr, steps, final_lr, pwr), 1 - warmup_steps)
    return _warm(falling, warmup_begin_lr, base_lr, warmup_steps, warmup_mode)


def _cosine(
    max_update: int,
    base_lr: float = 0.01,
    final_lr: float = 0.0,
    warmup_steps: int = 0,
    warmup_begin_lr: float = 0.0,
    warmup_mode: str = "linear",
    optimizer_learning_rate: float | None = None,
) -> Schedule:
    steps = _after_warmup("CosineScheduler", max_update, warmup_steps)
    if steps < 0:
        falling = Constant(base_lr if optimizer_learning_rate is None else optimizer_learning_rate)
    else:
        falling = Shifted(Cosine(base_lr, steps, final_lr), 1 - warmup_steps)
    return _warm(falling, warmup_begin_lr, base_lr, warmup_steps, warmup_mode)


def _lbsgd(
    warmup_strategy: str = "linear",
    warmup_epochs: float = 5,
    batch_scale: float = 1,
    updates_per_epoch: int = 32,
    begin_epoch: int = 0,
    num_epochs: int = 60,
) -> Schedule:
    known: dict[str, Any] = {"linear": "linear", "power2": "power2", "sqrt": "sqrt"}
    factor = LargeBatchWarmup(batch_scale, warmup_epochs * updates_per_epoch, known.get(warmup_strategy, "jump"))
    return Shifted(factor, begin_epoch * updates_per_epoch) if begin_epoch else factor


WHOLE = ("max_update", "warmup_steps", "updates_per_epoch", "begin_epoch", "num_epochs")  # MXNet insists on integers
WORDS = ("warmup_mode", "warmup_strategy")


def _check_argument(title: str, key: str, value: object) -> None:
    """Refuse an argument of another kind than MXNet's."""
    if key in WORDS:
        return
    if title == "MultiFactorScheduler" and key == "step":
        if not isinstance(value, (list, tuple)) or not value or not all(map(is_finite, value)):
            raise RuleError(f"{title}: step must be a list of at least one number, got {value!r}")
    elif key in WHOLE and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise RuleError(f"{title}: {key} must be an integer >= 0, got {value!r}")
    elif not (is_finite(value) or (key == "optimizer_learning_rate" and value is None)):
        raise RuleError(f"{title}: {key} must be a number, got {value!r}")


SCHEDULERS: dict[str, Callable[..., Schedule]] = {
    "FactorScheduler": _factor,
    "MultiFactorScheduler": _multi_factor,
    "PolyScheduler": _poly,
    "CosineScheduler": _cosine,
    "LBSGD": _lbsgd,
}


def scheduler(name: str, **arguments: Any) -> Schedule:
    """MXNet's scheduler of this name; its rate for num_update n is that of our step n − 1.

    Args:
        name: FactorScheduler, MultiFactorScheduler, PolyScheduler or CosineScheduler; LBSGD for its factor.
        arguments: MXNet's, and `optimizer_learning_rate`, the rate of an optimizer that it was attached to.

    Raises:
        RuleError: The name or an argument is unknown, or a value is one that MXNet refuses.
    """
    if name not in SCHEDULERS:
        raise RuleError(
            f"MXNet has no scheduler '{name}'{nearest(name, SCHEDULERS) or ';'} It has {', '.join(SCHEDULERS)}"
        )
    for key, value in arguments.items():
        if key in inspect.signature(SCHEDULERS[name]).parameters:
            _check_argument(name, key, value)
    return call(f"MXNet's {name}", SCHEDULERS[name], arguments)
