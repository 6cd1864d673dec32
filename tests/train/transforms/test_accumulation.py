"""Accumulated gradients: k mini-batches of n samples are one mini-batch of k n samples, to rounding."""

import functools

import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError

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
