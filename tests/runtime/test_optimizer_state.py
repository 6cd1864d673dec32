"""Nested states as tensors and JSON; an optimizer's state by the names of its parameters."""

import copy
import json

import pytest
import torch

from descend.errors import StorageError
from descend.runtime import flatten, unflatten
from descend.runtime.optimizer_state import optimizer_state, restore_optimizer


def test_tensors_and_plain_values_come_apart_and_together():
    t, u = torch.arange(3.0), torch.tensor(2)
    state = {"a": {"m": t, "step": 3, "text": "tensor:a/m"}, "list": [u, None, True, 0.5, "x"], "pair": (t, 1)}
    tensors, plain = flatten(state)
    assert set(tensors) == {"a/m", "list/0", "pair/0"}
    assert tensors["a/m"] is t
    back = unflatten(json.loads(json.dumps(plain)), tensors)
    assert back["a"] == {"m": t, "step": 3, "text": "tensor:a/m"}
    assert back["list"][0] is u
    assert back["list"][1:] == [None, True, 0.5, "x"]
    assert back["pair"] == [t, 1]


def test_no_two_entries_have_one_path():
    """A slash in a key is not the slash between two keys."""
    tensors, plain = flatten({"a/b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}})
    assert len(tensors) == 2
    back = unflatten(plain, tensors)
    assert (back["a/b"].item(), back["a"]["b"].item()) == (1.0, 2.0)


def test_what_is_neither_is_named_with_its_path():
    with pytest.raises(StorageError, match="state 'a/f/0' is a function"):
        flatten({"a": {"f": [lambda: None]}})


def test_a_tensor_that_is_missing_is_named():
    _, plain = flatten({"a": torch.zeros(1)})
    with pytest.raises(StorageError, match="refers to a tensor 'a' that the checkpoint does not hold"):
        unflatten(plain, {})


def made(kind=torch.optim.Adam, order="ab", **options):
    """An optimizer of two parameters in this order, each in a group of its own, and their names."""
    p = {"a": torch.nn.Parameter(torch.ones(2, 3)), "b": torch.nn.Parameter(torch.zeros(4))}
    optimizer = kind([{"params": [p[name]], "weight_decay": 0.1 * (name == "a")} for name in order], lr=0.1, **options)
    return optimizer, {p[name]: name for name in order}, p


def stepped(optimizer, p, steps=2):
    for step in range(steps):
        for name, one in p.items():
            one.grad = torch.full_like(one, 1.0 + step + (name == "b"))
        optimizer.step()


def test_state_follows_names_whatever_the_order_of_groups():
    optimizer, names, p = made()
    stepped(optimizer, p)
    saved = copy.deepcopy(optimizer_state(optimizer, names))  # as a file is
    assert saved["weights"].keys() == {"a", "b"}
    assert [group["weights"] for group in saved["groups"]] == [["a"], ["b"]]
    other, other_names, q = made(order="ba")
    restore_optimizer(other, other_names, saved)
    assert other.state[q["a"]]["exp_avg"].equal(optimizer.state[p["a"]]["exp_avg"])
    assert [group["weight_decay"] for group in other.param_groups] == [0.0, 0.1]
    with torch.no_grad():
        for name in "ab":
            q[name].copy_(p[name])
    stepped(optimizer, p, 1)
    stepped(other, q, 1)
    assert all(q[name].equal(p[name]) for name in "ab")


def test_options_that_are_kept_stay_and_tuples_are_tuples_again():
    optimizer, names, p = made(betas=(0.5, 0.6))
    stepped(optimizer, p)
    saved = json.loads(json.dumps(flatten(optimizer_state(optimizer, names))[1]))
    saved = unflatten(saved, flatten(optimizer_state(optimizer, names))[0])
    other, other_names, _ = made()
    other.param_groups[0]["lr"] = 0.7
    restore_optimizer(other, other_names, saved, keep_options=["lr"])
    assert [group["lr"] for group in other.param_groups] == [0.7, 0.1]
    assert other.param_groups[0]["betas"] == (0.5, 0.6)
    restore_optimizer(other, other_names, saved)
    assert other.param_groups[0]["lr"] == 0.1


def test_entries_keep_their_dtype_where_torch_would_cast_them():
    optimizer, names, p = made()
    stepped(optimizer, p)
    saved = optimizer_state(optimizer, names)
    saved["weights"]["a"]["exp_avg"] = saved["weights"]["a"]["exp_avg"].double()
    other, other_names, q = made()
    restore_optimizer(other, other_names, saved)
    assert other.state[q["a"]]["exp_avg"].dtype == torch.float64


def test_options_that_are_functions_are_left_to_the_program():
    optimizer, names, _ = made()
    optimizer.param_groups[0]["schedule"] = lambda step: 0.1
    assert "schedule" not in optimizer_state(optimizer, names)["groups"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved["groups"].pop(), ("b", "trained", "not there")),
        (lambda saved: saved["groups"][0]["weights"].append("c"), ("c", "not there", "trained")),
        (
            lambda saved: saved["weights"]["a"].update(exp_avg=torch.ones(3, 2), exp_avg_sq=torch.ones(3, 2)),
            ("a", "(2, 3)", "(3, 2)"),
        ),
    ],
)
def test_a_state_of_other_parameters_is_refused_in_a_table_and_nothing_changes(change, words):
    optimizer, names, p = made()
    stepped(optimizer, p)
    saved = optimizer_state(optimizer, names)
    change(saved)
    other, other_names, _ = made()
    with pytest.raises(StorageError) as caught:
        restore_optimizer(other, other_names, saved)
    assert all(word in str(caught.value) for word in (*words, "reset_optimizer=True"))
    assert not other.state


@pytest.mark.parametrize(
    "saved", [None, {}, {"groups": {}, "weights": {}}, {"groups": [{}], "weights": {}}, {"groups": [], "weights": []},
              {"groups": [{"weights": [1]}], "weights": {}}, {"groups": [], "weights": {"a": 3}}]
)  # fmt: skip
def test_a_state_of_another_structure_is_damaged(saved):
    optimizer, names, _ = made()
    with pytest.raises(StorageError, match="is damaged: it has no groups and entries by name"):
        restore_optimizer(optimizer, names, saved)
