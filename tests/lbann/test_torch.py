"""Torch modules and functions as layers, against torch itself."""

import warnings

import pytest
import torch
from system_needs import library
from torch import nn

import descend.lbann as lbann
from descend.errors import ConfigurationError, Unsupported

library("onnx")


class Pair(nn.Module):
    """Two inputs, one of them by name, and two outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, scale):
        y = torch.relu(self.linear(x)) * scale
        return y, y.sum(dim=1, keepdim=True)


def computed(layers, *inputs):
    """What the layers without children give, computed by the model that this package trains."""
    model = lbann.Model(0, layers)
    ends = [layer.name for layer in layers if not layer.children]
    fields = [layer.data_field for layer in layers if isinstance(layer, lbann.Input)]
    shapes = {field: tuple(one.shape[1:]) for field, one in zip(fields, inputs, strict=True)}
    return model.to_torch(fields=shapes, outputs=ends).eval()(*inputs)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CONVOLUTIONS = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4))


@pytest.mark.parametrize("trace", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_module_becomes_layers_that_compute_the_same(trace):
    if not trace:
        library("onnxscript")
    x = drawn(5, 2, 8, 8)
    layers = lbann.torch.compile(CONVOLUTIONS, drawn(1, 2, 8, 8, seed=1), trace=trace)
    assert isinstance(layers[0], lbann.Input)
    assert layers[0].data_field == "samples"
    assert [type(layer).__name__ for layer in layers if layer.weights] == ["Convolution", "FullyConnected"]
    torch.testing.assert_close(computed(layers, x), CONVOLUTIONS(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trace", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_several_inputs_and_outputs_have_their_names(trace):
    if not trace:
        library("onnxscript")
    module, x, scale = Pair(), drawn(5, 4), drawn(5, 3, seed=1)
    layers = lbann.torch.compile(module, drawn(2, 4), scale=drawn(2, 3), trace=trace)
    assert [layer.data_field for layer in layers if isinstance(layer, lbann.Input)] == ["x", "scale"]
    ends = [layer.name for layer in layers if not layer.children]
    assert sorted(ends) == ["output_0_output", "output_1"]  # the first one has a child
    got = dict(zip(ends, computed(layers, x, scale), strict=True))
    for name, wanted in zip(sorted(ends), module(x, scale), strict=True):
        torch.testing.assert_close(got[name].reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trace", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_function_of_tensors_becomes_layers(trace):
    if not trace:
        library("onnxscript")
    x = drawn(3, 4)
    layers = lbann.torch.compile(lambda x: torch.tanh(x) * 2 + x.sum(1, keepdim=True), x, trace=trace)
    torch.testing.assert_close(computed(layers, x), torch.tanh(x) * 2 + x.sum(1, keepdim=True), rtol=1e-5, atol=1e-5)


def test_weights_start_as_the_layers_have_it_when_the_numbers_are_left_out():
    layers = lbann.torch.compile(nn.Linear(4, 3), drawn(2, 4), trace=True, with_weights=False)
    assert [layer.weights for layer in layers] == [[]] * len(layers)
    exported = lbann.Model(1, layers).export_proto()
    assert len(exported.weights) == 0


def test_training_modules_are_taken_as_in_evaluation_and_left_as_they_are():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    with pytest.warns(UserWarning, match="as they act in evaluation"):
        layers = lbann.torch.compile(module, drawn(2, 4), trace=True)
    assert module.training
    x = drawn(5, 4)
    torch.testing.assert_close(computed(layers, x), module.eval()(x), rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lbann.torch.compile(nn.Linear(4, 3).train(), drawn(2, 4), trace=True)


def test_layers_are_made_once_in_the_first_call():
    lazy = lbann.torch.lazy_compile(nn.Linear(4, 3), trace=True)
    assert lazy(drawn(2, 4)) is lazy(drawn(2, 4))


def test_what_has_no_layer_is_refused_by_name():
    with pytest.raises(Unsupported, match="Det"):
        lbann.torch.compile(lambda x: torch.linalg.det(x), drawn(2, 3, 3), trace=True)
    with pytest.raises(Unsupported, match=r"\*\*kwargs have no names"):
        lbann.torch.compile(lambda **named: named["x"], x=drawn(2, 3))


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(ConfigurationError, match="missing a required argument: 'scale'"):
        lbann.torch.compile(Pair(), drawn(2, 4))
    with pytest.raises(ConfigurationError, match="needs a sample tensor"):
        lbann.torch.compile(lambda x: x, 3)
