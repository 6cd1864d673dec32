"""Layers that drop entries in training."""

import pytest
import torch

import descend
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator
from tests.lower.single import Single, gradients, random

OFF = [{"keep_prob": -1}, {"keep_prob": 1}]


@pytest.mark.parametrize("kind", [descend.Dropout, descend.SeluDropout])
def test_nothing_is_dropped_in_evaluation_or_when_it_is_off(kind):
    x = random(3, 4)
    assert torch.equal(Single(lambda s: kind(s, keep_prob=0.5), (4,))(x, training=False), x)
    for fields in OFF:
        assert torch.equal(Single(lambda s, fields=fields: kind(s, **fields), (4,))(x), x)


def test_dropout_divides_what_it_keeps():
    x = torch.full((2000, 5), 3.0, dtype=torch.float64)
    layer = Single(lambda s: descend.Dropout(s, keep_prob=0.8), (5,))
    y = layer(x)
    assert set(y.unique().tolist()) == {0.0, 3 / 0.8}
    assert abs((y != 0).double().mean() - 0.8) < 0.016  # four standard deviations
    torch.testing.assert_close(gradients(layer, x)[0], (y != 0).double() / 0.8)


def test_what_is_dropped_is_zero_even_if_it_was_not_finite():
    x = torch.full((1, 100), torch.inf, dtype=torch.float64)
    y = Single(lambda s: descend.Dropout(s, keep_prob=0.5), (100,))(x)
    assert set(y.unique().tolist()) == {0.0, torch.inf}


@pytest.mark.parametrize("q", [0.9, 0.5])
def test_selu_dropout_keeps_mean_and_variance(q):
    x = random(1).new_empty(2000, 50).normal_(generator=torch.Generator().manual_seed(0))
    y = Single(lambda s: descend.SeluDropout(s, keep_prob=q), (50,))(x)
    assert abs(y.mean()) < 0.02
    assert abs(y.var() - 1) < 0.03


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({}, -1.0507009873554805 * 1.6732632423543772),
        ({"alpha": 2.0}, -1.0507009873554805 * 1.6732632423543772),
        ({"alpha": 2.0, "scale": 0.5}, -1.0),
    ],
)
def test_selu_dropout_is_its_formula(fields, dropped):
    x, q = random(50, 4), 0.7
    layer = Single(lambda s: descend.SeluDropout(s, keep_prob=q, **fields), (4,))
    a = (q + dropped**2 * q * (1 - q)) ** -0.5
    b = -a * (1 - q) * dropped
    y = layer(x).detach()
    kept = (y - (a * x + b)).abs() < 1e-12
    assert 0.5 < kept.double().mean() < 0.9
    torch.testing.assert_close(y[~kept], torch.full_like(y[~kept], a * dropped + b))
    torch.testing.assert_close(gradients(layer, x)[0], a * kept.double())


def dropping():
    x = descend.Input(data_field="x", name="x")
    loss = descend.L2Norm2(descend.Dropout(x, keep_prob=0.5, name="drop"), name="loss")
    plan = check(descend.Model(1, objective_function=loss), {"x": (50,)})
    return lower(plan, lambda name: generator(1, name))


def test_a_module_called_by_hand_draws_from_torchs_own_stream():
    module, x = dropping(), {"x": torch.ones(4, 50)}
    torch.manual_seed(5)
    first, second = module(x)["loss"], module(x)["loss"]
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(module(x)["loss"], first)
    module.eval()
    assert module(x)["loss"].tolist() == [[50.0]] * 4


def test_parts_of_a_mini_batch_are_dropped_as_the_whole():
    module, x = dropping(), torch.ones(6, 50)
    whole = module({"x": x}, seed=3)["loss"]
    parts = [module({"x": x[i : i + 2]}, seed=3, position=i, batch_size=6)["loss"] for i in (0, 2, 4)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(whole.unique()) > 1


@pytest.mark.slow
def test_a_compiled_module_draws_the_same_and_is_compiled_once():
    import torch._dynamo as dynamo

    module = dropping()
    compiled = torch.compile(module, backend="eager")
    dynamo.utils.counters.clear()
    for seed in (1, 2, 3 * 2**50, 2**62, 5):
        x = {"x": torch.rand(4, 50)}
        torch.testing.assert_close(compiled(x, seed=seed)["loss"], module(x, seed=seed)["loss"])
    assert not dynamo.utils.counters["graph_break"]
    assert dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # the second takes any seed
