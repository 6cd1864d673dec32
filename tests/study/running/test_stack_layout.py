"""The order of a stack's tensors: what is put together comes apart again."""

import torch
from study_tasks import trial
from torch import nn
from torch.func import stack_module_state

from descend.study.running.stack_layout import StackLayout, end_to_end, one_row_per_trial, trace_key
from descend.study.running.stacked_update import updates_of


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
