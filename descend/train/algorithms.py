"""Training algorithms as values: mini-batch descent, and the base class of K-FAC, LTFB and batched inference.

An algorithm is described by plain fields, so it can be written to a prototext. `apply` runs it; only then are the
training loop and torch imported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_instance, require
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError
from descend.train.stopping import (
    AnyOf,
    AnyOfLimits,
    Epochs,
    Limits,
    Seconds,
    Steps,
    Stop,
    limits_of,
    stop_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run

__all__ = ["SGD", "BatchedIterativeOptimizer", "TrainingAlgorithm"]


class TrainingAlgorithm(metaclass=StrictKeywords):
    """What a run does with its model and data. One algorithm can be a part of another.

    Attributes:
        trains: Whether it updates weights; if so, the test samples are evaluated after it.
    """

    trains: ClassVar[bool] = True

    name: str

    def apply(self, run: Run) -> str:
        """Run, and return the reason for stopping, a sentence."""
        raise NotImplementedError(f"{type(self).__name__} defines no apply()")

    def nested(self) -> tuple[TrainingAlgorithm, ...]:
        """This algorithm and those that it applies."""
        return (self,)

    def epochs(self, default: int) -> int | None:
        """How many epochs are planned; None if that is not known. `default` is the model's own number of epochs."""
        return default

    def criterion(self) -> Stop | None:
        """Its stopping criterion; None if it has none of its own."""
        return None

    def until(self, stop: Stop) -> TrainingAlgorithm:
        """The same algorithm with a stopping criterion.

        Raises:
            ConfigurationError: it already has one, or takes none.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no stop=; give the algorithm itself its limits")


@dataclass(frozen=True)
class BatchedIterativeOptimizer(TrainingAlgorithm):
    """Mini-batch descent: the gradient of one mini-batch, one update, until the first limit is met.

    The optimizer is not part of it: each weights has its own, or the default one.

    Args:
        name: A name for this algorithm in logs.
        num_iterations: Stop after this many mini-batches; 0 sets no limit.
        epoch_count: Stop after this many epochs; 0 sets no limit.
        max_seconds: Stop after this much training time in seconds; 0 sets no limit.
        stop: A criterion of any form, in place of the three.
        suppress_timer_output: Do not log the time this algorithm takes.

    Raises:
        ConfigurationError: a limit is negative or of a wrong type, or `stop` could not decide.

    Source: LBANN's BatchedIterativeOptimizer. In LBANN's own message its three limits are one oneof, of which only the
    last one set survives; here all limits that are set hold and the first one met ends the run, as LBANN's
    documentation says.
    """

    message: ClassVar[str] = "SGD"

    name: str = "batched iterative optimizer"
    num_iterations: int = 0
    epoch_count: int = 0
    max_seconds: float = 0.0
    stop: Stop | None = None
    suppress_timer_output: bool = False

    def __post_init__(self) -> None:
        self.stopping().check()  # reports a wrong limit now rather than in the run

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
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
        """The algorithm from the fields of its text form."""
        limits: Limits = fields.get("stopping_criteria") or Limits()
        name, quiet = fields.get("name", ""), fields.get("suppress_timer_output", False)
        found = limits.any_of or limits
        given = (found.max_batches or 0, found.max_epochs or 0, found.max_seconds or 0.0)
        if limits == Limits() or (any(given) and limits in _plain(*given)):
            return cls(name, *given, suppress_timer_output=quiet)
        return cls(name, stop=stop_of(limits), suppress_timer_output=quiet)

    def stopping(self, default_epochs: int = 0) -> Stop:
        """The criterion in force; the model's own number of epochs if no limit is set."""
        if self.stop is not None:
            require(check_instance("stop", self.stop, Stop, "a criterion such as descend.Epochs(10)"))
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
                f"algorithm '{self.name}' has limits of its own and got stop={stop!r} as well: leave out one of them"
            )
        return replace(self, stop=stop)

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        criterion = self.stopping(default)
        parts = criterion.criteria if isinstance(criterion, AnyOf) else (criterion,)
        return next((part.epochs for part in parts if isinstance(part, Epochs)), None)

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.loop import train  # imports torch, so not at module level

        return train(run, self.stopping(run.epochs or 0))


def _plain(steps: int, epochs: int, seconds: float) -> tuple[Limits, ...]:
    """The text forms that hold these limits and nothing else."""
    one = Limits(max_batches=steps or None, max_epochs=epochs or None, max_seconds=seconds or None)
    return (one, Limits(any_of=AnyOfLimits(steps, epochs, seconds)))


SGD = BatchedIterativeOptimizer  # LBANN's other name for it
