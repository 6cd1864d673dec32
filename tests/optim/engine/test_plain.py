"""The reference update, against its equations worked out by hand."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.optim.engine.plain import effective_gradient, norm, scalar, step_plain, total
from descend.optim.engine.step_inputs import TensorUpdate, open_entry
from descend.optim.rules import SGD


def stepped(g, start=2.0, seed=0, **options):
    p = torch.nn.Parameter(torch.full((3,), start, dtype=torch.float64))
    common, entry = group_settings(SGD(), **options), {}
    open_entry(entry, common.rule, p)
    step_plain([TensorUpdate("p", 0, p, torch.full_like(p, g), common, entry)], seed)
    assert entry["step"] == 1
    return p[0].item()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("coupled", 1.0 + 0.1 * 2.0),  # clip(3 g) + λ p
        ("clipped", 1.0),  # clip(3 g + λ p)
        ("decoupled", 1.0),  # clip(3 g); the decay moves p
    ],
)
def test_decay_is_added_where_its_form_says(form, expected):
    held = group_settings(SGD(), rescale=3.0, clip=1.0, decay=0.1, decay_form=form)
    g, p = torch.tensor(0.5), torch.tensor(2.0)
    found = effective_gradient(g, p, held, 0.1 if form != "decoupled" else None)
    assert found.item() == pytest.approx(expected)


def test_decoupled_decay_moves_the_parameter_first():
    assert stepped(0.0, decay=0.1, decay_form="decoupled") == pytest.approx(2.0 * (1 - 0.5 * 0.1))
    assert stepped(1.0, decay=0.1, decay_form="decoupled") == pytest.approx(2.0 * (1 - 0.5 * 0.1) - 0.5)
    assert stepped(1.0, decay=0.1) == pytest.approx(2.0 - 0.5 * (1.0 + 0.2))


def test_numbers_have_double_precision():
    assert scalar(0.1).dtype is torch.float64
    x = torch.full((1000,), 0.1)
    assert total(x, x).item() == pytest.approx(100.0, rel=1e-7)
    assert norm(torch.tensor([3.0, 4.0]), x).item() == 5.0
    assert norm(torch.empty(0), torch.empty(0)).item() == 0.0


def test_autocast_does_not_reach_the_rule():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert stepped(1 / 3) == pytest.approx(2.0 - 0.5 / 3, rel=1e-15)
