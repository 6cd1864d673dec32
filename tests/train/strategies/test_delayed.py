"""Gradients that come late, on one process: what a float64 replay of the papers' rules gives for the same delays."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import descend
from descend.errors import ConfigurationError

RATE, STRENGTH, SIZE = 0.3, 2.0, 3
SGD = functools.partial(descend.optim.SGD, lr=RATE)
DCASGD = functools.partial(descend.optim.DCASGD, lr=RATE, lamda=STRENGTH)


def data():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(10, 3, generator=draw, dtype=torch.float64), torch.arange(10) % 3


def network(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.Tanh(), nn.Linear(4, 3)).double()


def fit(optimizer, *more, **settings):
    made = {"batch_size": SIZE, "stop": descend.Epochs(3), "shuffle": False, "seed": 3, **settings}
    return descend.fit(network(*more), nn.CrossEntropyLoss(), data(), optimizer=optimizer, **made)


def replayed(updates, strength=0.0):
    """Weights after updates by late gradients: Algorithm 1 (strength 0) and 2 of Zheng et al. 2017.

    updates: for each of them its delay and the number of its mini-batch.
    """
    module, (x, y) = network(), data()
    past = []
    for delay, number in updates:
        now = [p.detach().clone() for p in module.parameters()]
        past.append(now)
        had = past[len(past) - 1 - delay]
        with torch.no_grad():
            for p, w in zip(module.parameters(), had, strict=True):
                p.copy_(w)
        some = slice(SIZE * number, SIZE * (number + 1))
        loss = nn.functional.cross_entropy(module(x[some]), y[some])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, w, w_bak, g in zip(module.parameters(), now, had, gradients, strict=True):
                p.copy_(w - RATE * (g + strength * g * g * (w - w_bak)))
    return {name: p.detach() for name, p in module.named_parameters()}


def delays_of(result):
    return [(int(row["delay"]), int(row["mini_batch"])) for row in result.history if "delay" in row]


def same(weights, expected, tolerance=1e-13):
    for name, w in expected.items():
        torch.testing.assert_close(weights[name], w, rtol=0, atol=tolerance)


def equal(weights, expected):
    assert all(torch.equal(weights[name], w) for name, w in expected.items())


@pytest.mark.parametrize(("optimizer", "strength"), [(SGD, 0.0), (DCASGD, STRENGTH)])
@pytest.mark.parametrize("runner", ["plain", "auto"])
@settings(max_examples=10)
@given(delays=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_late_gradients_make_the_updates_of_the_paper(optimizer, strength, runner, delays):
    late = fit(functools.partial(optimizer, runner=runner), asynchronous=descend.ParameterServer(delays=delays))
    expected = [(min(delays[t % len(delays)], t), t % 4) for t in range(12)]
    assert delays_of(late) == expected
    same(late.weights, replayed(expected, strength))


@pytest.mark.parametrize("optimizer", [SGD, DCASGD])
@pytest.mark.parametrize("more", [{}, {"micro_batch_size": 2}, {"clip_global_norm": 0.1}])
def test_without_delay_it_is_sgd_to_the_bit(optimizer, more):
    server = fit(optimizer, nn.Dropout(0.3), asynchronous=descend.ParameterServer(), **more)
    plain = fit(SGD, nn.Dropout(0.3), **more)
    equal(server.weights, plain.weights)
    whole = [row for row in server.history if "objective" in row]
    assert [row["objective"] for row in whole] == [row["objective"] for row in plain.history]


def test_drawn_delays_depend_on_seed_and_update_alone():
    rule = descend.ParameterServer(largest_delay=3, seed=5)
    drawn = [rule.delay(t) for t in range(200)]
    assert set(drawn) == {0, 1, 2, 3}
    assert [descend.ParameterServer(largest_delay=3, seed=5).delay(t) for t in reversed(range(200))] == drawn[::-1]
    late = fit(SGD, asynchronous=rule)
    same(late.weights, replayed([(min(drawn[t], t), t % 4) for t in range(12)]))


@pytest.mark.parametrize("steps", [1, 5, 8])
def test_weights_that_workers_have_are_saved(steps, tmp_path):
    made = {"asynchronous": descend.ParameterServer(largest_delay=4), "resume": True}
    whole = fit(DCASGD, nn.Dropout(0.3), run_dir=tmp_path / "whole", **made)
    fit(DCASGD, nn.Dropout(0.3), run_dir=tmp_path / "cut", **made, stop=descend.Steps(steps))
    went_on = fit(DCASGD, nn.Dropout(0.3), run_dir=tmp_path / "cut", **made)
    equal(went_on.weights, whole.weights)
    assert delays_of(went_on) == delays_of(whole)


def test_a_gradient_that_is_not_finite_is_left_out():
    x, y = data()
    x[4] = float("nan")
    made = {"optimizer": SGD, "batch_size": SIZE, "stop": descend.Epochs(1), "shuffle": False, "on_nonfinite": "skip"}
    late = descend.ParameterServer(delays=(0, 1))
    result = descend.fit(network(), nn.CrossEntropyLoss(), (x, y), **made, asynchronous=late)
    assert delays_of(result) == [(0, 0), (1, 2), (0, 3)]  # of the second mini-batch there is no update
    same(result.weights, replayed([(0, 0), (1, 2), (0, 3)]))


def test_the_delays_are_printed_at_the_end(capsys):
    result = fit(SGD, asynchronous=descend.ParameterServer(delays=(0, 2), every_steps=4))
    assert "delays of 12 gradients: 0.92 updates on average, 2 at most" in capsys.readouterr().out
    assert [row["step"] for row in result.history if "delay" in row] == [4, 8, 12]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"asynchronous": "yes"}, "asynchronous must be .*got 'yes'"),
        ({"shard_optimizer": True}, "does not go with shard_optimizer"),
        ({"algorithm": descend.KFAC()}, "does not go with algorithm: KFAC"),
        ({"trainers": 2}, "does not go with trainers: there are 2"),
        ({"gradient_compression": "sign", "optimizer": functools.partial(descend.optim.SignSGD)}, "gradient_compres"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, words):
    made = {"optimizer": SGD, "asynchronous": descend.ParameterServer(), **settings}
    with pytest.raises(ConfigurationError, match=words):
        fit(**made)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"delays": (0, -1)}, r"delays\[1\] must be an integer >= 0, got -1"),
        ({"largest_delay": 1.5}, "largest_delay must be an integer >= 0, got 1.5"),
        ({"delays": (1,), "largest_delay": 2}, "leave out one"),
        ({"delay": (1,)}, "did you mean 'delays'"),
    ],
)
def test_a_wrong_server_is_refused(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        descend.ParameterServer(**fields)
