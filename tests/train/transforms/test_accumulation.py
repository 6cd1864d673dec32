"""Accumulated gradients: k mini-batches of n samples are one mini-batch of k n samples, to rounding."""

import copy
import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError
from descend.runtime import flatten, unflatten
from descend.train.transforms import accumulation
from descend.train.transforms.accumulation import AccumulateGradients

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=DRAW, dtype=torch.float64)
Y = torch.randn(24, 1, generator=DRAW, dtype=torch.float64)


def network(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.Tanh(), nn.Linear(4, 1)).double()


def fit(module, batch_size, **settings):
    made = {"optimizer": functools.partial(torch.optim.Adam, lr=0.05), "stop": descend.Epochs(3), "shuffle": False}
    return descend.fit(module, "mse", (X, Y), batch_size=batch_size, **{**made, **settings})


def close(a, b):
    for name, w in a.weights.items():
        torch.testing.assert_close(w, b.weights[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("batch_size", "every"), [(4, 3), (2, 6), (12, 1)])
@pytest.mark.parametrize("more", [(), (nn.Dropout(0.4),)], ids=["plain", "dropout"])
def test_mini_batches_of_an_update_are_one_mini_batch(batch_size, every, more):
    whole = fit(network(*more), 12)
    parts = fit(network(*more), batch_size, strategy=descend.GradientAccumulation(every=every))
    close(parts, whole)
    assert parts.steps == whole.steps == 6


def test_how_many_there_are_may_change_with_the_update():
    """Updates of 1, 2, 4, 1, 2, 4 mini-batches of 4 samples, against torch's own steps on those samples."""
    module, plain = network(), network()
    sizes = [1, 2, 4, 1, 2, 2]
    rule = descend.GradientAccumulation(every=lambda update: sizes[update])
    found = fit(module, 4, strategy=rule, stop=descend.Epochs(2))
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    order = torch.cat([torch.arange(24), torch.arange(24)])
    begin = 0
    for size in sizes:
        some = order[begin : begin + 4 * size]
        begin += 4 * size
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(X[some]), Y[some]).backward()
        optimizer.step()
    assert begin == 48
    assert found.steps == 6
    for name, p in plain.named_parameters():
        torch.testing.assert_close(found.weights[name], p.detach(), rtol=1e-12, atol=1e-14)


def test_clipping_sees_the_mean_and_not_the_parts():
    whole = fit(network(), 12, clip_global_norm=0.05)
    parts = fit(network(), 4, clip_global_norm=0.05, strategy=descend.GradientAccumulation(every=3))
    close(parts, whole)


@pytest.mark.parametrize("batches", [1, 2, 4, 7])
def test_a_checkpoint_within_a_window_goes_on_with_it(batches, tmp_path):
    class Stop(descend.Callback):
        seen = 0

        def before_step(self, step):
            self.seen += 1
            if self.seen == batches + 1:
                raise KeyboardInterrupt

        def before_run(self, run):
            self.save = run.save

    class Save(descend.Callback):
        seen = 0

        def before_step(self, step):
            self.seen += 1
            if self.seen == batches + 1:
                step.run.save()

    settings = {"strategy": descend.GradientAccumulation(every=3), "resume": True}
    module = functools.partial(network, nn.Dropout(0.4))
    whole = fit(module(), 4, run_dir=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        fit(module(), 4, run_dir=tmp_path / "cut", callbacks=[Save(), Stop()], **settings)
    again = fit(module(), 4, run_dir=tmp_path / "cut", **settings)
    assert all(torch.equal(w, again.weights[name]) for name, w in whole.weights.items())


def test_a_mini_batch_that_is_not_finite_is_left_out_of_the_sum():
    x = X.clone()
    x[5] = float("nan")
    made = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 4, "shuffle": False}
    rule = descend.GradientAccumulation(every=2)
    found = descend.fit(
        network(), "mse", (x[:12], Y[:12]), stop=descend.Epochs(1), on_nonfinite="skip", strategy=rule, **made
    )
    kept = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    expected = descend.fit(network(), "mse", (X[kept], Y[kept]), stop=descend.Epochs(1), **{**made, "batch_size": 8})
    close(found, expected)
    assert found.history[0]["skipped_steps"] == 1


@pytest.mark.parametrize("every", [0, 1.5, True])
def test_what_is_no_number_of_mini_batches_is_refused(every):
    with pytest.raises(ConfigurationError, match="every must be an integer >= 1"):
        descend.GradientAccumulation(every=every)
    with pytest.raises(ConfigurationError, match="at update 0: every must be"):
        fit(network(), 4, strategy=descend.GradientAccumulation(every=lambda update: every))


class Words(nn.Module):
    """A table of which each sample uses one row; its gradient is sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(5, 2, sparse=True).double()

    def forward(self, x):
        return self.table(x).sum(1, keepdim=True)


def test_k_fac_is_refused_since_it_would_see_the_mini_batches():
    with pytest.raises(ConfigurationError, match=r"GradientAccumulation\(every=2\).*does not go with K-FAC"):
        fit(network(), 4, strategy=descend.GradientAccumulation(every=2), algorithm=descend.KFAC())


# ---- the transform by itself, over fake runs


def window(every, parameters):
    run = SimpleNamespace(
        parameters=parameters,
        strategy=SimpleNamespace(local_parameters=lambda: parameters),
        optimizer=None,
        state=SimpleNamespace(step=0),
        communicator=SimpleNamespace(device=torch.device("cpu")),
    )
    found = AccumulateGradients(every)
    found.setup(run)
    return found


def given(parameters, count, **gradients):
    for name, p in parameters.items():
        p.grad = gradients.get(name)
    return SimpleNamespace(count=count)


def rows(*numbers):
    """A sparse gradient of a (5, 2) table: row i has the value 1/7 for each time it is named."""
    places = torch.tensor([list(numbers)])
    return torch.sparse_coo_tensor(places, torch.full((len(numbers), 2), 1 / 7, dtype=torch.float64), (5, 2))


def through_a_file(state):
    tensors, plain = flatten(state)
    return unflatten(plain, copy.deepcopy(tensors))


def test_the_mean_counts_what_each_mini_batch_counts():
    parameters = {"w": nn.Parameter(torch.zeros(2)), "unused": nn.Parameter(torch.zeros(2))}
    transform = window(2, parameters)
    withheld = transform(given(parameters, 3.0, w=torch.tensor([1.0, 2.0])))
    assert (withheld.reason, withheld.skipped) == ("1 of 2 mini-batches of the update", False)
    assert transform(given(parameters, torch.tensor(1.0), w=torch.tensor([5.0, 6.0]))) is None
    assert parameters["w"].grad.tolist() == [2.0, 3.0]
    assert parameters["unused"].grad is None
    assert transform.state_dict() == {"sums": {}, "count": 0.0, "taken": 0}


@pytest.mark.parametrize("saved_after", [1, 2])
def test_sparse_gradients_are_saved_within_a_window(saved_after):
    gradients = [rows(0, 2, 2), rows(2, 4), rows(0)]
    parameters = {"table": nn.Parameter(torch.zeros(5, 2, dtype=torch.float64))}

    def result(transform, some):
        for gradient in some:
            transform(given(parameters, 3.0, table=gradient))
        return transform

    result(window(3, parameters), gradients)
    whole = parameters["table"].grad
    state = through_a_file(result(window(3, parameters), gradients[:saved_after]).state_dict())
    resumed = window(3, parameters)
    resumed.load_state_dict(state)
    result(resumed, gradients[saved_after:])
    found = parameters["table"].grad
    assert found.is_sparse
    assert torch.equal(found.to_dense(), whole.to_dense())
    expected = sum(gradient.to_dense() for gradient in gradients) / 3
    torch.testing.assert_close(found.to_dense(), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("first", ["sparse", "dense"])
def test_a_parameter_may_have_both_kinds_of_gradients_in_a_window(first):
    parameters = {"table": nn.Parameter(torch.zeros(5, 2, dtype=torch.float64))}
    both = [rows(1), torch.ones(5, 2, dtype=torch.float64)]
    transform = window(2, parameters)
    for gradient in both if first == "sparse" else both[::-1]:
        transform(given(parameters, 1.0, table=gradient))
    torch.testing.assert_close(parameters["table"].grad, (both[0].to_dense() + 1) / 2)


def test_a_run_with_a_sparse_table_goes_on_within_a_window(tmp_path):
    x, y = torch.tensor([0, 2, 2, 4, 0, 1, 3, 3]), Y[:8]
    settings = {
        "optimizer": functools.partial(torch.optim.SGD, lr=0.3),
        "batch_size": 2,
        "shuffle": False,
        "strategy": descend.GradientAccumulation(every=2),
        "resume": True,
    }

    class Stop(descend.Callback):
        def before_step(self, step):
            if step.batch.step == 1 and step.epoch == 0:
                step.run.save()
                raise KeyboardInterrupt

    def one(name, **more):
        return descend.fit(Words(), "mse", (x, y), run_dir=tmp_path / name, stop=descend.Epochs(2), **settings, **more)

    whole = one("whole")
    with pytest.raises(KeyboardInterrupt):
        one("cut", callbacks=[Stop()])
    again = one("cut")
    assert all(torch.equal(w, again.weights[name]) for name, w in whole.weights.items())


def test_sums_of_sharded_parameters_are_gathered_and_sharded_again(monkeypatch):
    """Rank zero writes the checkpoint, so what it keeps must be whole."""
    monkeypatch.setattr(accumulation, "unsharded", lambda sums: {name: torch.cat([w, w]) for name, w in sums.items()})
    monkeypatch.setattr(accumulation, "shard_like", lambda whole, p: whole[: len(p)])
    parameters = {"w": nn.Parameter(torch.zeros(2))}
    transform = window(2, parameters)
    transform(given(parameters, 2.0, w=torch.tensor([1.0, 2.0])))
    state = transform.state_dict()
    assert state["sums"]["w"].tolist() == [2.0, 4.0, 2.0, 4.0]
    resumed = window(2, parameters)
    resumed.load_state_dict(state)
    assert resumed(given(parameters, 2.0, w=torch.tensor([3.0, 4.0]))) is None
    assert parameters["w"].grad.tolist() == [2.0, 3.0]
