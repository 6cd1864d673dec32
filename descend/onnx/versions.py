"""Which versions of each operator are imported, and what the older ones mean in terms of the newest.

ONNX numbers its set of operators; an operator has a new version in each set that changes it, which is called by the
number of that set. `SINCE` names the versions whose meaning is implemented. A node of an older version is written as a
node of the newest one before anything else looks at it, so that importers, and the reference that computes constants,
know one meaning of each operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from descend.onnx.values import ConstantValue, Node, Permuted, ShapeValue, Tensor, UnsupportedNode, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.onnx.graph_importer import GraphImporter

__all__ = ["NEWEST", "SINCE", "modernized", "schema_of"]

NEWEST = 28  # the newest set of operators that the table below was compared with

# Versions that differ from the newest one in their attributes, inputs or meaning have a function in `_OLDER`; all
# others differ in the types that they take, in examples, or in the attribute consumed_inputs, which was a hint.
_TABLE = """
    Abs 1 6 13
    Acos 7 22
    Acosh 9 22
    Add 1 6 7 13 14
    And 1 7
    ArgMax 1 11 12 13
    ArgMin 1 11 12 13
    Asin 7 22
    Asinh 9 22
    Atan 7 22
    Atanh 9 22
    AveragePool 1 7 10 11 19 22
    BatchNormalization 1 6 7 9 14 15
    BitShift 11 28
    BitwiseAnd 18
    BitwiseNot 18
    BitwiseOr 18
    BitwiseXor 18
    Cast 1 6 9 13 19 21 23 24 25 28
    CastLike 15 19 21 23 24 25
    Ceil 1 6 13
    Celu 12 28
    Clip 1 6 11 12 13
    Compress 9 11 28
    Concat 1 4 11 13
    Constant 1 9 11 12 13 19 21 23 24 25
    ConstantOfShape 9 20 21 23 24 25
    Conv 1 11 22
    ConvTranspose 1 11 22
    Cos 7 22
    Cosh 9 22
    CumSum 11 14
    DepthToSpace 1 11 13 28
    DequantizeLinear 10 13 19 21 23 24 25 28
    Div 1 6 7 13 14
    Dropout 1 6 7 10 12 13 22
    Einsum 12 28
    Elu 1 6 22
    Equal 1 7 11 13 19
    Erf 9 13
    Exp 1 6 13
    Expand 8 13
    EyeLike 9 22
    Flatten 1 9 11 13 21 23 24 25
    Floor 1 6 13
    GRU 7 14 22
    Gather 1 11 13
    GatherElements 11 13
    GatherND 11 12 13
    Gelu 20
    Gemm 1 6 7 9 11 13
    GlobalAveragePool 1 22
    GlobalMaxPool 1 22
    Greater 1 7 9 13
    GreaterOrEqual 12 16
    HardSigmoid 1 6 22
    HardSwish 14 22
    Hardmax 1 11 13
    Identity 1 13 14 16 19 21 23 24 25
    If 1 11 13 16 19 21 23 24 25
    InstanceNormalization 1 6 22
    IsInf 10 20
    IsNaN 9 13 20
    LRN 1 13
    LSTM 7 14 22
    LayerNormalization 17
    LeakyRelu 1 6 16
    Less 1 7 9 13
    LessOrEqual 12 16
    Log 1 6 13
    LogSoftmax 1 11 13
    LpNormalization 1 22
    MatMul 1 9 13
    Max 1 6 8 12 13
    MaxPool 1 8 10 11 12 22
    Mean 1 6 8 13
    MeanVarianceNormalization 9 13
    Min 1 6 8 12 13
    Mish 18 22
    Mod 10 13 28
    Mul 1 6 7 13 14
    Neg 1 6 13
    NonZero 9 13
    Not 1
    OneHot 9 11 28
    Or 1 7
    PRelu 1 6 7 9 16
    Pad 1 2 11 13 18 19 21 23 24 25
    Pow 1 7 12 13 15
    QuantizeLinear 10 13 19 21 23 24 25 28
    RNN 7 14 22
    Range 11 27
    Reciprocal 1 6 13
    ReduceL1 1 11 13 18
    ReduceL2 1 11 13 18
    ReduceLogSum 1 11 13 18 28
    ReduceLogSumExp 1 11 13 18 28
    ReduceMax 1 11 12 13 18 20
    ReduceMean 1 11 13 18
    ReduceMin 1 11 12 13 18 20
    ReduceProd 1 11 13 18
    ReduceSum 1 11 13
    ReduceSumSquare 1 11 13 18
    Relu 1 6 13 14
    Reshape 1 5 13 14 19 21 23 24 25
    Resize 10 11 13 18 19
    ReverseSequence 10 28
    Round 11 22
    ScatterElements 11 13 16 18
    ScatterND 11 13 16 18
    Selu 1 6 22
    Shape 1 13 15 19 21 23 24 25
    Sigmoid 1 6 13
    Sign 9 13
    Sin 7 22
    Sinh 9 22
    Size 1 13 19 21 23 24 25
    Slice 1 10 11 13
    Softmax 1 11 13
    Softplus 1 22
    Softsign 1 22
    SpaceToDepth 1 13 28
    Split 2 11 13 18
    Sqrt 1 6 13
    Squeeze 1 11 13 21 23 24 25
    Sub 1 6 7 13 14
    Sum 1 6 8 13
    Tan 7 22
    Tanh 1 6 13
    ThresholdedRelu 10 22
    Tile 1 6 13
    TopK 1 10 11 24
    Transpose 1 13 21 23 24 25
    Trilu 14
    Unique 11 28
    Unsqueeze 1 11 13 21 23 24 25
    Upsample 1 7 9
    Where 9 16
    Xor 1 7
"""

SINCE: Mapping[str, tuple[int, ...]] = {
    kind: tuple(map(int, versions)) for kind, *versions in map(str.split, _TABLE.strip().splitlines())
}

Upgrade = Callable[["GraphImporter", Node], Node]


def schema_of(kind: str, opset: int) -> onnx.defs.OpSchema:
    """The schema of an operator in a set of operators.

    Raises:
        UnsupportedNode: the set has no such operator, or the table does not have its version.
    """
    try:
        schema = onnx.defs.get_schema(kind, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        schema = None
    if kind not in SINCE and schema is not None:
        raise UnsupportedNode("has no layer here: the operator is not known")
    if schema is None or schema.deprecated:
        raise UnsupportedNode(f"is no operator of opset {opset}")
    since = schema.since_version
    if since not in SINCE[kind]:
        known = ", ".join(map(str, SINCE[kind]))
        raise UnsupportedNode(
            f"of opset {opset} (since_version {since}) is not supported: its versions {known} are; convert the file "
            "with onnx.version_converter"
        )
    return schema


def modernized(r: GraphImporter, node: Node, schema: onnx.defs.OpSchema) -> Node:
    """A node as its newest version has it.

    Raises:
        UnsupportedNode: it has attributes or inputs that its version has not, or what has no newer form.
    """
    unknown = sorted(node.attributes.keys() - schema.attributes.keys())
    version = f"{node.kind} of since_version {schema.since_version}"
    if unknown:
        raise UnsupportedNode(f"has the attribute {', '.join(unknown)}, which {version} does not have")
    missing = [name for name, one in schema.attributes.items() if one.required and name not in node.attributes]
    if missing and missing != ["consumed_inputs"]:
        raise UnsupportedNode(f"has no {', '.join(missing)}, which {version} needs")
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        most = "" if schema.max_input > 100 else f" to {schema.max_input}"
        raise UnsupportedNode(f"has {len(node.inputs)} inputs, and {version} has {schema.min_input}{most}")
    node = replace(node, attributes={name: one for name, one in node.attributes.items() if name != "consumed_inputs"})
    for newest, upgrade in _OLDER.get(node.kind, ()):
        if schema.since_version <= newest:
            return upgrade(r, node)
    return node


def _with_input(node: Node, place: int, array: Any) -> Node:
    """A node with a constant as one of its inputs."""
    before = (*node.inputs[:place], *(None,) * (place - len(node.inputs)))
    return replace(node, inputs=(*before, ConstantValue(np.asarray(array)), *node.inputs[place + 1 :]))


def _without(node: Node, *names: str) -> Node:
    return replace(node, attributes={name: one for name, one in node.attributes.items() if name not in names})


def _lists_as_inputs(*names: str) -> Upgrade:
    """Lists of integers that were attributes and are inputs, the first of them the second input."""

    def upgrade(r: GraphImporter, node: Node) -> Node:
        for place, name in enumerate(names, 1):
            if name in node.attributes:
                node = _with_input(node, place, np.array(node.get(name, [0]), np.int64))
        return _without(node, *names)

    return upgrade


def _numbers_as_inputs(**defaults: float | None) -> Upgrade:
    """Numbers that were attributes and are inputs, the first of them the second input."""

    def upgrade(r: GraphImporter, node: Node) -> Node:
        for place, (name, default) in enumerate(defaults.items(), 1):
            if name in node.attributes or default is not None:
                node = _with_input(node, place, np.float32(node.get(name, default or 0.0)))
        return _without(node, *defaults)

    return upgrade


def _with_default(name: str, default: Any) -> Upgrade:
    """An attribute whose default was another one."""
    return lambda r, node: replace(node, attributes={name: default, **node.attributes})


def _rank(value: Value | None) -> int:
    """How many dimensions the file's tensor has."""
    match value:
        case Tensor():
            return len(value.shape) - value.joined + 1
        case Permuted():
            return len(value.groups)
        case ConstantValue():
            return value.array.ndim
        case ShapeValue():
            return 0 if value.single else 1
        case None:
            raise UnsupportedNode("is given too few inputs")


def _with_trailing_ones(r: GraphImporter, node: Node, value: Value | None, count: int) -> Value:
    """A value with so many dimensions of 1 behind its own."""
    if not count and value is not None:
        return value
    if isinstance(value, ConstantValue):
        return replace(value, array=value.array.reshape(*value.array.shape, *(1,) * count))
    if not isinstance(value, Tensor) or value.joined:
        raise UnsupportedNode("puts dimensions behind those of a tensor whose samples are not its first one")
    y = r.reshaped(value, (*value.shape, *(1,) * count), f"{node.name}/aligned")
    return replace(y, type=value.type)


def _sizes(value: Value | None) -> list[int | None] | None:
    """The sizes of the file's tensor, None for that of the samples; None where they are not known as such."""
    if isinstance(value, ConstantValue):
        return list(value.array.shape)
    return [None, *value.shape] if isinstance(value, Tensor) and not value.joined else None


def _fits(first: list[int | None] | None, second: list[int | None] | None, batch: int | None) -> bool:
    """Whether tensors are of one shape, as far as that is known before the number of samples is."""
    if first is None or second is None:
        return True
    same = [a == b or (None in (a, b) and (a or b) in (1, batch)) for a, b in zip(first, second, strict=False)]
    return len(first) == len(second) and all(same)


def _aligned(r: GraphImporter, node: Node) -> Node:
    """Before opset 7 shapes were the same, or with broadcast=1 the second lay within the first, from `axis` on."""
    if len(node.inputs) != 2:
        raise UnsupportedNode(f"has {len(node.inputs)} inputs; expected 2")
    a, b = node.inputs
    if node.get("broadcast", 0):
        ranks = _rank(a), _rank(b)
        single = isinstance(b, ConstantValue) and b.array.size == 1
        axis = node.get("axis", max(ranks[0] - ranks[1], 0))
        axis = axis + ranks[0] if axis < 0 else axis
        behind = 0 if single else ranks[0] - ranks[1] - axis
        if behind < 0 or axis < 0 or (ranks[1] > ranks[0] and not single):
            raise UnsupportedNode(f"lays {ranks[1]} dimensions over {ranks[0]} from axis {axis} on")
        b = _with_trailing_ones(r, node, b, behind)
        _check_inner(_sizes(a), _sizes(b), r.batch)
    elif not _fits(_sizes(a), _sizes(b), r.batch):
        raise UnsupportedNode("brings together different shapes without broadcast=1, which this version needs")
    return _without(replace(node, inputs=(a, b)), "broadcast", "axis")


def _check_inner(outer: list[int | None] | None, inner: list[int | None] | None, batch: int | None) -> None:
    """Refuse a second tensor that would widen the first: it is repeated itself, and nothing else.

    Raises:
        UnsupportedNode: it would.
    """
    if outer is None or inner is None:
        return
    pairs = list(zip(reversed(outer), reversed(inner), strict=False))
    good = all(b == 1 or a == b or (a is None and b == batch) or (b is None and a == batch) for a, b in pairs)
    if not good or any(size != 1 for size in inner[: max(len(inner) - len(outer), 0)]):
        raise UnsupportedNode("widens its first input to its second, and only the second is repeated")


def _alike(r: GraphImporter, node: Node) -> Node:
    """Before opset 8 all inputs had one shape."""
    shapes = [_sizes(one) for one in node.inputs]
    if not all(_fits(shapes[0], one, r.batch) for one in shapes[1:]):
        raise UnsupportedNode("brings together different shapes, which this version does not repeat")
    return node


def _of_rows(r: GraphImporter, node: Node) -> Node:
    """Before opset 13 these took all dimensions from `axis` on, 1 by default, for one."""
    axis, rank = node.get("axis", 1), _rank(node.given(0))
    if not -rank <= axis <= rank:
        raise UnsupportedNode(f"has axis {axis}, and its input has {rank} dimensions")
    return replace(node, attributes={"axis": axis + rank if axis < 0 else axis}, rows=True)


def _slopes_of_channels(r: GraphImporter, node: Node) -> Node:
    """Before opset 7 there was one slope, or one for each channel."""
    slope = node.fixed(1)
    if slope.array.size == 1:
        return node
    if slope.array.ndim != 1:
        raise UnsupportedNode(f"has slopes of shape {slope.array.shape}; expected one for each channel")
    return replace(node, inputs=(node.inputs[0], _with_trailing_ones(r, node, slope, max(_rank(node.given(0)) - 2, 0))))


def _slopes_repeated(r: GraphImporter, node: Node) -> Node:
    """Slopes are repeated to the shape of the input, which is not widened to theirs."""
    _check_inner(_sizes(node.given(0)), _sizes(node.given(1)), r.batch)
    return node


def _normalized_in_training(r: GraphImporter, node: Node) -> Node:
    """Before opset 7 a node said so where it was not for training."""
    if not node.get("is_test", 0):
        raise UnsupportedNode("is written for training (is_test 0)")
    return _of_channels(r, _without(node, "is_test"))


def _dropped_in_training(r: GraphImporter, node: Node) -> Node:
    """Before opset 7 a node said whether it was for training; here a Dropout acts in training alone."""
    return _RATIO(r, _without(node, "is_test"))


def _of_channels(r: GraphImporter, node: Node) -> Node:
    """Before opset 9 there could be statistics for each entry of a sample."""
    if not node.get("spatial", 1):
        raise UnsupportedNode("has statistics for each entry (spatial 0)")
    return _without(node, "spatial")


def _type_by_name(r: GraphImporter, node: Node) -> Node:
    """Before opset 6 a type was a word."""
    word = node.get("to", b"").decode(errors="replace").upper()
    if word not in onnx.TensorProto.DataType.keys():  # noqa: SIM118  # not a dictionary
        raise UnsupportedNode(f"casts to '{word}', which is no type")
    return replace(node, attributes={"to": onnx.TensorProto.DataType.Value(word)})


def _equal_pieces(r: GraphImporter, node: Node) -> Node:
    """Before opset 18 a Split without sizes cut equal pieces."""
    if node.given(1) is not None:
        return node
    sizes, count = _sizes(node.given(0)), len(node.taken)
    size = sizes[node.axis(len(sizes), 0)] if sizes else None
    if size is not None and size % count:
        raise UnsupportedNode(f"splits {size} entries into {count} equal pieces")
    return replace(node, attributes={**node.attributes, "num_outputs": count})


def _pieces(r: GraphImporter, node: Node) -> Node:
    """Before opset 13 the sizes of the pieces were an attribute."""
    return _equal_pieces(r, _lists_as_inputs("split")(r, node))


def _paddings(r: GraphImporter, node: Node) -> Node:
    """At first they were called paddings."""
    attributes = {"pads" if name == "paddings" else name: one for name, one in node.attributes.items()}
    return _pads(r, replace(node, attributes=attributes))


def _pads(r: GraphImporter, node: Node) -> Node:
    """Before opset 11 pads and value were attributes."""
    value = np.float32(node.get("value", 0.0))
    node = _with_input(_lists_as_inputs("pads")(r, node), 2, value)
    return _without(node, "value")


def _tiled_once(r: GraphImporter, node: Node) -> Node:
    """At first one dimension was repeated."""
    counts = [node.fixed(place).array for place in (1, 2)]  # of the type of the data, which may be floats
    if any(one.size != 1 or one.dtype.kind not in "fiu" or one.item() != int(one.item()) for one in counts):
        raise UnsupportedNode("has tiles or an axis that is not one integer")
    times, axis, rank = int(counts[0].item()), int(counts[1].item()), _rank(node.given(0))
    if not -rank <= axis < rank:
        raise UnsupportedNode(f"has axis {axis}, and its input has {rank} dimensions")
    repeats = np.ones(rank, np.int64)
    repeats[axis] = times
    return _with_input(replace(node, inputs=node.inputs[:1]), 1, repeats)


def _scales_of_images(r: GraphImporter, node: Node) -> Node:
    """At first an Upsample had two scales, of images."""
    scales = [1.0, 1.0, node.get("height_scale", 1.0), node.get("width_scale", 1.0)]
    mode = {b"bilinear": b"linear"}.get(node.get("mode", b"nearest"), node.get("mode", b"nearest"))
    return _scales(r, replace(node, attributes={"scales": scales, "mode": mode}))


def _scales(r: GraphImporter, node: Node) -> Node:
    """Before opset 9 scales were an attribute."""
    scales = np.array(node.get("scales", [1.0]), np.float32)
    return _resized(r, _without(_with_input(node, 1, scales), "scales"))


def _resized(r: GraphImporter, node: Node) -> Node:
    """An Upsample, and a Resize of opset 10, begin at the edge of the first pixel and take the pixel before a place."""
    own = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    x, scales = node.given(0), node.given(1)
    if node.get("mode", b"nearest") == b"nearest" and isinstance(scales, ConstantValue):
        for size, scale in zip(_sizes(x) or [], scales.array.reshape(-1).tolist(), strict=False):
            if size is not None and 0 < scale < 1 and (np.arange(int(size * scale)) / np.float32(scale) % 1).any():
                raise UnsupportedNode(
                    f"takes the nearest of {size} entries at a scale of {scale:g}, which this version leaves open: "
                    "write the file with opset 11 or later"
                )
    return replace(node, kind="Resize", attributes={**node.attributes, **own}, inputs=(x, None, scales))


def _count(r: GraphImporter, node: Node) -> Node:
    """At first the number of entries was an attribute."""
    return _without(_with_input(node, 1, np.array([node.get("k", 1)], np.int64)), "k")


def _without_region(r: GraphImporter, node: Node) -> Node:
    """A Resize of opset 11 may have regions and scales without entries where it has none."""
    inputs = [None if isinstance(one, ConstantValue) and not one.array.size else one for one in node.inputs]
    return replace(node, inputs=tuple(inputs))


def _matrices_added(r: GraphImporter, node: Node) -> Node:
    """Before opset 7 what is added had the shape of the product, or was repeated with broadcast=1."""
    bias = node.given(2)
    if not node.get("broadcast", 0) and isinstance(bias, ConstantValue) and bias.array.ndim != 2:
        raise UnsupportedNode("adds an array of another shape without broadcast=1, which this version needs")
    return _without(node, "broadcast")


_RATIO = _numbers_as_inputs(ratio=0.5)
_AXES = _lists_as_inputs("axes")
_PAIRS = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_REDUCED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin")

# The newest version that a function is for, from the oldest on; versions after the last need none.
_OLDER: Mapping[str, tuple[tuple[int, Upgrade], ...]] = {
    **dict.fromkeys(_PAIRS, ((6, _aligned),)),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), ((6, _alike),)),
    **dict.fromkeys((*_REDUCED, "ReduceProd", "ReduceSumSquare"), ((13, _AXES),)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), ((11, _of_rows),)),
    "BatchNormalization": ((6, _normalized_in_training), (7, _of_channels)),
    "Cast": ((1, _type_by_name),),
    "Clip": ((6, _numbers_as_inputs(min=None, max=None)),),
    "Concat": ((1, _with_default("axis", 1)),),
    "Dropout": ((6, _dropped_in_training), (10, _RATIO)),
    "Gemm": ((6, _matrices_added),),
    "PRelu": ((6, _slopes_of_channels), (NEWEST, _slopes_repeated)),
    "Pad": ((1, _paddings), (2, _pads)),
    "ReduceSum": ((11, _AXES),),
    "Reshape": ((1, _lists_as_inputs("shape")),),
    "Resize": ((10, _resized), (NEWEST, _without_region)),
    "Selu": ((1, lambda r, node: replace(node, attributes={"alpha": 1.6732, "gamma": 1.0507, **node.attributes})),),
    "Slice": ((1, _lists_as_inputs("starts", "ends", "axes")),),
    "Split": ((11, _pieces), (13, _equal_pieces)),
    "Squeeze": ((11, _AXES),),
    "Tile": ((1, _tiled_once),),
    "TopK": ((1, _count),),
    "Unsqueeze": ((11, _AXES),),
    "Upsample": ((1, _scales_of_images), (7, _scales), (9, _resized)),
}
