"""Training algorithms as values: what to do with a run until it is done.

An algorithm is described by plain fields, so it can be written to a prototext; `apply` brings in the loop, and torch
with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError
from descend.strict_keywords import StrictKeywords
from descend.train.stopping import AnyOf, Epochs, Seconds, Steps, Stop
from descend.train.stopping_text import AnyOfLimits, Limits, limits_of, stop_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run

__all__ = ["SGD", "BatchedIterativeOptimizer", "TrainingAlgorithm"]


class TrainingAlgorithm(metaclass=StrictKeywords):
    """What is done with a model and its data. Algorithms can be parts of one another.

    Attributes:
        trains: Whether it makes updates; then the test samples are evaluated after it.
    """

    trains: ClassVar[bool] = True

    name: str

    def apply(self, run: Run) -> str:
        """Train, and return the reason for having stopped."""
        raise NotImplementedError(f"{type(self).__name__} defines no apply()")

    def epochs(self, default: int) -> int | None:
        """How many passes are planned, where that is known; `default` is the model's own number of epochs."""
        return default

    def criterion(self) -> Stop | None:
        """What ends it, where that is a criterion of its own."""
        return None

    def until(self, stop: Stop) -> TrainingAlgorithm:
        """The same algorithm with a criterion for its end.

        Raises:
            ConfigurationError: it has one of its own.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no stop=; make its end a part of it")


@dataclass(frozen=True)
class BatchedIterativeOptimizer(TrainingAlgorithm):
    """Mini-batch descent: gradient of one mini-batch, one update, until the first limit that is met.

    Which rule makes the updates is not said here: it belongs to the weights, with a default for those without one.

    Args:
        name: A name for this algorithm in logs.
        num_iterations: Stop after so many mini-batches; 0 sets no such limit.
        epoch_count: Stop after so many passes; 0 sets no such limit.
        max_seconds: Stop after so much training time; 0 sets no such limit.
        stop: A criterion of any form instead of the three.
        suppress_timer_output: Leave out the times of this algorithm in logs.

    Raises:
        ConfigurationError: a limit is negative or of a wrong type.

    Source: LBANN's BatchedIterativeOptimizer. Its three limits are one oneof in LBANN's own message, where only the
    last one set survives; here all that are set hold, and the first one met ends the run, as LBANN's documents promise.
    """

    message: ClassVar[str] = "SGD"

    name: str = "batched iterative optimizer"
    num_iterations: int = 0
    epoch_count: int = 0
    max_seconds: float = 0.0
    stop: Stop | None = None
    suppress_timer_output: bool = False

    def __post_init__(self) -> None:
        self.stopping()  # finds a wrong limit now rather than in the run

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        steps, epochs, seconds = self.num_iterations, self.epoch_count, self.max_seconds
        limits = None
        if self.stop is not None:
            limits = limits_of(self.stop)
        elif bool(steps) + bool(epochs) + bool(seconds) > 1:
            limits = Limits(any_of=AnyOfLimits(steps, epochs, seconds))
        elif steps or epochs or seconds:
            limits = Limits(steps or None, epochs or None, seconds or None)
        return {
            "name": self.name,
            "stopping_criteria": limits,
            "suppress_timer_output": self.suppress_timer_output,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> BatchedIterativeOptimizer:
        """The algorithm from the fields of a text."""
        limits: Limits = fields.get("stopping_criteria") or Limits()
        name, quiet = fields.get("name", ""), fields.get("suppress_timer_output", False)
        found = limits.any_of or limits
        given = (found.max_batches or 0, found.max_epochs or 0, found.max_seconds or 0.0)
        if limits == Limits() or (any(given) and limits in _plain(*given)):
            return cls(name, *given, suppress_timer_output=quiet)
        return cls(name, stop=stop_of(limits), suppress_timer_output=quiet)

    def stopping(self, default_epochs: int = 0) -> Stop:
        """The criterion in force; without any limit, the model's own number of epochs."""
        if self.stop is not None:
            if not isinstance(self.stop, Stop):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
                raise ConfigurationError(f"stop= must be a criterion such as descend.Epochs(10) and is {self.stop!r}")
            return self.stop
        limits: list[Stop] = []
        if self.num_iterations:
            limits.append(Steps(self.num_iterations))
        if self.epoch_count:
            limits.append(Epochs(self.epoch_count))
        if self.max_seconds:
            limits.append(Seconds(self.max_seconds))
        return AnyOf(tuple(limits)) if limits else Epochs(default_epochs)

    def criterion(self) -> Stop | None:
        """See `TrainingAlgorithm.criterion`."""
        return self.stopping()

    def until(self, stop: Stop) -> BatchedIterativeOptimizer:
        """See `TrainingAlgorithm.until`."""
        if self.stop or self.num_iterations or self.epoch_count or self.max_seconds:
            raise ConfigurationError(
                f"algorithm '{self.name}' says by itself when to stop, and stop={stop!r} says it again; leave out one"
            )
        return replace(self, stop=stop)

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        criterion = self.stopping(default)
        parts = criterion.criteria if isinstance(criterion, AnyOf) else (criterion,)
        return next((part.epochs for part in parts if isinstance(part, Epochs)), None)

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.loop import train  # torch comes in here, not when a description is read

        return train(run, self.stopping(run.epochs or 0))


def _plain(steps: int, epochs: int, seconds: float) -> tuple[Limits, ...]:
    """The texts that say these limits and nothing else."""
    one = Limits(max_batches=steps or None, max_epochs=epochs or None, max_seconds=seconds or None)
    return (one, Limits(any_of=AnyOfLimits(steps, epochs, seconds)))


SGD = BatchedIterativeOptimizer  # LBANN's other name for it
