"""Updates of many trials as one: what they share, what becomes a tensor, and one step against the rule itself."""

import pytest
import torch
from study_tasks import trial
from torch import nn
from torch.func import stack_module_state

from descend.errors import ConfigurationError
from descend.optim.rules import RULES
from descend.study.running.stacked_update import (
    StackLayout,
    end_to_end,
    form_of,
    one_row_per_trial,
    trace_key,
    update_one_trial,
    updates_of,
    with_constants,
)


def updates(*settings, module=None):
    trials = [trial(i, **one) for i, one in enumerate(settings)]
    return updates_of(trials, [module or nn.Linear(3, 2)] * len(trials))


def test_numbers_in_which_trials_differ_are_tensors_and_shared_ones_are_not():
    (update,) = updates({"momentum": 0.5, "weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.0})
    assert update.names == ("weight", "bias")
    assert update.constants["momentum"].tolist() == [0.5, 0.9]
    assert update.decay.tolist() == [0.1, 0.0]
    assert update.decays
    (same,) = updates({"momentum": 0.9}, {"momentum": 0.9})
    assert same.constants == {}
    assert not same.decays


def test_a_rule_that_looks_at_whole_tensors_has_an_update_for_each():
    assert [one.names for one in updates({"optimizer": "LARS"})] == [("weight",), ("bias",)]
    assert [one.names for one in updates({"optimizer": "SGD"})] == [("weight", "bias")]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([{"momentum": 0.0}, {"momentum": 0.9}], "not a number above 0 in all of them"),
        ([{}, {"optimizer": "Adam"}], "different rules"),
        ([{"decay": "coupled"}, {"decay": "decoupled"}], "an option that is not a number"),
        ([{}, {"roles.bias.lr_mult": 0.5}], "group their weights in different ways"),
        ([{"optimizer": "Muon"}], "one tensor at a time"),
    ],
)
def test_what_cannot_be_one_update_is_refused(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        updates(*settings)


def test_one_update_is_that_of_the_rule():
    """SGD with momentum and coupled decay, by its equations."""
    (update,) = updates({"momentum": 0.5, "weight_decay": 0.1, "decay": "coupled"}, {"momentum": 0.9})
    p, g = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.5, 0.25], dtype=torch.float64)
    state = update.rule.init(p)
    numbers = {
        name: torch.tensor(value, dtype=torch.float64)
        for name, value in {"lr": 0.2, "decay": 0.1, "t": 1.0, "momentum": 0.5}.items()
    }
    entries = {name: value for name, value in state._asdict().items() if value is not None}
    new, after = update_one_trial(update, type(state), p, g, entries, numbers)
    torch.testing.assert_close(new, p - 0.2 * (g + 0.1 * p))
    second, _ = update_one_trial(update, type(state), new, g, after, {**numbers, "t": numbers["t"] + 1})
    moving = 0.5 * (g + 0.1 * p) + g + 0.1 * new
    torch.testing.assert_close(second, new - 0.2 * moving)


def test_the_form_holds_what_a_trace_depends_on():
    (first,) = updates({"lr": 0.1, "momentum": 0.9}, {"lr": 0.2, "momentum": 0.9})
    (other,) = updates({"lr": 0.3, "momentum": 0.9}, {"lr": 0.4, "momentum": 0.9})
    (slower,) = updates({"momentum": 0.5}, {"momentum": 0.5})
    assert form_of(first) == form_of(other) != form_of(slower)


def test_constants_are_put_into_a_rule_unchecked():
    rule = RULES["adam"]()
    assert with_constants(rule, {"beta1": torch.tensor(0.5)}).beta1 == 0.5
    assert with_constants(rule, {}).beta2 == rule.beta2


def begun(**settings):
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    trials = [trial(i, **settings) for i in range(2)]
    params, buffers = stack_module_state(modules)
    return params, buffers, *StackLayout.begin(updates_of(trials, modules), params, buffers)


def test_what_is_held_comes_apart_as_it_was():
    params, buffers, layout, held = begun(optimizer="Adam", lr=1e-3)
    weights, states, found = layout.split(held)
    assert {name: p.shape for name, p in layout.by_name(weights).items()} == {
        name: p.shape for name, p in params.items()
    }
    for name, p in layout.by_name(weights).items():
        torch.testing.assert_close(p, params[name].detach(), rtol=0, atol=0)
    assert list(found) == list(buffers)
    assert all(found[name] is buffers[name] for name in buffers)
    (state,) = states
    assert set(state) == {"m", "v"}
    assert all(entry.shape == weights[0].shape for entry in state.values())


def test_a_rule_without_state_has_no_entries():
    *_, layout, held = begun(optimizer="SGD")
    assert layout.entries == ((),)
    assert layout.split(held)[1] == [{}]


def test_rows_and_ends():
    a, b = torch.arange(6.0).reshape(2, 3), torch.tensor([10.0, 20.0])
    assert one_row_per_trial(b).shape == (2, 1)
    assert end_to_end([a, b]).tolist() == [[0, 1, 2, 10], [3, 4, 5, 20]]
    assert end_to_end([a]) is a


def test_a_trace_depends_on_shape_stride_and_type():
    a = torch.zeros(2, 3)
    assert trace_key([a]) == trace_key([torch.ones(2, 3)])
    for other in (torch.zeros(3, 2).T, torch.zeros(2, 4), a.double()):
        assert trace_key([a]) != trace_key([other])
