"""Pieces of K-FAC's preconditioner: windows of convolutions, which layers are recorded, inverses, sums over ranks."""

import math

import pytest
import torch
from thread_ranks import Group, on_ranks
from torch import nn

from descend.train.transforms.curvature import (
    _balance,
    _by_cholesky,
    _by_eigenvalues,
    _over_ranks,
    _Sums,
    _Uses,
    patches,
)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_windows_times_the_kernel_are_the_convolution(dims):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *(7, 6, 5)[:dims], generator=draw, dtype=torch.float64)
    w = torch.randn(4, 3, *(3, 2, 2)[:dims], generator=draw, dtype=torch.float64)
    convolve = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[dims]
    found = patches(x, w.shape[2:], (2,) * dims, [(1, 1)] * dims, (1,) * dims) @ w.flatten(1).t()
    expected = convolve(x, w, stride=2, padding=1)
    torch.testing.assert_close(found.transpose(1, 2).view_as(expected), expected, rtol=1e-12, atol=1e-12)


def recorded(module, call, count):
    """(weight, bias, transposed, first) of each use in the order of the backward pass, and the error signals."""
    found, signals = [], []

    def take(use, error):
        found.append((use.weight, use.bias, use.transposed, use.first))
        signals.append(error)

    names = {id(p): name for name, p in module.named_parameters()}
    with _Uses(names, count, take):
        y = call(module)
    y.backward(torch.ones_like(y))
    return found, signals


X = torch.arange(12.0).reshape(4, 3)


def test_a_linear_layer_is_recorded_with_its_error_signal():
    found, [signal] = recorded(nn.Linear(3, 2), lambda module: 5 * module(X), 4)
    assert found == [("weight", "bias", False, True)]
    assert torch.equal(signal, torch.full((4, 2), 5.0))


def test_a_second_use_is_not_the_first_and_both_have_signals():
    found, _ = recorded(nn.Linear(3, 3), lambda module: module(module(X)), 4)
    assert found == [("weight", "bias", False, False), ("weight", "bias", False, True)]


def test_a_weight_that_is_stored_transposed_is_found():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.linear(x, self.kernel.t())

    assert recorded(Transposed(), lambda module: module(X), 4)[0] == [("kernel", None, True, True)]


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Conv1d(2, 2, 1, groups=2), torch.ones(4, 2, 5)),
        (nn.Conv2d(2, 3, 1), torch.ones(2, 5, 5)),  # one image without a dimension of samples
        (nn.LayerNorm(3), X),
    ],
)
def test_other_uses_are_not_recorded(module, x):
    assert recorded(module, lambda layer: layer(x), 4)[0] == []


def test_frozen_weights_and_layers_that_were_left_out_are_not_recorded():
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    assert recorded(module, lambda layer: layer(X), 4)[0] == []
    found = []
    module = nn.Linear(3, 2)
    with _Uses({}, 4, lambda use, error: found.append(use)):
        module(X).sum().backward()
    assert found == []


def positive(size, dtype):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return (root @ root.T / size).to(dtype)


@pytest.mark.parametrize("invert", [_by_cholesky, _by_eigenvalues])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_inverses_are_those_of_the_damped_matrix(invert, dtype, tolerance):
    matrix = positive(5, dtype)
    found = invert(matrix, 0.1)
    expected = torch.linalg.inv(matrix.double() + 0.1 * torch.eye(5, dtype=torch.float64))
    assert found.dtype == dtype
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("invert", [_by_cholesky, _by_eigenvalues])
def test_a_factor_that_is_not_finite_has_no_finite_inverse(invert):
    matrix = positive(3, torch.float64)
    matrix[1, 1] = math.nan
    assert not torch.isfinite(invert(matrix, 0.1)).any()


def test_the_balance_of_damping_is_that_of_the_mean_eigenvalues():
    a, g = torch.diag(torch.tensor([8.0, 8.0])), torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    assert float(_balance(a, g)) == pytest.approx(2.0)
    assert float(_balance(a, torch.zeros(3, 3))) == 1.0
    assert float(_balance(torch.zeros(2, 2), g)) == 1.0


def sums(value, bias=None):
    inputs = torch.full((2, 2), value, dtype=torch.float32)
    return _Sums(bias, False, inputs, inputs[:1, :1].clone(), *(torch.tensor(n).double() for n in (value, 2.0 * value)))


def test_ranks_that_used_different_layers_get_the_sums_of_all():
    group = Group(3)

    def act(communicator):
        own = [{"a": sums(1.0)}, {}, {"b": sums(10.0, "b.bias"), "a": sums(2.0)}][communicator.rank]
        found = _over_ranks(own, communicator)
        return {name: (one.bias, *(float(t.flatten()[0]) for t in one.tensors)) for name, one in found.items()}

    assert on_ranks(3, act, group) == [{"a": (None, 3.0, 3.0, 3.0, 6.0), "b": ("b.bias", 10.0, 10.0, 10.0, 20.0)}] * 3
    assert len({len(order) for order in group.order}) == 1
