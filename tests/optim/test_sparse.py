"""Sparse gradients: SGD, AdaGrad and Adam update the rows that an embedding was asked for, and no other."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import descend.optim
from descend.errors import NumericalError, RuleError, Unsupported
from descend.optim import Optimizer
from descend.optim.engine.step_inputs import rows_of
from descend.optim.rules import RULES

ROWWISE = [name for name, rule in RULES.items() if rule.rowwise]
ASKED = [[1, 1, 2], [4], [1, 7, 7, 7], [2, 1], [0]]  # rows of each step; some stand there several times


def table(dtype: torch.dtype = torch.float64) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(9, 3, sparse=True, dtype=dtype)


def backward(model: nn.Embedding, t: int) -> None:
    """A loss whose gradient differs from entry to entry."""
    found = model(torch.tensor(ASKED[t])).double()
    (found * torch.arange(1, found.numel() + 1).reshape(found.shape) * 0.1).sum().backward()


def train(model: nn.Embedding, optimizer: Any) -> None:
    for t in range(len(ASKED)):
        optimizer.zero_grad()
        backward(model, t)
        assert model.weight.grad.is_sparse
        optimizer.step()


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("SGD", {}),
        ("SGD", {"maximize": True}),
        ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
        ("SparseAdam", {"betas": (0.8, 0.95), "eps": 1e-3}),
        ("SparseAdam", {"maximize": True}),
    ],
    ids=str,
)
def test_equals_torch(name: str, kwargs: dict[str, Any], runner: str) -> None:
    one, other = table(), table()
    train(other, getattr(torch.optim, name)(other.parameters(), lr=0.1, **kwargs))
    translated = descend.optim.from_library("torch", name, [nn.Parameter(torch.ones(1))], lr=0.1, **kwargs)
    rule, maximize = translated.param_groups[0]["rule"], translated.param_groups[0]["maximize"]
    ours = Optimizer(one.named_parameters(), rule, lr=0.1, maximize=maximize, runner=runner)
    train(one, ours)
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("library", "name", "kwargs"),
    [
        ("torch", "SGD", {"lr": 0.1, "momentum": 0.9}),  # there every row coasts on its momentum
        ("torch", "SGD", {"lr": 0.1, "weight_decay": 0.1}),  # refused there
        ("torch", "Adam", {}),  # refused there
        ("torch", "Adagrad", {"weight_decay": 0.1}),  # refused there
        ("optax", "adam", {"learning_rate": 0.1}),
        ("lbann", "sgd", {"learn_rate": 0.1, "momentum": 0.9}),
        ("mxnet-2.0", "sgd", {"momentum": 0.9}),  # lazy_update is False unless it is said
        ("mxnet-2.0", "sgd", {"wd": 0.1}),
        ("mxnet-1.9", "sgd", {"momentum": 0.9, "lazy_update": False}),
        ("mxnet-1.9", "adam", {"lazy_update": False}),
        ("mxnet-1.9", "adagrad", {"wd": 0.1}),  # refused there
    ],
)
def test_a_library_that_updates_every_row_refuses_sparse_gradients(library: str, name: str, kwargs: Any) -> None:
    model = table()
    made = descend.optim.from_library(library, name, model.named_parameters(), **kwargs)
    again = descend.optim.from_library(library, name, model.named_parameters(), **kwargs)
    again.load_state_dict(made.state_dict())
    before = model.weight.detach().clone()
    backward(model, 0)
    for optimizer in (made, copy.deepcopy(made), again):
        for p, q in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True):
            p.grad = q.grad
        with pytest.raises(Unsupported, match=rf"'weight' has a sparse gradient, and {library} {name} does not move"):
            optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("library", "name", "kwargs"),
    [
        ("torch", "SGD", {"lr": 0.1}),
        ("torch", "Adagrad", {}),
        ("optax", "sgd", {"learning_rate": 0.1}),
        ("lbann", "adagrad", {"learn_rate": 0.1}),
        ("mxnet-2.0", "sgd", {"learning_rate": 0.1}),
        ("mxnet-1.9", "adagrad", {}),
    ],
)
def test_where_other_rows_stay_by_themselves_the_sparse_gradient_is_the_dense_one(
    library: str, name: str, kwargs: Any
) -> None:
    sparse, dense = table(), table()
    for model in (sparse, dense):
        optimizer = descend.optim.from_library(library, name, model.named_parameters(), **kwargs)
        for t in range(len(ASKED)):
            optimizer.zero_grad()
            backward(model, t)
            if model is dense:
                model.weight.grad = model.weight.grad.to_dense()
            optimizer.step()
    torch.testing.assert_close(sparse.weight, dense.weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("library", ["mxnet-1.9", "mxnet-2.0"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_lazy_updates_go_by_rows(library: str, name: str) -> None:
    model = table()
    optimizer = descend.optim.from_library(library, name, model.parameters(), wd=0.1, lazy_update=True)
    before = model.weight.detach().clone()
    backward(model, 0)
    optimizer.step()
    moved = (model.weight != before).any(1)
    assert moved.nonzero().flatten().tolist() == [1, 2]


@pytest.mark.parametrize("name", ROWWISE)
def test_touched_rows_move_as_under_the_dense_gradient(name: str) -> None:
    """Every step asks for the same rows, with clipping and decay: they end where the dense table has them."""
    sparse, dense = table(), table()
    dense.sparse = False
    rows = torch.tensor([1, 5, 5, 5])
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "clip_value": 0.5}
    if name == "sgd":
        options["momentum"] = 0.9
    for model in (sparse, dense):
        optimizer = descend.optim.create(name, model.named_parameters(), **options)
        for _ in range(4):
            optimizer.zero_grad()
            (model(rows) * 0.3).sum().backward()
            optimizer.step()
    torch.testing.assert_close(sparse.weight[[1, 5]], dense.weight[[1, 5]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@pytest.mark.parametrize("name", ROWWISE)
def test_other_rows_keep_every_bit_of_weights_and_moments(name: str, runner: str) -> None:
    model, other = table(), nn.Linear(3, 2).double()
    params = [*model.named_parameters("table"), *other.named_parameters("linear")]
    optimizer = descend.optim.create(name, params, lr=0.1, weight_decay=0.3, runner=runner)
    for t in range(len(ASKED)):
        state = optimizer.state[model.weight]
        before = {"w": model.weight.detach().clone(), **{k: v.clone() for k, v in state.items() if v.ndim}}
        still = torch.ones(9, dtype=torch.bool)
        still[ASKED[t]] = False
        optimizer.zero_grad()
        backward(model, t)
        other(torch.ones(3, dtype=torch.float64)).sum().backward()
        optimizer.step()
        after = {"w": model.weight.detach(), **{k: v for k, v in optimizer.state[model.weight].items() if v.ndim}}
        assert all(torch.equal(after[key][still], value[still]) for key, value in before.items())
        assert not torch.equal(after["w"][~still], before["w"][~still])
    assert int(optimizer.state[model.weight]["step"]) == len(ASKED)


@pytest.mark.parametrize("name", ROWWISE)
def test_low_precision_tables_have_masters(name: str) -> None:
    model, exact = table(torch.bfloat16), table(torch.bfloat16).float()
    for one in (model, exact):
        train(one, descend.optim.create(name, one.named_parameters(), lr=0.01))
    torch.testing.assert_close(model.weight.float(), exact.weight, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ROWWISE)
def test_a_row_that_is_not_finite_changes_nothing(name: str) -> None:
    model = table()
    optimizer = descend.optim.create(name, model.named_parameters())
    before = model.weight.detach().clone()
    backward(model, 0)
    model.weight.grad = model.weight.grad.coalesce()
    model.weight.grad.values()[0, 0] = math.nan
    with pytest.raises(NumericalError, match="'weight' is not finite"):
        optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ROWWISE])
def test_other_rules_refuse_and_name_weights_and_remedies(name: str) -> None:
    model = table()
    optimizer = descend.optim.create(name, model.named_parameters())
    before = model.weight.detach().clone()
    backward(model, 0)
    with pytest.raises(
        RuleError, match=r"'weight' has a sparse gradient .*sparse=False, or give .* SGD, AdaGrad or Adam"
    ):
        optimizer.step()
    assert torch.equal(model.weight, before)


def test_a_table_that_had_dense_gradients_says_so() -> None:
    model = table()
    optimizer = descend.optim.Adam(model.named_parameters(), runner="blocks")
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    optimizer.zero_grad()
    backward(model, 0)
    with pytest.raises(RuleError, match=r"'weight' has a sparse gradient .*had dense ones before"):
        optimizer.step()


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@pytest.mark.parametrize("name", ["SparseAdam", "Adagrad", "SGD"])
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2), (6,)])
def test_gradients_of_single_elements_equal_torch(name: str, shape: tuple[int, ...], runner: str) -> None:
    torch.manual_seed(0)
    one = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    other = nn.Parameter(one.detach().clone())
    ours = descend.optim.from_library("torch", name, [one], lr=0.1)
    for group in ours.param_groups:  # torch's own takes a gradient of any sparsity by its elements
        group["dense_only"] = None
    theirs = getattr(torch.optim, name)([other], lr=0.1)
    if runner == "plain":
        ours = Optimizer([one], ours.param_groups[0]["rule"], lr=0.1, runner="plain")
    for t in range(4):
        random = torch.Generator().manual_seed(t)
        dense = torch.randn(shape, generator=random, dtype=torch.float64)
        for p in (one, other):
            p.grad = (dense * (dense > 0.3)).to_sparse()
            assert p.grad.sparse_dim() == len(shape)
        ours.step()
        theirs.step()
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_rule_that_keeps_numbers_for_rows_is_given_whole_rows() -> None:
    g = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0]]).to_sparse()
    rows = rows_of(g)
    assert rows.sparse_dim() == 1
    assert rows.indices().tolist() == [[0, 2]]
    assert torch.equal(rows.to_dense(), g.to_dense())
    by_row = nn.Embedding(3, 3, sparse=True).weight
    by_row.grad = rows
    assert rows_of(rows).sparse_dim() == 1


def test_a_single_element_that_is_not_finite_changes_nothing() -> None:
    p = nn.Parameter(torch.ones(3, 3))
    optimizer = descend.optim.SGD([("p", p)])
    p.grad = (torch.eye(3) * math.nan).to_sparse()
    with pytest.raises(NumericalError, match="'p' is not finite"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3, 3))
