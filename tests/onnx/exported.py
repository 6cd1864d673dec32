"""Layers as modules and as ONNX files, and what onnxruntime makes of the files."""

import numpy as np
import onnx
import onnxruntime
import torch

import descend
from descend.graph import check
from descend.lower import PlainModule
from descend.onnx.export import export
from descend.runtime import generator


def made(makes, *shapes, outputs=None):
    """The module in evaluation, with weights and running values drawn, and the ONNX model of the same.

    Args:
        makes: A function of the Inputs that gives the layer to export; or several, whose layers are all outputs.
        shapes: Shape of a sample of each Input.
        outputs: Names of the layers to export instead.
    """
    inputs = [descend.Input(data_field=f"x{i}", name=f"p{i}") for i in range(len(shapes))]
    ends = [make(*inputs) for make in ([makes] if callable(makes) else makes)]
    plan = check(descend.Model(0, layers=ends, name="net"), {f"x{i}": shape for i, shape in enumerate(shapes)})
    wanted = outputs or [one.name for one in ends]
    module = PlainModule(plan, lambda name: generator(3, name), wanted).eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in module.named_weights().items():
            if "variance" in name or "scale" in name:
                tensor.uniform_(0.5, 1.5, generator=draw)
            elif "mean" in name or "bias" in name:
                tensor.normal_(0, 0.1, generator=draw)
    weights = {name: tensor.detach().numpy() for name, tensor in module.named_weights().items()}
    return module, export(plan, wanted, weights)


def session_of(model):
    """onnxruntime on a model that onnx's own checker accepts."""
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(session, *xs):
    """What it gives; inputs are x0, x1, ..., of which some may not be needed."""
    return session.run(None, {one.name: xs[int(one.name[1:])] for one in session.get_inputs()})


def same(makes, *xs, tolerance=1e-5):
    """The file gives what the module gives, for these inputs."""
    _compare(*made(makes, *(x.shape[1:] for x in xs)), [xs], tolerance)


def agree(makes, *shapes, low=-2.0, high=2.0, tolerance=1e-5):
    """The file gives what the module gives, for one sample and for three."""
    draw = np.random.default_rng(0)
    given = [[draw.uniform(low, high, (samples, *shape)).astype(np.float32) for shape in shapes] for samples in (1, 3)]
    _compare(*made(makes, *shapes), given, tolerance)


def _compare(module, model, given, tolerance):
    session = session_of(model)
    for xs in given:
        with torch.no_grad():
            wanted = module(*map(torch.from_numpy, xs))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for one, got, want in zip(session.get_outputs(), run(session, *xs), wanted, strict=True):
            bound = tolerance * max(1.0, float(want.abs().max()))
            np.testing.assert_allclose(got, want.numpy(), rtol=tolerance, atol=bound, err_msg=one.name)
