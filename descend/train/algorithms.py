"""Training algorithms as values: what to do with a session until it is done.

An algorithm is described by plain fields, so it can be written to a prototext; `apply` brings in the loop, and torch
with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.train.stopping import AnyOf, Epochs, Seconds, Steps, Stop

if TYPE_CHECKING:
    from descend.train.loop import Session

__all__ = ["SGD", "BatchedIterativeOptimizer", "TrainingAlgorithm"]


class TrainingAlgorithm:
    """What is done with a model and its data. Algorithms can be parts of one another."""

    name: str

    def apply(self, session: Session) -> str:
        """Train, and return the reason for having stopped."""
        raise NotImplementedError(f"{type(self).__name__} defines no apply()")

    def epochs(self, default: int) -> int | None:
        """How many passes are planned, where that is known; `default` is the model's own number of epochs."""
        return default


@dataclass(frozen=True)
class BatchedIterativeOptimizer(TrainingAlgorithm):
    """Mini-batch descent: gradient of one mini-batch, one update, until the first limit that is met.

    Which rule makes the updates is not said here: it belongs to the weights, with a default for those without one.

    Args:
        name: A name for this algorithm in logs.
        num_iterations: Stop after so many mini-batches; 0 sets no such limit.
        epoch_count: Stop after so many passes; 0 sets no such limit.
        max_seconds: Stop after so much training time; 0 sets no such limit.
        stop: A criterion of any form instead of the three; it has no prototext form.

    Raises:
        ConfigurationError: a limit is negative or of a wrong type.

    Source: LBANN's BatchedIterativeOptimizer. Its three limits are one oneof in LBANN's own message, where only the
    last one set survives; here all that are set hold, and the first one met ends the run, as LBANN's documents promise.
    """

    name: str = "batched iterative optimizer"
    num_iterations: int = 0
    epoch_count: int = 0
    max_seconds: float = 0.0
    stop: Stop | None = None

    def __post_init__(self) -> None:
        self.stopping()  # finds a wrong limit now rather than in the run

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

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        criterion = self.stopping(default)
        parts = criterion.criteria if isinstance(criterion, AnyOf) else (criterion,)
        return next((part.epochs for part in parts if isinstance(part, Epochs)), None)

    def apply(self, session: Session) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.loop import train  # torch comes in here, not when a description is read

        return train(session, self.stopping(session.epochs or 0))


SGD = BatchedIterativeOptimizer  # LBANN's other name for it
