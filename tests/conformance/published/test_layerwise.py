"""Reference rules with a scale for each tensor: first steps worked out by hand from the papers."""

import numpy as np
import pytest

from descend.conformance.published import PUBLISHED

W, G = np.array([3.0, -4.0]), np.array([0.6, 0.8])  # norms 5 and 1


def first(name, lr=0.1, decay=0.0, **constants):
    rule = PUBLISHED[name]
    h = {**rule.constants, **constants}
    return rule.start(h, W.copy())(W.copy(), G.copy(), 1, lr, decay)


def test_lars():
    """v = lr trust ‖w‖ / (‖g‖ + λ ‖w‖) (g + λ w)."""
    decay, trust = 0.2, 1e-3
    wanted = W - 0.1 * trust * 5 / (1 + decay * 5) * (G + decay * W)
    np.testing.assert_allclose(first("lars", decay=decay, trust=trust, eps=0.0), wanted, rtol=1e-12)


@pytest.mark.parametrize("bound", [None, 2.0])
def test_lamb(bound):
    """The first direction is g / |g|, of norm √2; the step is as long as the parameter, or its bound, times lr."""
    length = 5.0 if bound is None else bound
    wanted = W - 0.1 * length * np.sign(G) / np.sqrt(2)
    np.testing.assert_allclose(first("lamb", upper_bound=bound, eps=0.0), wanted, rtol=1e-6)


def test_references_are_independent_of_what_they_compute_next():
    rule = PUBLISHED["lamb"]
    one, other = rule.start(rule.constants, W), rule.start(rule.constants, W)
    one(W.copy(), G.copy(), 1, 0.1, 0.0)
    np.testing.assert_array_equal(other(W.copy(), G.copy(), 1, 0.1, 0.0), first("lamb"))
