"""ONNX files of a few nodes, and what onnxruntime makes of them."""

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import descend

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
    for one, want in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        want = want[:, None] if want.ndim == 1 else want  # one number a sample is a tensor of one entry here
        np.testing.assert_allclose(one.numpy(), want, rtol=tolerance, atol=tolerance)
    return model


def node(kind, *inputs, out="y", **attributes):
    return helper.make_node(kind, inputs, [out], name=f"the_{kind}", **attributes)
