"""torch's functions by other layers against torch."""

import pytest
import torch
from torch.nn import functional

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, random


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 2)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
    ],
)
def test_matmul_is_torchs_for_each_sample(a, b):
    dims = []

    def make(x, y):
        z, after = modules.PytorchMatmul(x, a, y, b, return_dims=True)
        dims.append(after)
        return z

    def twin(_, x, y):
        return torch.stack([(m @ n).reshape(dims[0]) for m, n in zip(x, y, strict=True)])

    agree(make, twin, random(3, *a), random(3, *b, seed=1))
    assert dims[0] == (tuple((random(*a) @ random(*b)).shape) or (1,))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(shape, bias):
    weights = [descend.Weights(name="w"), descend.Weights(name="b")][: 1 + bias]
    make = lambda x: modules.PytorchLinear(x, shape, 5, weights, bias=bias)  # noqa: E731
    agree(make, lambda get, x: functional.linear(x, get("w"), get("b") if bias else None), random(2, *shape))
    assert modules.PytorchLinear(descend.Input(), shape, 5, return_dims=True)[1] == (*shape[:-1], 5)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)])
def test_layer_norm_is_torchs(shape):
    make = lambda x: modules.PytorchLayerNorm(x, 1e-3, shape, name="n")  # noqa: E731
    twin = lambda get, x: functional.layer_norm(x, shape[-1:], get("n_scale"), get("n_bias"), 1e-3)  # noqa: E731
    agree(make, twin, random(2, *shape))


@pytest.mark.parametrize(("a", "b"), [((3, 4), (3, 4)), ((2, 3, 4), (3, 4, 5))])
def test_shapes_that_do_not_fit_are_refused(a, b):
    with pytest.raises(ConfigurationError, match=r"PytorchMatmul of shapes .* they do not fit"):
        modules.PytorchMatmul(descend.Input(), a, descend.Input(), b)
