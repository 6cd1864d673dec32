"""Types of tensors: what a node gives, by the schema of its operator, and which of its inputs it computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from descend.onnx.values import Node

__all__ = ["HALVES", "INTEGERS", "output_types", "primary_inputs"]

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
