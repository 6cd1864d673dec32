"""The door to ONNX: what it refuses, and the command."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import descend
from descend.errors import ConfigurationError, MissingExtra, Unsupported

ROOT = Path(__file__).parents[2]
FIELDS = {"x": (3,)}


def model():
    y = descend.FullyConnected(descend.Input(data_field="x", name="x"), num_neurons=2, has_bias=True, name="y")
    t = descend.Input(data_field="t", name="t")
    return descend.Model(1, objective_function=descend.MeanSquaredError(y, t, name="loss"), name="net")


def test_a_file_has_the_weights_that_were_given(tmp_path):
    weights = {"y_linearity_weights": torch.arange(6.0).view(2, 3), "y_bias_weights": torch.tensor([0.5, -1.0])}
    path = descend.onnx.save(model(), tmp_path / "net.onnx", weights, fields={**FIELDS, "t": (2,)})
    x = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]], np.float32)
    (got,) = onnxruntime.InferenceSession(path).run(["y"], {"x": x})
    np.testing.assert_allclose(got, [[8.5, 25.0], [2.5, 4.0]])


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    net = descend.Model.from_torch(torch.nn.Linear(3, 2), loss="mse")
    with pytest.raises(Unsupported, match=r"model 'Linear' is a torch module, .* torch\.onnx\.export"):
        descend.onnx.save(net, tmp_path / "net.onnx")
    with pytest.raises(ConfigurationError, match="has not been run, so the shapes of its data are unknown"):
        descend.onnx.save(model(), tmp_path / "net.onnx")
    monkeypatch.setattr("descend.onnx._MAX_BYTES", 31)
    with pytest.raises(Unsupported, match="more than 2 GB of weights"):
        descend.onnx.save(model(), tmp_path / "net.onnx", fields={**FIELDS, "t": (2,)})
    assert not (tmp_path / "net.onnx").exists()


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.onnx.find_spec", lambda name: None)
    for attempt in (lambda: descend.onnx.load("net.onnx"), lambda: descend.onnx.save(model(), tmp_path / "net.onnx")):
        with pytest.raises(MissingExtra, match=r"pip install onnx$"):
            attempt()


def test_the_command_writes_a_file(tmp_path, command):
    file = tmp_path / "lenet.onnx"
    words = ("export", ROOT / "examples" / "lenet_digits.prototext", file)
    assert command(*words) == f"written to {file}\n"
    (got,) = onnxruntime.InferenceSession(file).run(None, {"samples": np.zeros((2, 1, 8, 8), np.float32)})
    assert got.shape == (2, 10)
    wrong = command(*words, "--output", "probabilites", code=2)
    assert "there is no layer 'probabilites'; did you mean 'probabilities'?" in wrong
