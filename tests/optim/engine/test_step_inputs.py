"""The updates of a step: parameters with a gradient, their state and what is written back."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.errors import RuleError, Unsupported
from descend.optim.engine.step_inputs import (
    TensorUpdate,
    check_gradient,
    ensure_state,
    is_sparse,
    move_state,
    named_entries,
    names_of,
    open_entry,
    rows_of,
    tasks_of,
    template,
)
from descend.optim.rules import LAMB, SGD, Adam

MOMENTUM = SGD(momentum=0.9)


def parameter(*shape, dtype=torch.float32):
    p = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    p.grad = torch.ones_like(p)
    return p


def test_parameters_without_gradient_frozen_ones_and_those_elsewhere_are_left_out():
    p, absent, frozen, elsewhere = (parameter(2) for _ in range(4))
    absent.grad = None
    frozen.requires_grad_(False)
    groups = [{"params": [p, absent, frozen]}, {"params": [elsewhere]}]
    settings = [group_settings(SGD(), lr=0.1)] * 2
    state = {x: {} for x in (p, absent, frozen, elsewhere)}
    tasks = tasks_of(groups, settings, names_of(groups), state, without={id(elsewhere)})
    assert [(task.name, task.group, task.param is p) for task in tasks] == [("group 0, weights 0", 0, True)]


def test_state_is_made_once_and_must_fit():
    p, entry = parameter(2, 3), {}
    ensure_state(entry, MOMENTUM, p, "w")
    assert {key: tuple(x.shape) for key, x in entry.items()} == {"step": (), "b": (2, 3)}
    entry["b"].add_(1)
    ensure_state(entry, MOMENTUM, p, "w")
    assert entry["b"].sum() == 6
    entry["b"] = torch.zeros(3, 2)
    with pytest.raises(RuleError, match=r"state 'b' of 'w' must be a tensor of shape \(2, 3\), got \(3, 2\)"):
        ensure_state(entry, MOMENTUM, p, "w")
    del entry["b"]
    entry["v"] = torch.zeros(2, 3)
    with pytest.raises(RuleError, match="got nothing"):
        ensure_state(entry, MOMENTUM, p, "w")


def test_state_follows_a_cast():
    p, entry = parameter(3), {}
    open_entry(entry, Adam(), p)
    p.data = p.data.to(torch.bfloat16)
    move_state(entry, Adam(), p)
    assert (entry["m"].dtype, entry["master"].dtype, entry["step"].dtype) == (
        torch.float32,
        torch.float32,
        torch.float64,
    )
    p.data = p.data.to(torch.float64)
    move_state(entry, Adam(), p)
    assert entry["m"].dtype is torch.float64
    assert "master" not in entry


def test_a_master_takes_what_was_written_into_the_parameter():
    p, entry = parameter(2, dtype=torch.bfloat16), {}
    open_entry(entry, SGD(), p)
    entry["master"][:] = torch.tensor([1.001, 1.001])  # both round to 1
    p.data[1] = 3.0
    update = TensorUpdate("w", 0, p, p.grad, group_settings(SGD(), lr=0.1), entry)
    assert update.weights().tolist() == pytest.approx([1.001, 3.0])
    update.write(torch.tensor([1.002, 5.0]), None)
    assert entry["master"].tolist() == pytest.approx([1.002, 5.0])
    assert p.tolist() == [1.0, 5.0]
    assert update.count == 1


def test_new_values_may_be_the_old_memory_of_another_entry():
    p, entry = parameter(2), {}
    open_entry(entry, Adam(), p)
    entry["m"].fill_(1.0)
    entry["v"].fill_(2.0)
    update = TensorUpdate("w", 0, p, p.grad, group_settings(Adam(), lr=0.1), entry)
    state = update.state()
    update.write(state.m, state._replace(m=state.v, v=state.m))
    assert (p.tolist(), entry["m"].tolist(), entry["v"].tolist()) == ([1.0, 1.0], [2.0, 2.0], [1.0, 1.0])


def test_single_elements_become_whole_rows():
    g = torch.sparse_coo_tensor([[3, 1, 3], [0, 1, 1]], [1.0, 2.0, 4.0], (5, 2))
    assert is_sparse(g)
    rows = rows_of(g)
    assert rows.indices().tolist() == [[1, 3]]
    assert rows.values().tolist() == [[0.0, 2.0], [1.0, 4.0]]
    assert torch.equal(rows.to_dense(), g.to_dense())


def test_gradients_that_cannot_be_used_name_the_parameter():
    p, sparse = parameter(4, 2), torch.eye(4, 2).to_sparse()
    check_gradient(sparse, p, "w", SGD())
    with pytest.raises(RuleError, match=r"'w' has a sparse gradient .* which LAMB does not take"):
        check_gradient(sparse, p, "w", LAMB())
    with pytest.raises(RuleError, match="'w' has a sparse gradient without any dimension, so without rows"):
        check_gradient(torch.tensor(1.0).to_sparse(), parameter(), "w", SGD())
    with pytest.raises(Unsupported, match="'w' has a sparse gradient, and no"):
        check_gradient(sparse, p, "w", SGD(), "no")
    with pytest.raises(RuleError, match=r"'w' is \(4, 2\) on cpu and its gradient \(2, 4\)"):
        check_gradient(torch.zeros(2, 4), p, "w", SGD())


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (1025, 1024)])
def test_the_form_of_a_state_holds_no_memory(shape):
    """Of small weights it is made and thrown away, of large ones never made."""
    entries = named_entries(template(Adam(), torch.empty(shape, dtype=torch.bfloat16)))
    for entry in entries.values():
        assert entry.shape == shape
        assert entry.dtype == torch.float32
        assert entry.is_meta or entry.untyped_storage().nbytes() == 4
    assert entries.keys() == {"m", "v"}
