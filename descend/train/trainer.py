"""The trainer's description: how large a mini-batch is, what is done with it, and where randomness begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError
from descend.strict_keywords import StrictKeywords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.algorithms import TrainingAlgorithm

__all__ = ["DataCoordinator", "Trainer"]

_READ_AS = {0: "DEFAULT_DATATYPE", 1: "FLOAT"}  # in the numbers of the format; samples are handed on as float32


@dataclass
class DataCoordinator(metaclass=StrictKeywords):
    """What LBANN's readers have in common; here each reader stands alone, so it is kept and changes nothing.

    Args:
        datatype: Format of the samples; FLOAT, which an unset one means too.
        io_buffer: How LBANN spreads samples over ranks.

    Raises:
        ConfigurationError: another datatype.
    """

    message: ClassVar[str] = "DataCoordinator"

    datatype: int = 0
    io_buffer: str = ""

    def __post_init__(self) -> None:
        if self.datatype not in _READ_AS:
            raise ConfigurationError(
                "the data coordinator has a datatype other than FLOAT, and samples are handed on as FLOAT: leave it "
                "out, and give layers a datatype"
            )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> DataCoordinator:
        """A coordinator from the fields of a text."""
        return cls(**{name: value for name, value in fields.items() if name != "transforms"})


@dataclass
class TransformDataField(metaclass=StrictKeywords):
    """Transforms of a data coordinator, which are not to be had.

    Raises:
        ConfigurationError: always.
    """

    message: ClassVar[str] = "TransformDataField"

    data_field: str = ""
    execution_phase: str = ""
    transforms: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        raise ConfigurationError(
            "transforms of a data coordinator are not applied here: write them into the readers (reader { transforms "
            "{ ... } })"
        )


@dataclass
class Trainer(metaclass=StrictKeywords):
    """Who trains, in LBANN's words.

    Args:
        mini_batch_size: Samples of one update, over all ranks.
        name: Name in logs; trainer0 when not given.
        random_seed: Start of every random number of the run; 0 or None takes one from the clock, prints it and keeps it
            in the run directory, so that the run can be repeated.
        serialize_io: Read in the training thread rather than ahead of it.
        training_algo: What is done; without one, mini-batch descent for the model's number of epochs.
        callbacks: Callbacks of the trainer; in LBANN that is the checkpoint alone.
        random_init_trainers_identically: With several trainers, give all of them the same first weights.
        data_coordinator: What LBANN's readers have in common; kept, and of no effect here.
        micro_batch_size: Samples that go through the model at once; the updates do not depend on it. 0 begins with all
            and halves them when memory runs out.

    Raises:
        ConfigurationError: the batch size is not a whole number above 0, or the seed is not a whole number.
    """

    message: ClassVar[str] = "Trainer"

    mini_batch_size: int
    name: str | None = None
    random_seed: int | None = None
    serialize_io: bool = False
    training_algo: TrainingAlgorithm | None = None
    callbacks: list[Any] = field(default_factory=list[Any])
    random_init_trainers_identically: bool = False
    hydrogen_block_size: int = 0  # a setting of LBANN's linear algebra: accepted, and of no effect here
    micro_batch_size: int = 0
    data_coordinator: DataCoordinator | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check("mini_batch_size", self.mini_batch_size, 1)
        self._check("random_seed", self.random_seed or 0, 0)
        self._check("micro_batch_size", self.micro_batch_size, 0)

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
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
        """A trainer from the fields of a text."""
        given = dict(fields)
        algorithm, callbacks = given.pop("training_algorithm", None), list(given.pop("callback", ()))
        return cls(given.pop("mini_batch_size", 0), training_algo=algorithm, callbacks=callbacks, **given)

    def _check(self, name: str, value: object, least: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            place = f"{self.where}: " if self.where else ""
            problem = f"{name} must be a whole number of at least {least} and is {value!r}"
            raise ConfigurationError(f"{place}trainer: {problem}")
