"""Stopping criteria: values that combine, give the reason for stopping as a sentence, and have a text form.

    Epochs(10) | Seconds(3600) | Reached("validation/accuracy", 0.9)      whichever comes first
    Epochs(5) & Reached("validation/objective", 0.3)                      once both hold

The text form is LBANN's message `SGD.TerminationCriteria` with its three limits, and our own fields for all others:
`Limits` and the classes beside it hold these fields, `limits_of` and `stop_of` convert.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from descend.arguments import check_bool, check_integer, check_number, check_string, require
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError
from descend.train.metric_direction import direction_of, unknown_direction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.progress import Progress

__all__ = [
    "AllOf",
    "AllOfLimits",
    "AnyOf",
    "AnyOfLimits",
    "Epochs",
    "Limit",
    "Limits",
    "Reached",
    "ReachedLimit",
    "Seconds",
    "SecondsPerRun",
    "Steps",
    "Stop",
    "limit_of",
    "limits_of",
    "stop_of",
    "whole",
]


class Stop(metaclass=StrictKeywords):
    """A stopping criterion."""

    def reason(self, at: Progress) -> str | None:
        """The sentence for the log if the run must end at `at`, else None."""
        raise NotImplementedError(f"{type(self).__name__} defines no reason()")

    def check(self) -> None:
        """Refuse a criterion that could not decide; called before anything runs.

        Raises:
            ConfigurationError: such as a metric of which it is not known whether lower is better.
        """

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the recorded values that it depends on."""
        return ()

    @property
    def ends_within_epoch(self) -> bool:
        """Whether it may end a run between two steps of an epoch. Where it never does, `reason` is asked between epochs
        alone, and a step takes less time."""
        return True

    def __or__(self, other: Stop) -> AnyOf:
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __and__(self, other: Stop) -> AllOf:
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))


def _parts(stop: Stop, kind: type[AnyOf] | type[AllOf]) -> tuple[Stop, ...]:
    return stop.criteria if isinstance(stop, kind) else (stop,)


def whole(value: Any) -> Any:
    """An integer of NumPy or torch as a Python int; anything else unchanged."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _set_count(stop: Stop, name: str) -> None:
    value = whole(getattr(stop, name))
    object.__setattr__(stop, name, value)
    require(check_integer(name, value, minimum=0), where=type(stop).__name__)


def _check_duration(stop: Stop, value: object) -> None:
    require(check_number("seconds", value, at_least=0), where=type(stop).__name__)


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
    """Stop after `epochs` complete epochs; 0 makes no update, says so, and evaluates validation and test samples."""

    epochs: int

    def __post_init__(self) -> None:
        _set_count(self, "epochs")

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        return f"finished {at.epoch:,} of {self.epochs:,} epochs" if at.epoch >= self.epochs else None

    @property
    def ends_within_epoch(self) -> bool:
        """See `Stop.ends_within_epoch`; a class derived from this one may decide by something else."""
        return type(self).reason is not Epochs.reason


@dataclass(frozen=True)
class Seconds(Stop):
    """Stop after `seconds` of training time on the monotonic clock, summed over all restarts of the run.

    Training time is the time of steps including their callbacks. Evaluations do not count, nor does the time a
    machine is suspended.
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
    """Stop early enough that this process ends the run within `seconds`, whatever earlier restarts took.

    Measured on the monotonic clock from the start of the run in this process, evaluations and saves included; the
    time a machine is suspended does not count. The time kept back is twice the longest save, one step and the
    evaluations, as measured so far.
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
    """Stop when a recorded value has reached `value`.

        Reached("train/objective", 0.1)                   an objective falls to 0.1
        Reached("validation/accuracy", 0.9)               an accuracy rises to 0.9
        Reached("validation/score", 12.0, at_most=True)   a metric of your own must say which

    Args:
        name: "mode/quantity" such as "validation/accuracy"; without a mode, validation if it is recorded, else train.
        value: The target.
        at_most: True stops at a value <= the target, False at a value >= the target. None takes the direction in which
            the metric gets better, from its name: down for an objective, a loss or an error, up for an accuracy and the
            like; see `descend.train.metric_direction`.

    Raises:
        ConfigurationError: the target is not a finite number.
    """

    said_instead: ClassVar[Mapping[str, str]] = {
        "mode": "say at_most=True to stop at a value <= the target, at_most=False at one >= it",
        "lower_is_better": "say at_most=True to stop at a value <= the target",
    }

    name: str
    value: float
    at_most: bool | None = None

    def __post_init__(self) -> None:
        where = f"Reached({self.name!r})"
        require(
            check_string("name", self.name, empty=False),
            check_number("value", self.value),
            check_bool("at_most", self.at_most, also=(None,)),
            where=where,
        )
        direction = direction_of(self.name)
        if self.at_most is None and direction is not None:
            object.__setattr__(self, "at_most", direction == "min")

    def check(self) -> None:
        """See `Stop.check`."""
        if self.at_most is None:
            say = "pass at_most=True to stop at a value <= the target, or at_most=False to stop at a value >= it"
            raise ConfigurationError(unknown_direction(f"Reached({self.name!r})", self.name, say))

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
        self.check()
        seen = at.values[name]
        met = seen <= self.value if self.at_most else seen >= self.value
        return f"{name} reached {seen:.6g}, the target being {self.value:g}" if met else None


@dataclass(frozen=True)
class AnyOf(Stop):
    """Stop when the first of several criteria is met."""

    criteria: tuple[Stop, ...]

    def check(self) -> None:
        """See `Stop.check`."""
        for stop in self.criteria:
            stop.check()

    @property
    def awaited(self) -> tuple[str, ...]:
        """See `Stop.awaited`."""
        return tuple(name for stop in self.criteria for name in stop.awaited)

    @property
    def ends_within_epoch(self) -> bool:
        """See `Stop.ends_within_epoch`."""
        return any(stop.ends_within_epoch for stop in self.criteria)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        return next((reason for stop in self.criteria if (reason := stop.reason(at))), None)


@dataclass(frozen=True)
class AllOf(Stop):
    """Stop when all of several criteria are met at once."""

    criteria: tuple[Stop, ...]

    def check(self) -> None:
        """See `Stop.check`."""
        for stop in self.criteria:
            stop.check()

    @property
    def awaited(self) -> tuple[str, ...]:
        """See `Stop.awaited`."""
        return tuple(name for stop in self.criteria for name in stop.awaited)

    @property
    def ends_within_epoch(self) -> bool:
        """See `Stop.ends_within_epoch`."""
        return any(stop.ends_within_epoch for stop in self.criteria)

    def reason(self, at: Progress) -> str | None:
        """See `Stop.reason`."""
        reasons = [stop.reason(at) for stop in self.criteria]
        return " and ".join(reason for reason in reasons if reason) if all(reasons) else None


class Limit(NamedTuple):
    """How far a run goes at most.

    Attributes:
        steps: Updates; None where that is not known.
        epochs: Complete epochs; likewise.
    """

    steps: int | None = None
    epochs: int | None = None


def limit_of(stop: Stop) -> Limit:
    """How far a run goes at most by a criterion; classes of a user's own are not known."""
    if type(stop) is Steps:
        return Limit(steps=stop.steps)
    if type(stop) is Epochs:
        return Limit(epochs=stop.epochs)
    if type(stop) in (Seconds, SecondsPerRun):
        return Limit() if cast("Seconds", stop).seconds else Limit(steps=0)
    if type(stop) not in (AnyOf, AllOf):
        return Limit()
    parts = [limit_of(part) for part in cast("AnyOf | AllOf", stop).criteria]
    if type(stop) is AnyOf:
        return Limit(*(min((n for n in of_all if n is not None), default=None) for of_all in zip(*parts, strict=True)))
    return Limit(*(max(of_all) if None not in of_all else None for of_all in zip(*parts, strict=True)))


@dataclass(frozen=True)
class AnyOfLimits:
    """Text form of `AnyOf`; our own addition to LBANN's message. A limit of 0 is not set."""

    message: ClassVar[str] = "SGD.TerminationCriteria.AnyOf"

    max_batches: int = 0
    max_epochs: int = 0
    max_seconds: float = 0.0
    criterion: tuple[Limits, ...] = ()


@dataclass(frozen=True)
class AllOfLimits:
    """Text form of `AllOf`; our own."""

    message: ClassVar[str] = "SGD.TerminationCriteria.AllOf"

    criterion: tuple[Limits, ...] = ()


@dataclass(frozen=True)
class ReachedLimit:
    """Text form of `Reached`; our own. Without `at_most` the value must rise to the target, whatever its name."""

    message: ClassVar[str] = "SGD.TerminationCriteria.Reached"

    name: str = ""
    value: float = 0.0
    at_most: bool = False


@dataclass(frozen=True)
class Limits:
    """Text form of one criterion: one of LBANN's three limits, or one of our own."""

    message: ClassVar[str] = "SGD.TerminationCriteria"

    max_batches: int | None = None
    max_epochs: int | None = None
    max_seconds: float | None = None
    any_of: AnyOfLimits | None = None
    all_of: AllOfLimits | None = None
    reached: ReachedLimit | None = None
    max_seconds_per_run: float | None = None


def limits_of(stop: Stop) -> Limits:
    """The text form of a criterion.

    Raises:
        ConfigurationError: a class of the user's own, or a criterion that could not decide.
    """
    stop.check()
    match stop:
        case Steps(steps):
            return Limits(max_batches=steps)
        case Epochs(epochs):
            return Limits(max_epochs=epochs)
        case Seconds(seconds):
            return Limits(max_seconds=seconds)
        case SecondsPerRun(seconds):
            return Limits(max_seconds_per_run=seconds)
        case Reached(name, value, at_most):
            return Limits(reached=ReachedLimit(name, value, bool(at_most)))
        case AnyOf(criteria):
            return Limits(any_of=AnyOfLimits(criterion=tuple(map(limits_of, criteria))))
        case AllOf(criteria):
            return Limits(all_of=AllOfLimits(tuple(map(limits_of, criteria))))
        case _:
            raise ConfigurationError(f"the criterion {stop!r} has no text form; those of descend.train have one")


def stop_of(limits: Limits) -> Stop:
    """The criterion of its text form.

    Raises:
        ConfigurationError: a part of it sets no limit.
    """
    found: list[Stop] = []
    if limits.max_batches is not None:
        found.append(Steps(limits.max_batches))
    if limits.max_epochs is not None:
        found.append(Epochs(limits.max_epochs))
    if limits.max_seconds is not None:
        found.append(Seconds(limits.max_seconds))
    if limits.max_seconds_per_run is not None:
        found.append(SecondsPerRun(limits.max_seconds_per_run))
    if limits.reached is not None:
        found.append(Reached(limits.reached.name, limits.reached.value, limits.reached.at_most))
    if limits.any_of is not None:
        found.append(AnyOf((*_set(limits.any_of), *map(stop_of, limits.any_of.criterion))))
    if limits.all_of is not None:
        found.append(AllOf(tuple(map(stop_of, limits.all_of.criterion))))
    if len(found) != 1 or (isinstance(found[0], (AnyOf, AllOf)) and not found[0].criteria):
        raise ConfigurationError("stopping_criteria: a criterion sets no limit; set one of its fields")
    return found[0]


def _set(limits: AnyOfLimits) -> list[Stop]:
    """The three limits that are not 0."""
    all_three = (Steps(limits.max_batches), Epochs(limits.max_epochs), Seconds(limits.max_seconds))
    values = (limits.max_batches, limits.max_epochs, limits.max_seconds)
    return [stop for stop, value in zip(all_three, values, strict=True) if value]
