"""Mutated ONNX files: each is loaded, or refused with an error of ours, in seconds and within memory.

    python tests/fuzz/fuzz_onnx.py --count 20000 --seed 0

Valid files of one to a few nodes are changed by bytes, by fields of the protobuf, by attributes, sizes, operators and
inputs of nodes, by values of constants, and by chains of nodes that each double what they are given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import descend
import descend.experiment.saved_weights  # as loading does, before anything is timed
from descend.graph import check
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

INTEGERS = (0, 1, -1, 2, 3, 5, -2, 7, 64, 1000, 65536, 10**6, 10**9, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
WORDS = (
    "",
    "x",
    "y",
    "c",
    "\0",
    "../x",
    "\x1b[2J",
    "linear",
    "nearest",
    "cubic",
    "SAME_UPPER",
    "reverse",
    "add",
    "ij,jk->ik",
)
NAMES = [
    "alpha",
    "allowzero",
    "antialias",
    "auto_pad",
    "axes",
    "axis",
    "batch_dims",
    "beta",
    "bias",
    "blocksize",
    "body",
    "ceil_mode",
    "cubic_coeff_a",
    "depth",
    "dilations",
    "direction",
    "end",
    "epsilon",
    "equation",
    "exclusive",
    "fmod",
    "group",
    "hidden_size",
    "k",
    "keepdims",
    "kernel_shape",
    "layout",
    "mode",
    "nearest_mode",
    "noop_with_empty_axes",
    "num_outputs",
    "output_padding",
    "output_shape",
    "pads",
    "perm",
    "ratio",
    "reduction",
    "reverse",
    "size",
    "start",
    "strides",
    "then_branch",
    "to",
    "training_mode",
    "transA",
    "transB",
    "upper",
    "value",
    "values",
    "activations",
    "largest",
    "sorted"
]  # fmt: skip
SHAPE = (3, 6, 4)


def _one(kind: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def _floats(*shape: int) -> Any:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


# Nodes, constants by name, and the shape of a sample of x.
Case = tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, ...]]
ENTRYWISE = (
    "Abs Ceil Erf Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Mish Neg Relu Round Selu Softmax"
)
CASES: list[Case] = [
    *(([_one(kind)], {}, SHAPE) for kind in (ENTRYWISE + " LogSoftmax GlobalAveragePool GlobalMaxPool").split()),
    *(([_one(kind, axis=1)], {}, SHAPE) for kind in ("ArgMax", "ArgMin", "Softmax", "LogSoftmax", "Flatten")),
    *(
        ([_one(kind, "x c")], {"c": _floats(4)}, SHAPE)
        for kind in ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Equal", "Less"]
    ),
    *(([_one(kind, "x x")], {}, SHAPE) for kind in ["Add", "Mul", "Max", "Sum", "Greater"]),
    *(
        ([_one(kind, "x c")], {"c": _ints(2, 3)}, SHAPE)
        for kind in ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceProd"]
    ),
    *(([_one(kind, "x c")], {"c": _ints(-1)}, SHAPE) for kind in ["ReduceL1", "ReduceL2", "ReduceLogSumExp"]),
    *(
        ([_one(kind, "x c", keepdims=0)], {"c": _ints(2)}, SHAPE)
        for kind in ("ReduceMean", "ReduceSumSquare", "ReduceLogSum")
    ),
    ([_one("Clip", "x a b")], {"a": np.float32(-1), "b": np.float32(1)}, SHAPE),
    ([_one("Cast", to=TensorProto.INT64)], {}, SHAPE),
    ([_one("Where", "t x c"), _one("Relu", "y", "z")], {"t": np.array([True, False] * 2), "c": _floats(4)}, SHAPE),
    ([_one("Trilu", "x k", upper=0)], {"k": np.array(1)}, SHAPE),
    ([_one("CumSum", "x a", exclusive=1)], {"a": np.array(2)}, SHAPE),
    ([_one("Gemm", "x w b", transB=1)], {"w": _floats(5, 4), "b": _floats(5)}, (4,)),
    ([_one("MatMul", "x w"), _one("Add", "y b", "z")], {"w": _floats(4, 5), "b": _floats(5)}, SHAPE),
    ([_one("Transpose", "x", "t", perm=[0, 1, 3, 2]), _one("MatMul", "x t")], {}, SHAPE),
    ([_one("Einsum", "x w", equation="nchw,wv->nchv")], {"w": _floats(4, 5)}, SHAPE),
    ([_one("Einsum", "x x", equation="nchw,nkhw->nck")], {}, SHAPE),
    (
        [_one("BatchNormalization", "x s b m v")],
        {"s": _floats(3), "b": _floats(3), "m": _floats(3), "v": _floats(3) ** 2 + 1},
        SHAPE,
    ),
    ([_one("LayerNormalization", "x s b", axis=-1)], {"s": _floats(4), "b": _floats(4)}, SHAPE),
    ([_one("InstanceNormalization", "x s b")], {"s": _floats(3), "b": _floats(3)}, SHAPE),
    ([_one("LRN", size=3)], {}, SHAPE),
    ([_one("Conv", "x w b", pads=[1, 1, 1, 1], strides=[2, 1])], {"w": _floats(2, 3, 3, 3), "b": _floats(2)}, SHAPE),
    ([_one("Conv", "x w", auto_pad="SAME_UPPER", dilations=[1, 2])], {"w": _floats(2, 3, 3, 2)}, SHAPE),
    ([_one("ConvTranspose", "x w", strides=[2, 2], output_padding=[1, 0])], {"w": _floats(3, 2, 2, 2)}, SHAPE),
    ([_one("ConvTranspose", "x w", output_shape=[12, 9], strides=[2, 2])], {"w": _floats(3, 2, 3, 3)}, SHAPE),
    ([_one("MaxPool", kernel_shape=[2, 3], pads=[1, 1, 1, 0], ceil_mode=1)], {}, SHAPE),
    ([_one("AveragePool", kernel_shape=[2, 3], pads=[0, 1, 1, 0], strides=[2, 2])], {}, SHAPE),
    ([_one("Pad", "x p v")], {"p": _ints(0, 0, 1, 1, 0, 0, 2, 1), "v": np.float32(0.5)}, SHAPE),
    ([_one("Pad", "x p", mode="reflect")], {"p": _ints(0, 0, 1, 1, 0, 0, 2, 1)}, SHAPE),
    ([_one("DepthToSpace", blocksize=2)], {}, (4, 2, 3)),
    ([_one("SpaceToDepth", blocksize=2)], {}, (1, 4, 6)),
    ([_one("Resize", "x  s".replace("  ", " r "))], {"r": _floats(0), "s": np.array([1, 1, 2, 2], np.float32)}, SHAPE),
    (
        [
            helper.make_node(
                "Resize", ["x", "", "", "s"], ["y"], mode="cubic", coordinate_transformation_mode="align_corners"
            )
        ],
        {"s": _ints(1, 3, 7, 5)},
        SHAPE,
    ),
    (
        [helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear", antialias=1)],
        {"s": _ints(1, 3, 3, 5)},
        SHAPE,
    ),
    ([_one("Reshape", "x s")], {"s": _ints(0, -1, 8)}, SHAPE),
    ([_one("Reshape", "x s", "a"), _one("MatMul", "a w")], {"s": _ints(-1, 4), "w": _floats(4, 2)}, SHAPE),
    ([_one("Squeeze", "x a", "b"), _one("Unsqueeze", "b c")], {"a": _ints(1), "c": _ints(2, 4)}, (1, 6, 4)),
    (
        [
            _one("Transpose", "x", "t", perm=[1, 0, 2]),
            _one("Relu", "t", "r"),
            _one("Transpose", "r", "y", perm=[1, 0, 2]),
        ],
        {},
        (5, 4),
    ),
    ([_one("Expand", "x s")], {"s": _ints(1, 3, 6, 4)}, (3, 1, 4)),
    ([_one("Tile", "x s")], {"s": _ints(1, 2, 1, 3)}, SHAPE),
    ([_one("Concat", "x x c", axis=1)], {"c": _floats(1, 2, 6, 4)}, SHAPE),
    ([_one("Slice", "x b e a s")], {"b": _ints(1, -1), "e": _ints(5, -9), "a": _ints(2, 3), "s": _ints(2, -1)}, SHAPE),
    ([_one("Split", "x s", "y z", axis=2)], {"s": _ints(2, 4)}, SHAPE),
    ([_one("Split", "x", "y z", axis=2, num_outputs=2)], {}, SHAPE),
    ([_one("Gather", "x i", axis=2)], {"i": _ints(0, -1, 3)}, SHAPE),
    ([_one("Gather", "t x")], {"t": _floats(7, 3)}, (5,)),
    ([_one("OneHot", "x d v")], {"d": np.array(5), "v": np.array([0, 1], np.float32)}, (3,)),
    ([_one("GatherElements", "x i", axis=1)], {"i": np.array([[0, 2, 1]])}, (3,)),
    ([_one("ScatterElements", "x i u", axis=1, reduction="add")], {"i": np.array([[0, 2]]), "u": _floats(1, 2)}, (3,)),
    ([_one("TopK", "x k", "y z")], {"k": _ints(2)}, (6,)),
    (
        [
            _one("Shape", "x", "s"),
            _one("Gather", "s i", "n"),
            _one("Concat", "n r", "d", axis=0),
            _one("Reshape", "x d"),
        ],
        {"i": _ints(0), "r": _ints(-1, 4)},
        SHAPE,
    ),
    (
        [
            _one("Shape", "x", "s"),
            _one("ConstantOfShape", "s", "o", value=numpy_helper.from_array(_floats(1))),
            _one("Add", "x o"),
        ],
        {},
        SHAPE,
    ),
    (
        [_one("Range", "a b s", "r"), _one("Cast", "r", "f", to=1), _one("Add", "x f")],
        {"a": np.array(0), "b": np.array(4), "s": np.array(1)},
        SHAPE,
    ),
    (
        [_one("Add", "c d", "e"), _one("MatMul", "e f", "g"), _one("Add", "x g")],
        {"c": _floats(6, 1), "d": _floats(1, 4), "f": _floats(4, 4)},
        SHAPE,
    ),
    (
        [_one("Expand", "c s", "e"), _one("Tile", "e t", "f"), _one("Add", "x f")],
        {"c": _floats(1), "s": _ints(6, 2), "t": _ints(1, 2)},
        SHAPE,
    ),
    (
        [_one("Pad", "c p", "e"), _one("Concat", "e e", "f", axis=0), _one("Add", "x f")],
        {"c": _floats(2, 4), "p": _ints(1, 0, 0, 0)},
        SHAPE,
    ),
    (
        [_one("OneHot", "i d v", "e"), _one("Add", "x e")],
        {"i": _ints(0, 1, 2, 3, 1, 0), "d": np.array(4), "v": _floats(2)},
        SHAPE,
    ),
    (
        [_one("Einsum", "c d", "e", equation="ij,jk->ik"), _one("Add", "x e")],
        {"c": _floats(6, 2), "d": _floats(2, 4)},
        SHAPE,
    ),
    *(
        (
            [_one("Transpose", "x", "t", perm=[1, 0, 2]), _one(kind, "t w r b", "y h", hidden_size=3, **more)],
            {"w": _floats(1, 3 * gates, 4), "r": _floats(1, 3 * gates, 3), "b": _floats(1, 6 * gates)},
            (5, 4),
        )
        for kind, gates, more in (("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}), ("RNN", 1, {}))
    ),
]


def file_of(case: Case) -> onnx.ModelProto:
    """The valid file of a case."""
    nodes, constants, shape = case
    nodes = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    taken = {name for one in nodes for name in one.input}
    outputs = [name for one in nodes for name in one.output if name not in taken]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    # Indices are declared as such.
    if any(one.op_type == "OneHot" or (one.op_type == "Gather" and one.input[1] == "x") for one in nodes):
        graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", 20)], ir_version=9)


def mutated(draw: random.Random) -> bytes:
    """A file with a few mutations."""
    model = file_of(draw.choice(CASES))
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        draw.choice(MUTATIONS)(model, draw)
    content = model.SerializeToString()
    return other_bytes(content, draw) if draw.random() < 0.2 else content


def _edit_a_field(model: onnx.ModelProto, draw: random.Random) -> None:
    """Walk down from a random part of the file, and change the field where the walk ends."""
    message: Any = draw.choice((model, model.graph, *model.graph.node, *model.graph.initializer, *model.graph.input))
    while True:
        found, value = draw.choice(message.ListFields() or [(None, None)])
        if found is None:
            return None
        repeated = not isinstance(value, (int, float, str, bytes)) and hasattr(value, "__len__")
        if found.type == found.TYPE_MESSAGE and (draw.random() < 0.8 or not repeated):
            message = draw.choice(value) if repeated else value
        elif repeated:
            return _edit_a_list(value, found, draw)
        else:
            return _set(message, found, draw)


def _edit_a_list(value: Any, found: Any, draw: random.Random) -> None:
    action = draw.randrange(3)
    if action == 0:
        del value[draw.randrange(len(value))]
    elif found.type == found.TYPE_MESSAGE:
        value.add().CopyFrom(draw.choice(value))
    elif action == 1:
        value.append(draw.choice(value))
    else:
        value[draw.randrange(len(value))] = _other(found, draw)


def _other(found: Any, draw: random.Random) -> Any:
    if found.cpp_type in (found.CPPTYPE_FLOAT, found.CPPTYPE_DOUBLE):
        return draw.choice(FLOATS)
    if found.cpp_type == found.CPPTYPE_STRING:
        word = draw.choice(WORDS)
        return word.encode() if found.type == found.TYPE_BYTES else word
    wide = found.cpp_type in (found.CPPTYPE_INT64, found.CPPTYPE_UINT64)
    value = draw.choice(INTEGERS) if wide else draw.randrange(30)
    return abs(value) if found.cpp_type in (found.CPPTYPE_UINT32, found.CPPTYPE_UINT64) else value


def _set(message: Any, found: Any, draw: random.Random) -> None:
    try:
        setattr(message, found.name, _other(found, draw))
    except (ValueError, TypeError):  # an enum that does not have it
        message.ClearField(found.name)


def _edit_an_attribute(model: onnx.ModelProto, draw: random.Random) -> None:
    node = draw.choice(model.graph.node or [onnx.NodeProto()])
    name = draw.choice([one.name for one in node.attribute] * 3 + NAMES)
    kept = [one for one in node.attribute if one.name != name]
    few = draw.randint(0, 5)
    value: Any = draw.choice(
        (
            draw.choice(INTEGERS),
            draw.choice(FLOATS),
            draw.choice(WORDS),
            [draw.choice(INTEGERS) for _ in range(few)],
            [draw.choice(FLOATS) for _ in range(few)],
            numpy_helper.from_array(np.array([draw.choice(INTEGERS)] * few)),
        )
    )
    kind = onnx.AttributeProto.INTS if value == [] else None
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value, attr_type=kind)])


def _edit_a_size(model: onnx.ModelProto, draw: random.Random) -> None:
    if draw.random() < 0.5 and model.graph.initializer:
        tensor = draw.choice(model.graph.initializer)
        if tensor.dims and draw.random() < 0.5:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(INTEGERS)
            return
        shape = [draw.choice((0, 1, 1, 2, 3, 4, 6)) for _ in range(draw.randint(0, 5))]
        array = np.zeros(shape, draw.choice((np.float32, np.int64, np.bool_, np.float64, np.uint8, np.complex64)))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return
    for one in model.graph.input:
        dims = one.type.tensor_type.shape.dim
        if dims:
            draw.choice(dims).dim_value = draw.choice(INTEGERS)
        if draw.random() < 0.3:
            dims.add().dim_value = draw.choice((1, 2, 3, 10**9))


def _edit_a_constant(model: onnx.ModelProto, draw: random.Random) -> None:
    tensors = list(model.graph.initializer)
    if not tensors:
        return
    tensor = draw.choice(tensors)
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:  # an earlier mutation
        return
    if array.size and array.dtype.kind in "iu":
        values = [one for one in INTEGERS if np.iinfo(array.dtype).min <= one <= np.iinfo(array.dtype).max]
        array.reshape(-1)[draw.randrange(array.size)] = draw.choice(values)
    elif array.size and array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            array.reshape(-1)[draw.randrange(array.size)] = draw.choice(FLOATS)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _edit_an_operator(model: onnx.ModelProto, draw: random.Random) -> None:
    kinds = [node.op_type for nodes, _, _ in CASES for node in nodes] + [
        "If",
        "Loop",
        "SequenceAt",
        "Fancy",
        "Constant",
    ]
    if model.graph.node:
        draw.choice(model.graph.node).op_type = draw.choice(kinds)


def _edit_an_input(model: onnx.ModelProto, draw: random.Random) -> None:
    names = ["", "x", *(one.name for one in model.graph.initializer), *(o for n in model.graph.node for o in n.output)]
    node = draw.choice(model.graph.node or [onnx.NodeProto()])
    match draw.randrange(3):
        case 0 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(names)
        case 1 if node.input:
            del node.input[draw.randrange(len(node.input))]
        case _:
            node.input.append(draw.choice(names))


def _add_a_chain(model: onnx.ModelProto, draw: random.Random) -> None:
    """Nodes that each double what they are given, or make a square of it."""
    nodes, inputs = model.graph.node, [one.name for one in model.graph.initializer]
    if not inputs or not nodes:
        return
    at = draw.choice(inputs)
    kind = draw.choice(("Concat", "Add", "MatMul", "Mul", "Einsum", "Gather"))
    made: list[onnx.NodeProto] = []
    for i in range(draw.choice((3, 10, 29, 40))):
        name = f"chain{i}"
        attributes: dict[str, Any] = {"axis": 0} if kind == "Concat" else {}
        if kind == "Einsum":
            attributes["equation"] = "...,j->...j"
        made.append(helper.make_node(kind, [at, at], [name], **attributes))
        at = name
    last = nodes[-1]
    if last.input:
        last.input[len(last.input) - 1] = at
    rest = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del nodes[:]
    nodes.extend([*made, *rest])


MUTATIONS = (
    _edit_a_field,
    _edit_a_field,
    _edit_an_attribute,
    _edit_an_attribute,
    _edit_a_size,
    _edit_a_constant,
    _edit_an_operator,
    _edit_an_input,
    _add_a_chain,
)

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_onnx_"))


def attempt(draw: random.Random) -> None:
    """Load a mutated file, and check the graph that it gives."""
    path = _FOLDER / "m.onnx"
    path.write_bytes(mutated(draw))
    model = descend.onnx.load(path)
    assert model.trained is not None
    check(model, model.trained.fields)


if __name__ == "__main__":
    main(attempt, __doc__ or "")
