"""Description of a trainer: mini-batch size, seed, training algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_integer, require
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.algorithms import TrainingAlgorithm

__all__ = ["DataCoordinator", "Trainer"]

_READ_AS = {0: "DEFAULT_DATATYPE", 1: "FLOAT"}  # by their enum numbers; samples are float32


@dataclass
class DataCoordinator(metaclass=StrictKeywords):
    """LBANN's settings shared by all readers. Readers are independent here, so it is kept and has no effect.

    Args:
        datatype: Format of the samples; FLOAT, which is also what an unset one means.
        io_buffer: How LBANN distributes samples over ranks.

    Raises:
        ConfigurationError: another datatype.
    """

    message: ClassVar[str] = "DataCoordinator"

    datatype: int = 0
    io_buffer: str = ""

    def __post_init__(self) -> None:
        if self.datatype not in _READ_AS:
            raise ConfigurationError(
                f"DataCoordinator: datatype must be FLOAT, got {self.datatype}: leave it out and give layers a datatype"
            )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> DataCoordinator:
        """A coordinator from the fields of its text form."""
        return cls(**{name: value for name, value in fields.items() if name != "transforms"})


@dataclass
class TransformDataField(metaclass=StrictKeywords):
    """Transforms of a data coordinator, which are not supported.

    Raises:
        ConfigurationError: always.
    """

    message: ClassVar[str] = "TransformDataField"

    data_field: str = ""
    execution_phase: str = ""
    transforms: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        raise ConfigurationError(
            "transforms of a data coordinator are not supported: write them into the readers (reader { transforms "
            "{ ... } })"
        )


@dataclass
class Trainer(metaclass=StrictKeywords):
    """LBANN's trainer: how a model is trained.

    Args:
        mini_batch_size: Samples of one update, over all ranks.
        name: Name in logs; trainer0 if not given.
        random_seed: Seed of all random numbers of the run; 0 or None takes one from the clock, prints it and stores it
            in the run directory, so that the run can be repeated.
        serialize_io: Read in the training thread instead of prefetching.
        training_algo: The training algorithm; None is mini-batch descent for the model's number of epochs.
        callbacks: Callbacks of the trainer; in LBANN only the checkpoint is one.
        random_init_trainers_identically: With several trainers, initialize all of them with the same weights.
        data_coordinator: LBANN's settings shared by all readers; without effect here.
        micro_batch_size: Samples per forward pass; the updates do not depend on it. 0 starts with the whole mini-batch
            and halves it when memory runs out.

    Raises:
        ConfigurationError: a size is not an integer, or out of range, or the seed is not an integer >= 0.
    """

    message: ClassVar[str] = "Trainer"

    mini_batch_size: int
    name: str | None = None
    random_seed: int | None = None
    serialize_io: bool = False
    training_algo: TrainingAlgorithm | None = None
    callbacks: list[Any] = field(default_factory=list[Any])
    random_init_trainers_identically: bool = False
    hydrogen_block_size: int = 0  # a setting of LBANN's linear algebra: accepted, without effect here
    micro_batch_size: int = 0
    data_coordinator: DataCoordinator | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require(
            check_integer("mini_batch_size", self.mini_batch_size, minimum=1),
            check_integer("random_seed", self.random_seed, minimum=0, also=(None,)),
            check_integer("micro_batch_size", self.micro_batch_size, minimum=0),
            where=f"{self.where}: trainer" if self.where else "trainer",
        )

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        return {
            "name": self.name,
            "mini_batch_size": self.mini_batch_size,
            "random_seed": self.random_seed,
            "serialize_io": self.serialize_io,
            "training_algorithm": self.training_algo,
            "callback": self.callbacks,
            "random_init_trainers_identically": self.random_init_trainers_identically,
            "hydrogen_block_size": self.hydrogen_block_size,
            "micro_batch_size": self.micro_batch_size,
            "data_coordinator": self.data_coordinator,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Trainer:
        """A trainer from the fields of its text form."""
        given = dict(fields)
        algorithm, callbacks = given.pop("training_algorithm", None), list(given.pop("callback", ()))
        return cls(given.pop("mini_batch_size", 0), training_algo=algorithm, callbacks=callbacks, **given)
