"""When to stop, and why: criteria are values that combine and answer with their reason.

Epochs(10) | Seconds(3600) | Reached("validation/accuracy", 0.9)      whichever comes first
Epochs(5) & Reached("validation/objective", 0.3, at_most=True)        not before both hold
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from descend.train.progress import Progress

__all__ = ["AllOf", "AnyOf", "Epochs", "Reached", "Seconds", "SecondsPerRun", "Steps", "Stop", "whole"]


class Stop:
    """A stopping criterion."""

    def reason(self, at: Progress) -> str | None:
        """The sentence for the log if the run is to end at `at`, else None."""
        raise NotImplementedError(f"{type(self).__name__} defines no reason()")

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the recorded values that it waits for."""
        return ()

    def __or__(self, other: Stop) -> AnyOf:
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __and__(self, other: Stop) -> AllOf:
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))


def _parts(stop: Stop, kind: type[AnyOf] | type[AllOf]) -> tuple[Stop, ...]:
    return stop.criteria if isinstance(stop, kind) else (stop,)


def whole(value: Any) -> Any:
    """A whole number of NumPy or torch as Python's own; anything else as it is."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _set_count(stop: Stop, name: str) -> None:
    value = whole(getattr(stop, name))
    object.__setattr__(stop, name, value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{type(stop).__name__}: {name} must be a whole number of at least 0 and is {value!r}")


def _check_duration(stop: Stop, value: object) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if not good:
        raise ConfigurationError(f"{type(stop).__name__}: seconds must be finite and at least 0 and is {value!r}")


@dataclass(frozen=True)
class Steps(Stop):
    """Stop once `steps` updates have been applied."""

    steps: int

    def __post_init__(self) -> None:
        _set_count(self, "steps")

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        return f"applied {at.step:,} of {self.steps:,} updates" if at.step >= self.steps else None


@dataclass(frozen=True)
class Epochs(Stop):
    """Stop after `epochs` whole passes over the training samples; 0 evaluates only."""

    epochs: int

    def __post_init__(self) -> None:
        _set_count(self, "epochs")

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        return f"finished {at.epoch:,} of {self.epochs:,} epochs" if at.epoch >= self.epochs else None


@dataclass(frozen=True)
class Seconds(Stop):
    """Stop after `seconds` of training time by the monotonic clock, counted over all restarts of the run.

    Training time is that of steps, callbacks included; evaluations are not counted, nor the time that a suspended
    machine sleeps.
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_duration(self, self.seconds)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        done = at.seconds >= self.seconds
        return f"trained for {at.seconds:.1f} of {self.seconds:g} seconds" if done else None


@dataclass(frozen=True)
class SecondsPerRun(Stop):
    """Stop so early that this process has ended the run within `seconds`, however long the run was before a restart.

    Counted by the monotonic clock from the beginning of the run in this process, evaluations and saves included; the
    time that a suspended machine sleeps is not. What is left then is for twice the longest save, one step and the
    evaluations, as they were measured.
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_duration(self, self.seconds)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        if at.seconds_this_run + at.seconds_to_end < self.seconds:
            return None
        return (
            f"ran for {at.seconds_this_run:.1f} of {self.seconds:g} seconds in this process, {at.seconds_to_end:.1f} "
            "being kept to save and to evaluate"
        )


@dataclass(frozen=True)
class Reached(Stop):
    """Stop when a recorded value has come to `value`.

    Args:
        name: "mode/quantity" such as "validation/accuracy"; without a mode, validation if it is recorded, else train.
        value: The target.
        at_most: Reached from above, as an objective is; otherwise from below, as an accuracy is.
    """

    name: str
    value: float
    at_most: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigurationError(f"Reached('{self.name}'): the target must be finite and is {self.value!r}")

    @property
    def awaited(self) -> tuple[str, ...]:
        """See `Stop.awaited`."""
        return (self.name,)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        names = [self.name] if "/" in self.name else [f"validation/{self.name}", f"train/{self.name}"]
        name = next((name for name in names if name in at.values), None)
        if name is None:
            return None
        seen = at.values[name]
        met = seen <= self.value if self.at_most else seen >= self.value
        return f"{name} reached {seen:.6g}, the target being {self.value:g}" if met else None


@dataclass(frozen=True)
class AnyOf(Stop):
    """Stop when the first of several criteria is met."""

    criteria: tuple[Stop, ...]

    @property
    def awaited(self) -> tuple[str, ...]:
        """See `Stop.awaited`."""
        return tuple(name for stop in self.criteria for name in stop.awaited)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        return next((reason for stop in self.criteria if (reason := stop.reason(at))), None)


@dataclass(frozen=True)
class AllOf(Stop):
    """Stop when all of several criteria are met at once."""

    criteria: tuple[Stop, ...]

    @property
    def awaited(self) -> tuple[str, ...]:
        """See `Stop.awaited`."""
        return tuple(name for stop in self.criteria for name in stop.awaited)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        reasons = [stop.reason(at) for stop in self.criteria]
        return " and ".join(reason for reason in reasons if reason) if all(reasons) else None
