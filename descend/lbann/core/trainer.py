"""The trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph.fields import refuse_unknown
from descend.lbann.core.messages import FromMessage, checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.text.schema import FieldInfo

__all__ = ["Trainer"]

_ELSEWHERE = {"callback": "callbacks", "training_algorithm": "training_algo"}  # LBANN's names for these attributes


class Trainer(FromMessage):
    """What runs a model.

    Args:
        mini_batch_size: Samples of one update, over all processes.
        name: trainer0 without one.
        random_seed: Seed of all random numbers; from the clock without one.
        serialize_io: Whether samples are read between steps.
        training_algo: The training algorithm; mini-batch descent for the model's epochs without one.
        callbacks: CallbackCheckpoint is the only one that a trainer takes.
        fields: Other fields of the message, such as hydrogen_block_size.

    Raises:
        ConfigurationError: an unknown field, a ValueError as well.
        WrongType: a value of a wrong type, a TypeError as well.
    """

    message: ClassVar[str] = "Trainer"

    def __init__(
        self,
        mini_batch_size: int | None = None,
        name: str | None = None,
        random_seed: int | None = None,
        serialize_io: bool | None = None,
        training_algo: Any = None,
        callbacks: Any = (),
        **fields: Any,
    ) -> None:
        refuse_unknown("Trainer", fields, [name for name in self.field_infos() if name not in _ELSEWHERE])
        super().__init__(
            mini_batch_size=mini_batch_size, name=name, random_seed=random_seed, serialize_io=serialize_io, **fields
        )
        for other in _ELSEWHERE:
            delattr(self, other)
        self.training_algo = training_algo
        self.callbacks: list[Any] = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        self.to_fields()  # reports a callback or an algorithm that is none

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        known: Mapping[str, FieldInfo] = self.field_infos()
        given = {name: getattr(self, _ELSEWHERE.get(name, name)) for name in known}
        return checked("Trainer", known, given)
