import itertools

import numpy as np
import pytest
import torch
from callback_runs import follow, in_one_go_and_in_two
from toys import Regression, data

from descend.callbacks import GradientNoiseScale, GradientNorm, UpdateNorm, WeightNorm
from descend.data import ArrayReader, Batches
from descend.errors import ConfigurationError
from descend.train import Callback


class Keep(Callback):
    def after_setup(self, run):
        self.gradients, self.weights = [], [self._flat(run.module)]

    def after_backward(self, step):
        self.gradients.append(torch.cat([p.grad.flatten() for p in step.module.parameters()]))

    def after_step(self, step):
        self.weights.append(self._flat(step.module))

    def _flat(self, module):
        return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def test_norms_against_flat_vectors():
    keep = Keep()
    run = follow(keep, GradientNorm(every_steps=2), WeightNorm(every_steps=2), UpdateNorm(every_steps=2))
    rows = {(row["step"], name): row[name] for row in run.history for name in row if name.endswith("_norm")}
    for step in (2, 4, 6):
        before, after = keep.weights[step - 1], keep.weights[step]
        assert rows.pop((step, "gradient_norm")) == pytest.approx(float(keep.gradients[step - 1].norm()))
        assert rows.pop((step, "weight_norm")) == pytest.approx(float(after.norm()))
        assert rows.pop((step, "update_norm")) == pytest.approx(float((after - before).norm()))
    assert rows == {}


def test_rows_stand_once_each_after_restarts(tmp_path):
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [GradientNorm(every_steps=1)])
    for result in (whole, parts):
        steps = [row["step"] for row in result.history if "gradient_norm" in row]
        assert steps == list(range(1, 25))
    ours, theirs = (
        [{k: v for k, v in row.items() if k != "seconds"} for row in result.history] for result in (parts, whole)
    )
    assert ours == theirs


def test_the_noise_scale_is_that_of_the_exact_gradients_of_all_examples():
    """At frozen weights |G|² and tr(Σ) are sums over the gradients of all examples, and many steps average to them."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2048, 3))
    y = x @ np.array([[1.0], [0.5], [-0.3]]) + draw.normal(size=(2048, 1))
    task = Regression()
    gradients = []
    w, b = task.module.weight.detach().numpy(), task.module.bias.detach().numpy()
    error = x @ w.T + b - y
    gradients = np.concatenate([2 * error * x, 2 * error], axis=1)  # of (w·x + b − y)²
    mean = gradients.mean(0)
    square, variance = mean @ mean, gradients.var(0, ddof=1).sum()
    batches = Batches(ArrayReader({"x": x, "y": y}), 64, seed=1, shuffle=True)
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.0)
    callback = GradientNoiseScale(every_steps=64, micro_batch_size=8)
    run = follow(callback, task=task, batches=batches, optimizer=optimizer, epochs=4)
    row = [row for row in run.history if "noise_scale" in row][-1]
    assert row["step"] == 128
    assert row["gradient_variance"] == pytest.approx(variance, rel=0.02)
    assert row["gradient_square"] == pytest.approx(square, rel=0.02)
    assert row["noise_scale"] == pytest.approx(variance / square, rel=0.04)


def test_the_noise_scale_of_one_step_by_hand():
    """m = 3 micro-batches of b = 4: q and Q from three separate backward passes."""
    task, batches = Regression(), data(samples=12, ignored=(), batch_size=12)
    (batch,) = batches.epoch(0)
    parts = []
    for start in range(0, 12, 4):
        x, y = (torch.from_numpy(batch.fields[name][start : start + 4]) for name in "xy")
        loss = (task.module(x) - y).square().mean()
        parts.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(task.module.parameters()))]))
    q = sum(float(g @ g) for g in parts) / 3
    whole = float((mean := sum(parts) / 3) @ mean)
    run = follow(GradientNoiseScale(every_steps=1, micro_batch_size=4), task=task, batches=batches, epochs=1)
    (row,) = [row for row in run.history if "noise_scale" in row]
    assert row["gradient_square"] == pytest.approx((3 * whole - q) / 2)
    assert row["gradient_variance"] == pytest.approx(4 * 3 / 2 * (q - whole))


def test_the_noise_scale_of_uneven_micro_batches_is_unbiased():
    """|gⱼ|² is |G|² + tr(Σ) / bⱼ in the mean: over all ways to draw a batch of 2 + 1 samples from four, the mean of the
    estimates is exact for samples drawn with replacement."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(4, 3)), draw.normal(size=(4, 1))
    task = Regression()
    error = x @ task.module.weight.detach().numpy().T + task.module.bias.detach().numpy() - y
    gradients = np.concatenate([2 * error * x, 2 * error], axis=1)
    mean = gradients.mean(0)
    squares, variances = [], []
    for chosen in itertools.product(range(4), repeat=3):
        some = list(chosen)
        batches = Batches(ArrayReader({"x": x[some], "y": y[some]}), 3, seed=1, shuffle=False)
        optimizer = torch.optim.SGD(task.module.parameters(), lr=0.0)
        callback = GradientNoiseScale(every_steps=1, micro_batch_size=2)
        run = follow(callback, task=task, batches=batches, optimizer=optimizer, epochs=1)
        (row,) = [row for row in run.history if "noise_scale" in row]
        squares.append(row["gradient_square"])
        variances.append(row["gradient_variance"])
    assert np.mean(squares) == pytest.approx(mean @ mean)
    assert np.mean(variances) == pytest.approx(gradients.var(0).sum())


def test_a_mini_batch_that_is_not_cut_is_refused_or_left_out():
    with pytest.raises(ConfigurationError, match="set micro_batch_size="):
        follow(GradientNoiseScale())
    batches = data(samples=10, ignored=(), batch_size=8)  # 8 = 4 + 4, and 2 at the end
    run = follow(GradientNoiseScale(every_steps=1, micro_batch_size=4), batches=batches, epochs=2)
    assert [callback.steps for callback in run.callbacks.all] == [2]
