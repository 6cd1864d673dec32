"""Own layers for classes of torch modules within lbann.torch.compile."""

import pytest
import torch
from system_needs import library
from torch import nn

import descend.lbann as lbann
from descend.errors import ConfigurationError
from descend.lbann import replacements
from tests.lbann.test_torch import computed, drawn

library("onnx")


class Odd(nn.Module):
    """Something that no exporter knows."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        return torch.from_numpy(x.detach().numpy().clip(-self.limit, self.limit))


class Twice(nn.Module):
    """Uses the odd module twice, once with what another part gives as well."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.odd, self.other = nn.Linear(4, 3), nn.Linear(3, 3), Odd(0.5), Odd(0.25)

    def forward(self, x):
        h = self.odd(self.first(x))
        return self.second(h) + self.other(h) * 2


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(replacements, "_REPLACEMENTS", {})

    @lbann.torch.register_module(Odd)
    def clamp(module, x):
        return lbann.Clamp(lbann.Identity(x), min=-module.limit, max=module.limit)

    return clamp


@pytest.mark.usefixtures("registered")
def test_registered_modules_become_what_their_function_makes():
    module, x = Twice(), drawn(5, 4)
    layers = lbann.torch.compile(module, drawn(2, 4, seed=1), trace=True)
    assert [type(one).__name__ for one in layers].count("Clamp") == 2
    assert layers[0].data_field == "samples"
    assert len({one.name for one in layers}) == len(layers)
    torch.testing.assert_close(computed(layers, x), module(x), rtol=1e-5, atol=1e-6)


class Crossed(nn.Module):
    """A part with two results, the second of which is used first."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.odd = nn.Linear(4, 3), nn.Linear(4, 3), Odd(0.5)

    def forward(self, x, unused, y):
        a, b = self.a(x), self.b(y)
        return self.odd(b) - torch.relu(a)


@pytest.mark.usefixtures("registered")
def test_results_of_parts_keep_their_places():
    module, x, y = Crossed(), drawn(5, 4), drawn(5, 4, seed=3)
    layers = lbann.torch.compile(module, drawn(2, 4), drawn(2, 4), drawn(2, 4), trace=True)
    _, found = computed(layers, x, x, y)  # an input without a child is an output as well
    torch.testing.assert_close(found, module(x, x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("registered")
def test_a_registered_module_may_stand_alone():
    x = drawn(5, 4)
    layers = lbann.torch.compile(Odd(0.3), drawn(2, 4), trace=True)
    torch.testing.assert_close(computed(layers, x), x.clamp(-0.3, 0.3))


def odd(x, limit):
    """Something that no exporter knows, as a function of this file."""
    return torch.from_numpy(x.detach().numpy().clip(-limit, limit))


class Calling(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = odd(self.first(x), limit=0.5)
        return self.second(h) + nn.functional.hardtanh(h, -0.1, max_val=0.2) * 2


@pytest.fixture
def functions(monkeypatch):
    monkeypatch.setattr(replacements, "_FUNCTIONS", {})
    calls = []

    @lbann.torch.register_function(odd)
    def clamp(x, limit):
        calls.append("odd")
        return lbann.Clamp(x, min=-limit, max=limit)

    @lbann.torch.register_function(nn.functional.hardtanh)
    def hardtanh(x, min_val=-1.0, max_val=1.0, inplace=False):
        calls.append("hardtanh")
        return lbann.Clamp(lbann.Identity(x), min=min_val, max=max_val)

    return calls


def test_registered_functions_become_what_their_function_makes(functions):
    module, x = Calling(), drawn(5, 4)
    layers = lbann.torch.compile(module, drawn(2, 4, seed=1), trace=True)
    assert functions == ["odd", "hardtanh"]
    torch.testing.assert_close(computed(layers, x), module(x), rtol=1e-5, atol=1e-6)


def test_a_function_may_be_compiled_that_calls_registered_ones(functions):
    x, y = drawn(5, 4), drawn(5, 4, seed=3)
    layers = lbann.torch.compile(lambda a, b: odd(a * b, 0.25) - b, drawn(2, 4), drawn(2, 4), trace=True)
    assert functions == ["odd"]
    torch.testing.assert_close(computed(layers, x, y), odd(x * y, 0.25) - y, rtol=1e-5, atol=1e-6)


def test_what_calls_no_registered_function_is_compiled_as_ever(functions):
    class Branching(nn.Module):
        """Code that torch.fx cannot follow."""

        def forward(self, x):
            return x.relu() if x.shape[0] > 1 and float(x.sum()) == float(x.sum()) else x

    layers = lbann.torch.compile(Branching(), drawn(2, 4), trace=True)
    torch.testing.assert_close(computed(layers, drawn(5, 4)), drawn(5, 4).relu())
    assert functions == []


def test_what_is_no_function_is_refused(functions):
    for wrong in ("erf", nn.ReLU):
        with pytest.raises(ConfigurationError, match="needs a function such as"):
            lbann.torch.register_function(wrong)
    lbann.torch.register_function(torch.erf)(lambda x: 3)
    with pytest.raises(ConfigurationError, match="registered for erf must return a layer, got 3"):
        lbann.torch.compile(lambda x: torch.erf(x), drawn(2, 4), trace=True)


def test_what_is_no_class_or_no_layer_is_refused(monkeypatch):
    monkeypatch.setattr(replacements, "_REPLACEMENTS", {})
    with pytest.raises(ConfigurationError, match="needs a class such as"):
        lbann.torch.register_module("ReLU")
    lbann.torch.register_module(Odd)(lambda module, x: 3)
    with pytest.raises(ConfigurationError, match="registered for Odd must return a layer, got 3"):
        lbann.torch.compile(Odd(1.0), drawn(2, 4), trace=True)
