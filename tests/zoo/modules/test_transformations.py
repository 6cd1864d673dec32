"""Moves, paddings and sums along an axis against NumPy and torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, random


@pytest.mark.parametrize("axes", [None, (1, 0, 2), (2, 0, 1), (-1, -3, -2)])
def test_permute_is_numpys_transpose(axes):
    shape = (2, 3, 4)
    dims = []

    def make(x):
        y, after = modules.Permute(x, shape, axes, return_dims=True)
        dims.append(after)
        return y

    agree(make, lambda _, x: x.permute(0, *(a % 3 + 1 for a in axes or (2, 1, 0))), random(2, *shape))
    assert dims == [np.zeros(shape).transpose(axes).shape]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("axis", [0, -1, 1])
def test_cumsum_is_torchs(shape, axis):
    if axis < len(shape):
        make = lambda x: modules.Cumsum(x, shape, axis)  # noqa: E731
        plan = agree(make, lambda _, x: x.cumsum(axis + 1 if axis >= 0 else axis), random(2, *shape))
        assert not any(weights.trainable for weights in plan.weights.values())


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_periodic_padding_is_torchs_circular_one(padding):
    make = lambda x: modules.PeriodicPadding2D(x, 3, 4, padding)  # noqa: E731
    agree(make, lambda _, x: functional.pad(x, [padding] * 4, mode="circular"), random(2, 2, 3, 4))
    make = lambda x: modules.PeriodicPadding3D(x, 3, 4, 5, padding=padding)  # noqa: E731
    agree(make, lambda _, x: functional.pad(x, [padding] * 6, mode="circular"), random(2, 2, 3, 4, 5))


@pytest.mark.parametrize("dims", [(2, 4, 5), (1, 1, 6), (3, 7)])
def test_fft_shift_is_numpys(dims):
    axes = tuple(range(2, len(dims) + 1))
    agree(lambda x: modules.FFTShift()(x, dims), lambda _, x: torch.fft.fftshift(x, axes), random(2, *dims))


@pytest.mark.parametrize(("height", "width", "max_r"), [(5, 5, 3), (6, 4, 2), (1, 4, 2)])
def test_a_radial_profile_is_a_mean_over_rings(height, width, max_r):
    i, j = np.meshgrid(np.arange(height) - height // 2, np.arange(width) - width // 2, indexing="ij")
    r = torch.tensor(np.sqrt(i**2 + j**2).astype(int))

    def twin(_, x):
        return torch.stack([x[:, :, r == k].mean(-1) for k in range(max_r)], -1)

    make = lambda x: modules.RadialProfile()(x, (2, height, width), max_r)  # noqa: E731
    agree(make, twin, random(2, 2, height, width))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda x: modules.Permute(x, (2, 3), (0, 0)), "expected each axis once"),
        (lambda x: modules.Cumsum(x, (2, 3), 2), "has axis 2; expected an axis of it"),
        (lambda x: modules.PeriodicPadding2D(x, 3, 4, 4), "has padding 4; expected 0 to 3"),
        (lambda x: modules.RadialProfile("r")(x, (1, 2, 2), 9), "max_r 9; no pixel is at distance 2"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem):
    with pytest.raises(ConfigurationError, match=problem):
        make(descend.Input())
