"""The values and nodes of an ONNX graph while it becomes layers.

A value of the graph is one of three things: an output of a layer, which has the samples for its first dimension; an
array that is the same in every run; or a shape, in which the number of samples is not known. Each is of a type, a
number of `onnx.TensorProto`: it decides whether a quotient of two of them has a fraction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from descend.graph import Layer

__all__ = [
    "HALVES",
    "INTEGERS",
    "MULTIPLE",
    "Budget",
    "ConstantValue",
    "Groups",
    "Node",
    "Permuted",
    "Shape",
    "ShapeValue",
    "Tensor",
    "UnsupportedNode",
    "Value",
    "integers",
    "output_types",
    "primary_inputs",
    "text",
]

MULTIPLE = -2  # in Sizes: so many times the number of samples; −1 is kept as the file has it
_MAX_SIZES = 10_000  # of one list of sizes

Shape = tuple[int, ...]
Groups = tuple[tuple[int | None, ...], ...]


class UnsupportedNode(Exception):
    """Why a node has no layers here; completes "node 'n' (Op) ..."."""


@dataclass(frozen=True)
class Tensor:
    """An output of a layer: (samples, *shape). A shape of () is one number a sample, which the layer gives as (1,).

    Where `joined` is not 0, the file's tensor has so many dimensions of the sample within its first one, as attention
    has that takes samples · heads for one dimension.
    """

    layer: Layer
    shape: Shape
    joined: int = 0
    type: int = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Permuted:
    """An output of a layer whose samples are not the first dimension of the file's tensor.

    `groups` has for each dimension of the file's tensor the sizes that it is made of, None for the samples; the layer
    gives (samples, *all other sizes in their order).
    """

    layer: Layer
    groups: Groups
    type: int = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class ConstantValue:
    """An array. A name is that of the file's own tensor, which is trained if it holds fractions.

    Where it is the transposed form of a matrix that has other uses too, `base` is that matrix's name.
    """

    array: NDArray[Any]
    name: str | None = None
    base: str | None = None

    @property
    def type(self) -> int:
        """The type of its entries; 0 where ONNX has none for them."""
        try:
            return onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype)
        except (KeyError, ValueError):
            return onnx.TensorProto.UNDEFINED


@dataclass(frozen=True)
class ShapeValue:
    """A list of sizes, or one, of which None is the number of samples and MULTIPLE a multiple of it.

    Raises:
        UnsupportedNode: the list is longer than any list of sizes.
    """

    sizes: tuple[int | None, ...]
    single: bool = False
    type: ClassVar[int] = onnx.TensorProto.INT64

    def __post_init__(self) -> None:
        if len(self.sizes) > _MAX_SIZES:
            raise UnsupportedNode(f"makes a list of {len(self.sizes):,} sizes")


Value = Tensor | Permuted | ConstantValue | ShapeValue


@dataclass(frozen=True)
class Node:
    """One node with its inputs found.

    Attributes:
        name: Its name, or one made of its operator and its place.
        kind: Its operator.
        inputs: Values; None where one is left out.
        attributes: By name.
        taken: Whether something takes each output.
        integers: The format in which it computes integers; empty where it computes fractions, or moves entries alone.
        rows: Whether it takes all dimensions from its axis on for one.
    """

    name: str
    kind: str
    inputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    taken: tuple[bool, ...]
    integers: str = ""
    rows: bool = False

    @property
    def outputs(self) -> int:
        """How many outputs there are up to the last that something takes."""
        return max((place for place, taken in enumerate(self.taken, 1) if taken), default=1)

    def takes(self, place: int) -> bool:
        """Whether something takes an output."""
        return place < len(self.taken) and self.taken[place]

    def get(self, name: str, default: Any) -> Any:
        """An attribute, or what stands for it where it is not set.

        Raises:
            UnsupportedNode: it is of another type than the default.
        """
        value = self.attributes.get(name, default)
        expected = _expected(value, default)
        if expected:
            raise UnsupportedNode(f"has {name} {value!r}; expected {expected}")
        return value

    def int_list(self, name: str, default: Sequence[int], minimum: int = 0) -> tuple[int, ...]:
        """An attribute of as many integers as the default has.

        Raises:
            UnsupportedNode: it has another number of them, or one is below the minimum.
        """
        found = tuple(self.get(name, list(default)))
        if len(found) != len(default) or min(found, default=minimum) < minimum:
            raise UnsupportedNode(f"has {name} {list(found)}; expected {len(default)} integers of at least {minimum}")
        return found

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """An attribute that is an axis of a tensor of `rank` dimensions, counted from the first.

        Raises:
            UnsupportedNode: the tensor does not have it.
        """
        axis = self.get(name, default)
        if not -rank <= axis < rank:
            raise UnsupportedNode(f"has {name} {axis}, and its input has {rank} dimensions")
        return axis % rank

    def perm(self, rank: int) -> list[int]:
        """The order of the axes after a Transpose; by default the reverse.

        Raises:
            UnsupportedNode: it does not name each axis once.
        """
        perm = self.get("perm", list(range(rank))[::-1])
        if sorted(perm) != list(range(rank)):
            raise UnsupportedNode(f"has perm {list(perm)}, which is not an order of {rank} axes")
        return perm

    def given(self, place: int) -> Value | None:
        """An input, or None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def tensor(self, place: int = 0, dims: int | None = None) -> Tensor:
        """An input that differs between samples.

        Raises:
            UnsupportedNode: it does not, or has another number of dimensions.
        """
        value = self.given(place)
        if value is None:
            raise UnsupportedNode(f"is given no input {place + 1}")
        if isinstance(value, Permuted):
            raise UnsupportedNode("is given a tensor whose samples are not its first dimension")
        if not isinstance(value, Tensor):
            raise UnsupportedNode(f"takes a constant as input {place + 1}, where a layer's output is needed")
        if value.joined:
            raise UnsupportedNode("is given samples joined with other dimensions")
        if not value.shape or (dims is not None and len(value.shape) != dims):
            raise UnsupportedNode(f"is given (samples, {', '.join(map(str, value.shape))}), which no layer here takes")
        return value

    def fixed(self, place: int) -> ConstantValue:
        """An input that is constant.

        Raises:
            UnsupportedNode: it is computed from the data.
        """
        value = self.given(place)
        if value is None:
            raise UnsupportedNode(f"is given no input {place + 1}")
        if not isinstance(value, ConstantValue):
            raise UnsupportedNode(f"computes its input {place + 1} from the data, and a constant is needed")
        return value

    def ints(self, place: int, attribute: str) -> tuple[int, ...] | None:
        """Integers that are an input in newer files and an attribute in older ones; None where not given."""
        if self.given(place) is not None:
            return tuple(integers(self.fixed(place).array))
        found = self.attributes.get(attribute)
        return None if found is None else tuple(integers(np.atleast_1d(found)))

    def axes(self, place: int, rank: int) -> tuple[int, ...] | None:
        """Axes of a tensor of `rank` dimensions, counted from the first; an input, or the attribute `axes`.

        Raises:
            UnsupportedNode: the tensor does not have one of them.
        """
        found = self.ints(place, "axes")
        if found is not None and not all(-rank <= axis < rank for axis in found):
            raise UnsupportedNode(f"has axes {list(found)}, and its input has {rank} dimensions")
        return None if found is None else tuple(axis % rank for axis in found)

    def integer(self, place: int) -> int:
        """An input of one integer.

        Raises:
            UnsupportedNode: it is computed from the data, or has another number of entries.
        """
        found = integers(self.fixed(place).array)
        if len(found) != 1:
            raise UnsupportedNode(f"has {len(found)} numbers as input {place + 1}; expected one")
        return found[0]

    def number(self, place: int, attribute: str, default: float) -> float:
        """A number that is an input in newer files and an attribute in older ones."""
        if self.given(place) is None:
            return self.get(attribute, default)
        array = self.fixed(place).array
        if array.size != 1 or array.dtype.kind not in "fbiuV":
            raise UnsupportedNode(f"has {array.size} entries of {array.dtype} as input {place + 1}; expected a number")
        return float(array.reshape(()))


def integers(array: NDArray[Any]) -> list[int]:
    """The entries of an array of integers.

    Raises:
        UnsupportedNode: it holds others, or more than any list of sizes.
    """
    if array.dtype.kind not in "iub" or array.size > _MAX_SIZES:
        raise UnsupportedNode(f"takes {array.size:,} entries of {array.dtype} for a list of sizes or axes")
    return [int(one) for one in array.reshape(-1).tolist()]


def text(value: Any) -> str:
    """An attribute that is a word, which the library gives as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _expected(value: Any, default: Any) -> str:
    """What an attribute was expected to be; nothing where it is of the type of its default."""
    if isinstance(default, int):
        return "" if isinstance(value, int) else "an integer"
    if isinstance(default, float):
        good = isinstance(value, (int, float)) and not math.isnan(value)
        return "" if good else "a number"
    if isinstance(default, str):
        return "" if isinstance(value, (str, bytes)) else "a word"
    if isinstance(default, (list, range, tuple)):
        good = isinstance(value, (list, range, tuple))
        if good and any(isinstance(one, int) for one in default):
            good = all(isinstance(one, int) for one in value)
        return "" if good else "a list of integers"
    return "" if isinstance(value, type(default)) else f"a value of type {type(default).__name__}"


# ---- types of tensors: what a node gives, by the schema of its operator, and which of its inputs it computes with

_T = onnx.TensorProto

INTEGERS: Mapping[int, str] = {
    _T.INT8: "int8",
    _T.INT16: "int16",
    _T.INT32: "int32",
    _T.INT64: "int64",
    _T.UINT8: "uint8",
    _T.UINT16: "uint16",
    _T.UINT32: "uint32",
    _T.UINT64: "uint64",
}
HALVES: Mapping[int, str] = {_T.FLOAT16: "float16", _T.BFLOAT16: "bfloat16"}

# Attributes that say the type of what a node gives, where nothing that it is given does.
_BY_ATTRIBUTE = {"Cast": "to", "EyeLike": "dtype", "ConstantOfShape": "value", "Constant": "value"}
_PARAMETERS = {"Pow": (0,), "OneHot": (2,)}  # places of what is computed with, where the schema says more or other ones


def output_types(node: Node, schema: onnx.defs.OpSchema) -> tuple[int, ...]:
    """The type of each output; float32 where nothing says so.

    Args:
        node: A node as the file has it.
        schema: The schema of its version.
    """
    bound: dict[str, int] = {}
    for value, word in zip(node.inputs, _type_words(schema), strict=False):
        if value is not None:
            bound.setdefault(word, value.type)
    for one in schema.type_constraints:
        if len(one.allowed_type_strs) == 1:
            bound.setdefault(one.type_param_str, _of_word(one.allowed_type_strs[0]))
    by_attribute = _of_attribute(node)
    words = [one.type_str for one in schema.outputs]
    words += words[-1:] * (len(node.taken) - len(words))
    return tuple(by_attribute or bound.get(word) or _of_word(word) for word in words[: max(len(node.taken), 1)])


def primary_inputs(node: Node) -> list[int]:
    """Places of the inputs that a node computes with, or moves: not of indices, axes or sizes."""
    if node.kind in _PARAMETERS:
        return [place for place in _PARAMETERS[node.kind] if place < len(node.inputs)]
    schema = onnx.defs.get_schema(node.kind)
    words = [word for word, _ in zip(_type_words(schema), node.inputs, strict=False)]
    given = schema.outputs[0].type_str
    wanted = given if given in words else words[0] if words else ""
    return [place for place, word in enumerate(words) if word == wanted]


def _type_words(schema: onnx.defs.OpSchema) -> Iterator[str]:
    """The type parameter of each input, of which the last may be repeated."""
    for one in schema.inputs:
        yield one.type_str
    while schema.inputs and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        yield schema.inputs[-1].type_str


def _of_attribute(node: Node) -> int:
    value = node.attributes.get(_BY_ATTRIBUTE.get(node.kind, ""))
    if isinstance(value, np.ndarray):
        return onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    if isinstance(value, bytes):
        word = value.decode(errors="replace").upper()
        return dict(_T.DataType.items()).get(word, 0)
    return value if isinstance(value, int) else 0


def _of_word(word: str) -> int:
    """The type that a schema calls tensor(int64)."""
    name = word.removeprefix("tensor(").removesuffix(")").upper()
    return dict(_T.DataType.items()).get(name, _T.FLOAT)


# ---- how much memory and work the reading of one ONNX file may take: a few bytes of a file can ask for terabytes
#
# Every array that is made while a file is read is counted before it is made, from the shapes of what it is made of.

MAX_ENTRIES = 10**8  # of one array that is computed
_BYTES = 4 * 10**8  # of all of them; with twice as much for intermediates this stays below 1 GB
_OPERATIONS = 2 * 10**9  # some 5 seconds
_LAYERS = 100_000
_LARGEST_SHAPE = 2**48  # entries of a sample that a layer gives; more is beyond any memory


class Budget:
    """Counts what a file asks for, and refuses what is beyond the bounds.

    The bounds grow with the file: of a model with 1 GB of weights, each may be transposed and cast a few times.

    Args:
        file_bytes: Size of the file's own tensors.
        nodes: Number of the file's nodes.
    """

    def __init__(self, file_bytes: int = 0, nodes: int = 0) -> None:
        self.entries = max(MAX_ENTRIES, 2 * file_bytes)
        self.bytes = self.bytes_left = _BYTES + 8 * file_bytes
        self.operations_left = _OPERATIONS + 64 * file_bytes
        self.layers_left = _LAYERS + 100 * nodes

    def array(self, *sizes: int, itemsize: int = 8, operations: int | None = None) -> None:
        """Count an array before it is made.

        Args:
            sizes: Its shape.
            itemsize: Bytes of an entry.
            operations: What it takes to compute, in operations of about a nanosecond; by default one for each entry.

        Raises:
            UnsupportedNode: it is too large, or all arrays together are, or all operations are too many.
        """
        entries = prod(sizes)
        if entries > self.entries:
            raise UnsupportedNode(f"computes a constant of more than {self.entries:,} entries")
        self.bytes_left -= entries * itemsize
        self.operations_left -= entries if operations is None else operations
        if self.bytes_left < 0:
            raise UnsupportedNode(
                f"is one of the nodes that compute constants of more than {self.bytes:,} bytes in all"
            )
        if self.operations_left < 0:
            raise UnsupportedNode("computes constants that take too long: write the file with them computed")

    def layer(self, shape: tuple[int, ...]) -> None:
        """Count a layer.

        Args:
            shape: What it gives for a sample.

        Raises:
            UnsupportedNode: there are too many, or it gives more than any memory holds.
        """
        self.layers_left -= 1
        if self.layers_left < 0:
            raise UnsupportedNode("is one of the nodes that are written out as far more layers than the file has nodes")
        if prod(shape) > _LARGEST_SHAPE:
            raise UnsupportedNode("gives a tensor that no memory holds")
