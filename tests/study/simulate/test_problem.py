"""The noisy quadratic: its coordinates and its risk."""

import numpy as np
import pytest

from descend.errors import ConfigurationError
from descend.study.simulate import Quadratic


def test_coordinates_fall_as_powers():
    modes = Quadratic(5, curvature_power=2.0, noise_power=0.5, start=3.0, bins=0).modes
    np.testing.assert_allclose(modes.h, [1, 1 / 4, 1 / 9, 1 / 16, 1 / 25])
    np.testing.assert_allclose(modes.c, np.arange(1, 6) ** -0.5)
    assert modes.start.tolist() == [3.0] * 5
    assert modes.weight.tolist() == [1.0] * 5


def test_gathering_keeps_sums_and_the_first_coordinates():
    every, gathered = Quadratic(1000, bins=0), Quadratic(1000, bins=40)
    assert len(gathered.modes.h) <= 40
    assert gathered.modes.weight.sum() == 1000
    for ours, theirs in ((gathered.modes.h, every.modes.h), (gathered.modes.c, every.modes.c)):
        assert (ours * gathered.modes.weight).sum() == pytest.approx(theirs.sum(), rel=1e-12)
    assert gathered.modes.h[0] == 1.0
    assert gathered.initial_risk == pytest.approx(every.initial_risk, rel=1e-12)


def test_the_published_risk_at_the_start():
    """½ Σ 1/i over 10⁴ coordinates: half the harmonic number."""
    assert Quadratic().initial_risk == pytest.approx(0.5 * (1 / np.arange(1, 10_001)).sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"dimensions": 0}, "dimensions must be >= 1"), ({"start": 0}, "start must be > 0"), ({"bins": -1}, "bins")],
)
def test_numbers_out_of_range(given, said):
    with pytest.raises(ConfigurationError, match=said):
        Quadratic(**given)
