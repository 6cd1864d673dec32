"""Products of matrices and Fourier transforms, against NumPy."""

import numpy as np
import pytest

import descend
from tests.lower.single import Single, check_against, f64, gradients, random


@pytest.mark.parametrize(
    ("fields", "a", "b", "subscripts"),
    [
        ({}, (2, 3), (3, 4), "nij,njk->nik"),
        ({"transpose_a": True}, (3, 2), (3, 4), "nji,njk->nik"),
        ({"transpose_b": True}, (2, 3), (4, 3), "nij,nkj->nik"),
        ({"transpose_a": True, "transpose_b": True}, (3, 2), (4, 3), "nji,nkj->nik"),
        ({}, (5, 2, 3), (5, 3, 1), "nbij,nbjk->nbik"),
        ({"transpose_b": True}, (5, 2, 3), (5, 4, 3), "nbij,nbkj->nbik"),
    ],
)
def test_matmul_is_a_product_for_each_matrix(fields, a, b, subscripts):
    xs = random(2, *a), random(2, *b, seed=1)
    check_against(lambda x, y: descend.MatMul(x, y, **fields), lambda x, y: np.einsum(subscripts, x, y), *xs)


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 4), (2, 3, 2, 2), (1, 1)])
def test_dft_abs_is_the_definition(shape):
    def expression(x):
        y = x.astype(complex)
        for axis in range(2, x.ndim):
            n = x.shape[axis]
            waves = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
            y = np.moveaxis(np.tensordot(waves, y, (1, axis)), 0, axis)
        return np.abs(y)

    check_against(lambda s: descend.DFTAbs(s), expression, random(2, *shape))


def test_the_gradient_of_a_magnitude_of_zero_is_zero():
    layer = Single(lambda s: descend.DFTAbs(s), (1, 2))
    assert not gradients(layer, f64([[0.0, 0.0]]))[0].any()
