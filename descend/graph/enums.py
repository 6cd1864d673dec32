"""The format's enumerations. Their numbers are those of the schema, so a value is also a plain integer."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "ConvTensorOpsMode",
    "DataType",
    "DeviceAllocation",
    "Exported",
    "ShardingStrategy",
    "SubGraphCommunication",
]


class DataType(IntEnum):
    """The format of a tensor's numbers."""

    DEFAULT_DATATYPE = 0
    FLOAT = 1
    DOUBLE = 2
    FP16 = 3
    COMPLEX_FLOAT = 4
    COMPLEX_DOUBLE = 5

    @property
    def is_complex(self) -> bool:
        """Whether it holds complex numbers, which no kind of layers takes or gives."""
        return self in (DataType.COMPLEX_FLOAT, DataType.COMPLEX_DOUBLE)


class DeviceAllocation(IntEnum):
    """Where an operator is computed."""

    DEFAULT_DEVICE = 0
    CPU = 1
    GPU = 2


class ConvTensorOpsMode(IntEnum):
    """A hint to GPUs; it changes no arithmetic here."""

    DEFAULT_TENSOR_OPS = 0
    NO_TENSOR_OPS = 1
    USE_TENSOR_OPS = 2
    USE_TENSOR_OPS_ALLOW_CONVERSION = 3


class ShardingStrategy(IntEnum):
    """How sharded weights are divided over processes."""

    FULL = 0
    GRID_ROWS = 1
    GRID_COLS = 2


class SubGraphCommunication(IntEnum):
    """How sub-graphs exchange tensors."""

    PT2PT = 0
    COLL = 1
    COLL_OPT = 2


# ---- what descriptions give to programs that handle Protobuf messages themselves


class Exported:
    """A description that LBANN's programs ask for its message.

    Attributes:
        envelope: The message that holds this one among others of its sort, such as "Layer"; None where it stands alone.
    """

    message: ClassVar[Any]
    envelope: ClassVar[str | None] = None

    def __init_subclass__(cls, envelope: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.envelope = envelope or cls.envelope

    def export_proto(self) -> Message:
        """The Protobuf message of this description, in its envelope if it has one.

        Raises:
            ConfigurationError: a field holds what its message cannot.
        """
        from descend.graph import text  # which alone knows Protobuf

        return text.to_message(self, self.envelope)
