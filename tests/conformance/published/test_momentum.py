"""Reference rules with momentum or signs: torch follows them."""

from __future__ import annotations

import pytest
import torch
from faulty_optimizers import finding

from descend.conformance import Verdict


@pytest.mark.parametrize("name", ["SGD", "Rprop"])
def test_torch_follows_the_published_rule(name):
    """So the references agree with an implementation that is not ours."""
    assert finding(getattr(torch.optim, name), "published rule").verdict is Verdict.OK
