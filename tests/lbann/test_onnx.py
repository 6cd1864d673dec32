"""ONNX files as models of scripts, and back."""

import numpy as np
import torch
from system_needs import library

import descend.lbann as lbann

library("onnx")


def network():
    x = lbann.Input(data_field="samples", name="x")
    w = lbann.Weights(initializer=lbann.ValueInitializer(values=range(6)), optimizer=lbann.NoOptimizer(), name="w")
    y = lbann.FullyConnected(x, num_neurons=2, weights=w, name="y")
    return lbann.Model(1, y, objective_function=lbann.L2Norm2(y, name="loss"))


def test_a_model_goes_through_a_file(tmp_path):
    path = lbann.onnx.save(network(), tmp_path / "net.onnx", fields={"samples": (3,)}, outputs="y")
    assert lbann.onnx.load(path, epochs=4).export_proto().num_epochs == 4
    loaded = lbann.onnx.load(path)
    assert isinstance(loaded, lbann.Model)
    x = np.array([[1.0, 2.0, 3.0]], dtype=np.float32)
    matrix = np.arange(6.0).reshape(2, 3, order="F")  # FullyConnected lists its matrix by columns
    got = loaded.to_torch(outputs="y")(torch.from_numpy(x))
    np.testing.assert_allclose(got.detach().numpy(), x @ matrix.T)


def test_outputs_are_layers_or_names(tmp_path):
    model = network()
    y = next(layer for layer in model.layers if layer.name == "y")
    for outputs in (y, [y], ["y"]):
        path = lbann.onnx.save(model, tmp_path / "net.onnx", fields={"samples": (3,)}, outputs=outputs)
        assert lbann.onnx.load(path).layers[-1].name == "y"
