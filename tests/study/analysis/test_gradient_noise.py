"""The noise scale of gradients that are drawn with a known one."""

import numpy as np
import pytest

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import noise_scale


def squares(steps, parts, size, draw, signal=2.0, noise=50.0, dims=40):
    """Squared norms of gradients g ~ N(G, Σ/size) with ‖G‖² = signal and tr Σ = noise."""
    mean = np.full(dims, np.sqrt(signal / dims))
    gradients = mean + draw.normal(scale=np.sqrt(noise / dims / size), size=(steps, parts, dims))
    return (gradients**2).sum(-1).mean(1), (gradients.mean(1) ** 2).sum(-1)


def test_the_estimate_is_unbiased_and_its_interval_covers():
    draw = np.random.default_rng(0)
    found = [noise_scale(*squares(60, 16, 8, draw), parts=16, part_size=8, repeats=200) for _ in range(200)]
    assert np.mean([one.signal for one in found]) == pytest.approx(2.0, rel=0.02)
    assert np.mean([one.noise for one in found]) == pytest.approx(50.0, rel=0.02)
    assert np.mean([one.interval.holds(25.0) for one in found]) >= 0.89


def test_two_parts_are_the_two_batch_estimator():
    """With b and B = 2b the published form: (B‖g_B‖² − b‖g_b‖²)/(B − b) and (‖g_b‖² − ‖g_B‖²)/(1/b − 1/B)."""
    q, whole, b = 5.0, 3.5, 4
    found = noise_scale([q], [whole], parts=2, part_size=b)
    assert found.signal == pytest.approx((2 * b * whole - b * q) / b)
    assert found.noise == pytest.approx((q - whole) / (1 / b - 1 / (2 * b)))
    assert found.interval is None


def test_a_drowned_signal_is_refused():
    with pytest.raises(Refused, match="more steps"):
        noise_scale([4.0], [1.0], parts=4, part_size=1)


def test_one_part_shows_no_noise():
    with pytest.raises(ConfigurationError, match="at least 2 parts"):
        noise_scale([1.0], [1.0], parts=1, part_size=8)
