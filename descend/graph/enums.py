"""The format's enumerations. Their numbers are those of the schema, so a value is also a plain integer."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ConvTensorOpsMode", "DataType", "DeviceAllocation", "ShardingStrategy", "SubGraphCommunication"]


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
