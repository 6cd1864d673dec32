"""ONNX files of a few nodes, what onnxruntime makes of them, and single steps of the importer."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import descend
from descend.graph import Input
from descend.onnx.graph_importer import GraphImporter
from descend.onnx.values import Node, Tensor

FLOAT = TensorProto.FLOAT


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write(path, nodes, inputs, outputs=("y",), constants=(), opset=20):
    """A file of these nodes; inputs and constants by name."""
    for place, one in enumerate(nodes):
        if one.name in {other.name for other in nodes[:place]}:
            one.name = f"{one.name}_{place}"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, ["n", *shape]) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(constants).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", opset)], ir_version=9)
    onnx.save(model, path)
    return path


def with_indices(path, *names):
    """The same file with inputs of integers."""
    model = onnx.load(path)
    for one in model.graph.input:
        if one.name in names:
            one.type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    return path


def agree(path, *xs, tolerance=1e-5):
    """The loaded model gives what onnxruntime gives; the model."""
    model = descend.onnx.load(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = dict(zip([one.name for one in session.get_inputs()], xs, strict=True))
    wanted = session.run(None, given)
    names = [one.name for one in session.get_outputs()]
    module = model.to_torch(outputs=names).eval()
    with torch.no_grad():
        got = module(**{name: torch.from_numpy(x) for name, x in given.items()})
    for name, one, want in zip(names, got if isinstance(got, tuple) else (got,), wanted, strict=True):
        want = want[:, None] if want.ndim == 1 else want  # one number a sample is a tensor of one entry here
        np.testing.assert_allclose(one.numpy(), want, rtol=tolerance, atol=tolerance, err_msg=name)
    return model


def node(kind, *inputs, out="y", **attributes):
    return helper.make_node(kind, inputs, [out], name=f"the_{kind}", **attributes)


def case(kind, *inputs, **attributes):
    """A node of its own for `agree_in_one_file`; inputs that are arrays become constants of the file."""
    return kind, inputs, attributes


def agree_in_one_file(path, cases, inputs, *xs, tolerance=1e-5):
    """Each case is a node whose output is one of the file: one session and one module for all of them.

    Outputs are called CASE_OPERATOR, which an assertion that fails shows.
    """
    nodes, constants, outputs = [], {}, []
    for place, (kind, given, attributes) in enumerate(cases):
        names = []
        for number, one in enumerate(given):
            names.append(one if isinstance(one, str) else f"c{place}_{number}")
            if not isinstance(one, str):
                constants[names[-1]] = np.asarray(one)
        outputs.append(f"{place}_{kind}")
        nodes.append(helper.make_node(kind, names, outputs[-1:], name=f"node{place}", **attributes))
    return agree(write(path, nodes, inputs, outputs, constants), *xs, tolerance=tolerance)


def importer_of(*shapes, batch=None, budget=None):
    """A GraphImporter with an Input `x0`, `x1`, ... of each shape, and their tensors."""
    r = GraphImporter(Counter(), batch, budget)
    tensors = []
    for place, shape in enumerate(shapes):
        layer = Input(data_field=f"x{place}", name=f"x{place}")
        r.layers.append(layer)
        tensors.append(Tensor(layer, shape))
    return (r, *tensors)


def a_node(kind, *inputs, outputs=1, **attributes):
    """A node as importers take it: its inputs are values."""
    return Node("n", kind, inputs, attributes, (True,) * outputs)


def computed(tensor, **xs):
    """What an imported tensor is for values of the inputs of `importer_of` that it depends on."""
    fields = {name: x.shape[1:] for name, x in xs.items()}
    module = descend.Model(0, layers=[tensor.layer]).to_torch(fields=fields, outputs=[tensor.layer]).eval()
    with torch.no_grad():
        return module(**{name: torch.from_numpy(x) for name, x in xs.items()}).numpy()
