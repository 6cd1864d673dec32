"""Local SGD and DiLoCo against a float64 replay of the papers' algorithms; on one rank, and on two in tests/ranks."""

import copy
import functools

import pytest
import torch
from thread_ranks import on_ranks
from torch import nn
from toys import Regression, data

import descend
from descend.errors import ConfigurationError
from descend.experiment.build import build_run
from descend.runtime import Communicator
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.run import RunConfig

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=DRAW, dtype=torch.float64)
Y = torch.randn(24, 1, generator=DRAW, dtype=torch.float64)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.05)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def fit(rule, **settings):
    made = {"optimizer": ADAMW, "batch_size": 4, "stop": descend.Epochs(2), "shuffle": False, **settings}
    return descend.fit(network(), "mse", (X, Y), strategy=rule, **made)


def replayed(steps, lr, momentum, nesterov):
    """12 inner steps on one rank, with the outer step after every `steps` of them."""
    module = network()
    inner = ADAMW(module.parameters())
    outer = [p.detach().clone() for p in module.parameters()]
    speed = [torch.zeros_like(p) for p in outer]
    for number in range(12):
        some = slice(4 * (number % 6), 4 * (number % 6) + 4)
        inner.zero_grad()
        nn.functional.mse_loss(module(X[some]), Y[some]).backward()
        inner.step()
        if (number + 1) % steps == 0:
            for p, x, m in zip(module.parameters(), outer, speed, strict=True):
                delta = x - p.detach()
                m.mul_(momentum).add_(delta)
                x.sub_(delta + momentum * m if nesterov else m, alpha=lr)
                p.data.copy_(x)
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("steps", "lr", "momentum", "nesterov"), [(1, 1.0, 0.0, True), (3, 0.7, 0.9, True), (4, 0.5, 0.8, False)]
)
def test_one_rank_makes_the_updates_of_the_paper(steps, lr, momentum, nesterov):
    rule = descend.LocalSGD(steps=steps, outer_lr=lr, outer_momentum=momentum, nesterov=nesterov)
    found = fit(rule)
    for name, expected in replayed(steps, lr, momentum, nesterov).items():
        torch.testing.assert_close(found.weights[name], expected, rtol=1e-12, atol=1e-14)


def test_without_an_outer_optimizer_one_rank_is_plain_training():
    plain = fit(None)
    local = fit(descend.LocalSGD(steps=5))
    for name, w in plain.weights.items():
        torch.testing.assert_close(local.weights[name], w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_run_that_goes_on_within_a_window_ends_with_the_same_bits(cut, tmp_path):
    rule = descend.LocalSGD(steps=3, outer_lr=0.7, outer_momentum=0.9)
    whole = fit(rule, run_dir=tmp_path / "whole", resume=True)
    fit(rule, run_dir=tmp_path / "cut", resume=True, stop=descend.Steps(cut))
    again = fit(rule, run_dir=tmp_path / "cut", resume=True)
    assert all(torch.equal(w, again.weights[name]) for name, w in whole.weights.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be an integer >= 1"),
        ({"outer_lr": 0.0}, "outer_lr must be a finite number > 0"),
        ({"outer_momentum": 1.0}, "outer_momentum must be"),
        ({"nesterov": "no"}, "nesterov must be True or False"),
        ({"step": 3}, "did you mean 'steps'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        descend.LocalSGD(**settings)


def test_a_run_has_one_strategy():
    with pytest.raises(ConfigurationError, match="each is a strategy, and a run has one"):
        fit(descend.LocalSGD(), gradient_compression="sign")
    with pytest.raises(ConfigurationError, match="strategy must be a strategy such as"):
        fit("local")


# ---- several ranks, which are threads


class Counting(Regression):
    """With a buffer of each kind, which every forward pass in training changes."""

    def __init__(self, rank):
        super().__init__()
        self.module.register_buffer("seen", torch.tensor(rank))
        self.module.register_buffer("mean", torch.tensor(float(rank), dtype=torch.float64))


def run_on(communicator, rule):
    task = Counting(communicator.rank)
    return build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer()),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9),
        data={Mode.TRAIN: data()},
        world=communicator,
        strategy=rule,
        micro_batch_size=10,
    )


def steps_of(run, numbers):
    """Inner steps by gradients that differ between ranks."""
    for number in numbers:
        for p in run.parameters.values():
            p.grad = torch.full_like(p, 1.0 + number + 10 * run.strategy._communicator.rank)
        run.strategy.optimizer_step(None)


def tensors(run):
    return {name: t.detach().clone() for name, t in run.task.module.state_dict().items()}


def inner(rank, numbers):
    """By how much the parameters of a rank have moved: SGD with momentum 0.9 and rate 0.1."""
    speed = moved = 0.0
    for number in numbers:
        speed = 0.9 * speed + 1.0 + number + 10 * rank
        moved -= 0.1 * speed
    return moved


def test_an_evaluation_sees_the_means_of_all_ranks_and_training_goes_on_from_its_own():
    def act(communicator):
        run = run_on(communicator, descend.LocalSGD(steps=5))
        start = tensors(run)
        steps_of(run, range(2))
        own = tensors(run)
        with run.strategy.evaluating():
            seen = tensors(run)
        after = tensors(run)
        run.strategy.end_training()
        return start, own, seen, after, tensors(run)

    for rank, (start, own, seen, after, end) in enumerate(on_ranks(2, act)):
        mean = (inner(0, range(2)) + inner(1, range(2))) / 2
        torch.testing.assert_close(own["weight"], start["weight"] + inner(rank, range(2)))
        torch.testing.assert_close(seen["weight"], start["weight"] + mean)
        assert (seen["seen"].item(), seen["mean"].item()) == (0, 0.5)  # integers are those of rank zero
        assert (after["seen"].item(), after["mean"].item()) == (rank, rank)
        assert all(torch.equal(after[name], own[name]) for name in own)
        assert all(torch.equal(end[name], seen[name]) for name in seen)


def resumed(ranks, states):
    """The runs of `ranks` ranks that continue with these strategies' states, from the parameters of rank zero."""

    def act(communicator):
        run = run_on(communicator, descend.LocalSGD(steps=4, outer_lr=0.5, outer_momentum=0.9))
        run.task.module.load_state_dict(states[0][1])
        run.strategy.load_state_dict(states[0][0])
        run.strategy.restored()
        before = tensors(run)
        steps_of(run, range(3, 6))
        return before, tensors(run)

    return on_ranks(ranks, act)


def interrupted(communicator):
    run = run_on(communicator, descend.LocalSGD(steps=4, outer_lr=0.5, outer_momentum=0.9))
    steps_of(run, range(3))
    state = copy.deepcopy(run.strategy.state_dict()), tensors(run)
    steps_of(run, range(3, 6))
    return state, tensors(run)


def test_each_rank_goes_on_with_its_own_parameters_buffers_and_optimizer():
    whole = on_ranks(2, interrupted)
    again = resumed(2, [state for state, _ in whole])
    for (state, end), (before, found) in zip(whole, again, strict=True):
        assert all(torch.equal(before[name], t) for name, t in state[1].items())
        assert all(torch.equal(found[name], t) for name, t in end.items())


def test_another_number_of_ranks_begins_a_new_window_at_the_outer_parameters():
    whole = on_ranks(2, interrupted)
    start = tensors(run_on(Communicator(), None))
    for before, found in resumed(3, [state for state, _ in whole]):
        assert torch.equal(before["weight"], start["weight"])  # no outer step was made before
        assert not torch.equal(found["weight"], before["weight"])
    [(before, found)] = resumed(1, [state for state, _ in whole])
    torch.testing.assert_close(
        found["weight"], before["weight"] + inner(0, range(3, 6))
    )  # 3 of 4 steps of a new window


def test_the_defaults_are_local_sgd_with_windows_of_eight():
    assert descend.LocalSGD() == descend.LocalSGD(steps=8, outer_lr=1.0, outer_momentum=0.0, nesterov=True)
