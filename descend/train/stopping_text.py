"""Stopping criteria as a text has them: LBANN's three limits, and our own forms of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from descend.errors import ConfigurationError
from descend.train.stopping import AllOf, AnyOf, Epochs, Reached, Seconds, SecondsPerRun, Steps, Stop

__all__ = ["AllOfLimits", "AnyOfLimits", "Limits", "ReachedLimit", "limits_of", "stop_of"]


@dataclass(frozen=True)
class AnyOfLimits:
    """Several criteria of which the first one met ends the run; our own addition to LBANN's message."""

    message: ClassVar[str] = "SGD.TerminationCriteria.AnyOf"

    max_batches: int = 0
    max_epochs: int = 0
    max_seconds: float = 0.0
    criterion: tuple[Limits, ...] = ()


@dataclass(frozen=True)
class AllOfLimits:
    """Several criteria that all have to be met; our own."""

    message: ClassVar[str] = "SGD.TerminationCriteria.AllOf"

    criterion: tuple[Limits, ...] = ()


@dataclass(frozen=True)
class ReachedLimit:
    """A recorded value that has come to a target; our own."""

    message: ClassVar[str] = "SGD.TerminationCriteria.Reached"

    name: str = ""
    value: float = 0.0
    at_most: bool = False


@dataclass(frozen=True)
class Limits:
    """One criterion: one of LBANN's three, or one of ours."""

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
        ConfigurationError: it is of a class of the user's own.
    """
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
            return Limits(reached=ReachedLimit(name, value, at_most))
        case AnyOf(criteria):
            return Limits(any_of=AnyOfLimits(criterion=tuple(map(limits_of, criteria))))
        case AllOf(criteria):
            return Limits(all_of=AllOfLimits(tuple(map(limits_of, criteria))))
        case _:
            raise ConfigurationError(f"the criterion {stop!r} has no text form; those of descend.train have one")


def stop_of(limits: Limits) -> Stop:
    """The criterion of a text.

    Raises:
        ConfigurationError: a part of it says nothing.
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
        raise ConfigurationError("stopping_criteria: a criterion says nothing; it needs one of the limits")
    return found[0]


def _set(limits: AnyOfLimits) -> list[Stop]:
    """The limits of which a zero is none."""
    all_three = (Steps(limits.max_batches), Epochs(limits.max_epochs), Seconds(limits.max_seconds))
    values = (limits.max_batches, limits.max_epochs, limits.max_seconds)
    return [stop for stop, value in zip(all_three, values, strict=True) if value]
