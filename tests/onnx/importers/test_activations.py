"""Activations against onnxruntime, and their gradients against torch."""

import numpy as np
import pytest
import torch

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree, agree_in_one_file, case, drawn, node, write

S = (3, 6, 4)


def test_activations_with_their_options(tmp_path):
    cases = [
        case("LeakyRelu", "x", alpha=0.25),
        case("LeakyRelu", "x"),
        case("Elu", "x", alpha=0.5),
        case("Elu", "x"),
        case("Selu", "x"),
        case("Selu", "x", alpha=1.5),
        case("Selu", "x", gamma=0.5),
        case("ThresholdedRelu", "x", alpha=0.3),
        case("HardSigmoid", "x"),
        case("HardSigmoid", "x", alpha=0.3, beta=0.4),
        case("HardSwish", "x"),
        case("Celu", "x", alpha=0.5),
        case("Mish", "x"),
        case("Gelu", "x"),
        case("Gelu", "x", approximate="tanh"),
        case("PRelu", "x", np.float32(0.3)),
        case("PRelu", "x", drawn(3, 1, 1, seed=1)),
        case("PRelu", "x", drawn(1, 6, 1, seed=1)),
        case("PRelu", "x", drawn(*S, seed=1)),
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, 3 * drawn(2, *S))


def test_softmax_along_any_dimension(tmp_path):
    """Inputs of some hundreds: exp of them is infinite in float32, so the largest has to be subtracted first."""
    cases = [case(kind, "x", axis=axis) for kind in ("Softmax", "LogSoftmax") for axis in (1, 2, -1)]
    cases += [case("Softmax", "x"), case("LogSoftmax", "row")]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S, "row": (5,)}, drawn(2, *S) * 200, drawn(2, 5) * 200)


def test_the_gradient_of_log_softmax_is_torchs(tmp_path):
    model = descend.onnx.load(write(tmp_path / "m.onnx", [node("LogSoftmax", "x", axis=1)], {"x": S}))
    x = torch.randn(2, *S, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    g = torch.randn(2, *S, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (want,) = torch.autograd.grad(x.log_softmax(1), x, g)
    (got,) = torch.autograd.grad(model.to_torch().double()(x), x, g)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (node("Elu", "x", alpha=0.0), "has alpha 0"),
        (node("Softmax", "x", axis=0), "takes the softmax over samples"),
        (node("LeakyRelu", "x", alpha="a"), "has alpha b'a'; expected a number"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_what_no_layer_computes_is_refused_by_name(tmp_path, one, message):
    with pytest.raises(Unsupported, match=rf"node 'the_{one.op_type}' \({one.op_type}\) {message}"):
        descend.onnx.load(write(tmp_path / "m.onnx", [one], {"x": S}))


def test_one_slope_for_all_channels_is_a_leaky_relu(tmp_path):
    path = write(tmp_path / "m.onnx", [node("PRelu", "x", "s")], {"x": S}, constants={"s": np.array([0.2], np.float32)})
    assert [type(layer).__name__ for layer in agree(path, drawn(2, *S)).layers] == ["Input", "LeakyRelu"]
