import math

import pytest
import torch

from descend.train.objective import Ratio, Totals


def ratios(count):
    draw = torch.Generator().manual_seed(0)
    tops = torch.randn(count, generator=draw, dtype=torch.float32)
    return [Ratio(top, torch.tensor(i % 3) if i % 2 else float(i % 5)) for i, top in enumerate(tops.unbind())]


def gathered(some, asked_every=0):
    totals = Totals()
    for i, ratio in enumerate(some):
        of_step = Totals()
        of_step.add("objective", ratio)
        totals.join(of_step)
        if asked_every and i % asked_every == 0:
            totals.state()
    return totals.state()["objective"]


@pytest.mark.parametrize("asked_every", [0, 1, 7])
def test_sums_are_those_of_one_addition_after_the_other_whenever_they_are_asked_for(asked_every):
    some = ratios(2500)
    top = bottom = 0.0
    for ratio in some:
        top, bottom = top + float(ratio.numerator), bottom + float(ratio.denominator)
    assert gathered(some, asked_every).tolist() == [top, bottom]


def test_sums_on_a_device_are_the_same_and_no_step_waits_for_it(monkeypatch):
    some = ratios(100)
    here = gathered(some)
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)
    with monkeypatch.context() as waiting:
        waiting.setattr(torch.Tensor, "item", None)
        totals = Totals()
        for ratio in some:
            of_step = Totals()
            of_step.add("objective", ratio)
            totals.join(of_step)
    assert totals.state()["objective"].tolist() == here.tolist()


def test_saved_sums_go_on():
    some = ratios(100)
    totals = Totals({"objective": gathered(some[:40])})
    for ratio in some[40:]:
        totals.add("objective", ratio)
    assert torch.equal(totals.state()["objective"], gathered(some))


def test_numerators_of_several_types_add_up():
    totals = Totals()
    for kind in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
        totals.add("accuracy", Ratio(torch.tensor(3, dtype=kind), torch.tensor(4)))
    assert totals.values() == {"accuracy": 0.75}


def test_no_graph_is_kept_and_nothing_counted_is_nan():
    x = torch.ones((), requires_grad=True)
    totals = Totals()
    totals.add("objective", Ratio(x * 0, 0.0))
    assert not any(top.requires_grad for pairs in totals._put_by.values() for top, _ in pairs)
    assert math.isnan(totals.values()["objective"])
