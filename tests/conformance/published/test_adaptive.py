"""Reference rules with a scale for each element: torch follows them, and first steps are as worked out by hand."""

from __future__ import annotations

import pytest
import torch
from faulty_optimizers import Toy, finding

from descend.conformance import Verdict


@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RMSprop"])
def test_torch_follows_the_published_rule(name):
    """So the references agree with an implementation that is not ours."""
    assert finding(getattr(torch.optim, name), "published rule").verdict is Verdict.OK


def test_adabelief_as_its_authors_rectify_it_is_a_variant():
    class AdaBelief(Toy):
        def move(self, p, g, group, i):
            s = self.state[p]
            t = s["t"] = s.get("t", 0) + 1
            m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
            v = s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * (g - m) ** 2 + 1e-16
            most = 2 / 0.001 - 1
            rho = most - 2 * t * 0.999**t / (1 - 0.999**t)
            d = m / (1 - 0.9**t)
            if rho >= 5:
                r = (rho - 4) / (most - 4) * (rho - 2) / rho * most / (most - 2)
                d = (r * (1 - 0.999**t)) ** 0.5 * d / (v.sqrt() + 1e-16)
            p.sub_(group["lr"] * d)

    assert "known variant: rectified as RAdam" in finding(AdaBelief, "published rule").seen
