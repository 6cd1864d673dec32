"""What takes arguments from users refuses values of any type in the one grammar of errors, or takes them."""

import collections
import decimal
import fractions
import functools
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import descend
from descend.errors import DescendError

X, Y = torch.randn(12, 5), torch.randint(0, 3, (12,))


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


VALUES = [
    *(
        None,
        type,
        lambda: 1,
        "",
        "\0",
        "\ud800",
        "nan",
        math.nan,
        math.inf,
        -math.inf,
        -1,
        0,
        2**70,
        10**400,
        1e308,
        5e-324,
    ),
    *(True, b"x", bytearray(b"x"), Path("x"), {}, {1: 2}, {None: None}, [], [None], [[]], (), (1, 2, 3), {1}, 1j),
    *(
        torch.tensor(1.0),
        torch.tensor([1, 2]),
        torch.tensor(True),
        torch.zeros(0),
        torch.zeros(2, dtype=torch.complex64),
    ),
    *(torch.sparse_coo_tensor([[0], [0]], [1.0]), torch.randn(2, 5, device="meta"), torch.float32, torch.device("cpu")),
    *(np.array(1), np.array([1.0, 2.0]), np.array(["a"]), np.float32(1), np.int64(-3), np.str_("a")),
    *(range(0), object(), NoRepr(), NoRepr, decimal.Decimal("nan"), fractions.Fraction(1, 3), collections.deque([1])),
    *(io.BytesIO(b"x"), ..., NotImplemented, slice(1), torch.optim.SGD, descend.Steps(1), descend.Steps, descend, len),
]
MODULE = functools.partial(torch.nn.Linear, 5, 3)
FIT = {
    "loss": "cross_entropy",
    "data": (X, Y),
    "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    "batch_size": 6,
    "stop": descend.Steps(1),
    "verbose": False,
}
COMPARE = {
    "model": MODULE,
    "loss": "cross_entropy",
    "data": (X, Y),
    "arms": ["SGD"],
    **dict.fromkeys(("batch_size", "steps", "trials", "seeds", "searches", "shortlist", "evaluations"), 1),
}


def tried(call):
    """The values that end in an error of another kind."""
    wrong = []
    for value in VALUES:
        try:
            call(value)
        except DescendError:
            continue
        except Exception as error:
            wrong.append((type(value).__name__, repr(error)))
    return wrong


@pytest.mark.parametrize(
    "name",
    [
        *("loss", "optimizer", "batch_size", "stop", "callbacks", "run_dir", "precision", "on_nonfinite", "metrics"),
        *(
            "clip_value",
            "clip_norm",
            "strategy",
            "gradient_compression",
            "asynchronous",
            "trainers",
            "micro_batch_size",
        ),
        *("seed", "targets", "verbose", "resume"),
    ],
)
def test_arguments_of_fit(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tried(lambda value: descend.fit(MODULE(), **{**FIT, name: value})) == []


@pytest.mark.parametrize("name", ["batch_size", "metrics", "precision", "targets", "loss"])
def test_arguments_of_evaluate(name):
    given = {"loss": "cross_entropy", "data": (X, Y)}
    assert tried(lambda value: descend.evaluate(MODULE(), **{**given, name: value})) == []


@pytest.mark.parametrize(
    "name", ["model", "metric", "batch_size", "steps", "trials", "seeds", "said", "executor", "arms"]
)
def test_arguments_of_compare(name, tmp_path, monkeypatch):
    def run(**given):
        if name in ("said", "model", "metric"):
            return descend.compare(**given)
        raise_before_the_first_trial(monkeypatch)
        return descend.compare(**given)

    monkeypatch.chdir(tmp_path)
    assert tried(lambda value: run(**{**COMPARE, name: value})) == []


def raise_before_the_first_trial(monkeypatch):
    def ends(*given, **more):
        raise DescendError("checked")

    monkeypatch.setattr("descend.study.comparing.conduct", ends)


def test_a_range_test_has_a_bound_on_its_steps():
    with pytest.raises(DescendError, match=r"steps must be an integer >= 3 and <= 1000000, got 1180591620717411303424"):
        descend.find_learning_rate(
            MODULE(), "cross_entropy", (X, Y), optimizer=torch.optim.SGD, batch_size=6, steps=2**70
        )


@pytest.mark.parametrize("targets", [0, []])
def test_inputs_that_forward_cannot_take_are_named(targets):
    with pytest.raises(
        DescendError, match=r"a sample has the fields 0, 1, and Linear.forward.* cannot be called with them"
    ):
        descend.fit(MODULE(), **{**FIT, "loss": lambda output: output.sum(), "targets": targets})


def test_gradients_are_clipped_to_numbers_past_their_type():
    module = MODULE()
    descend.fit(module, **{**FIT, "clip_value": 1e308})
    assert all(p.isfinite().all() for p in module.parameters())
