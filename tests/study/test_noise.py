"""The noise scale of a module against that of the gradients of single samples."""

from dataclasses import replace

import pytest
import torch
from study_tasks import mlp

from descend.study import Arm, Study, log, run_study
from descend.study.design.sampling import seed_of
from descend.study.noise import measure_noise, noise_at


def exact(module, task):
    """tr(Σ)/‖G‖² from the gradient of every sample, taken one by one."""
    weights = list(module.parameters())
    rows = []
    for x, y in zip(*task.train, strict=True):
        loss = torch.nn.functional.cross_entropy(module(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]).double())
    table = torch.stack(rows)
    mean = table.mean(0)
    return float(((table - mean) ** 2).sum(1).mean() / mean.square().sum())


def test_it_is_that_of_single_samples():
    whole = mlp().prepared()
    task = replace(whole, train=tuple(part[:300] for part in whole.train))
    module = task.module(3)
    before = {name: p.clone() for name, p in module.named_parameters()}
    found = noise_at(module, task, parts=16, part_size=16, repeats=40, seed=0)
    known = exact(module, task)
    assert found.interval.holds(known)
    assert found.scale == pytest.approx(known, rel=0.1)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in module.named_parameters())


def test_it_is_taken_along_the_run_of_a_winner():
    arms = {"sgd": Arm("SGD", {"lr": log(0.3, 0.4)})}
    least = {"trials": 1, "searches": 1, "shortlist": 1, "confirmation_seeds": 1}
    study = Study(workload=mlp, batch_sizes=32, steps=20, arms=arms, **least)
    comparison = run_study(study)
    points = measure_noise(comparison, comparison.groups[0].rows[0], looks=2, parts=8, part_size=16, repeats=10)
    assert [point.step for point in points] == [0, 10, 20]
    options = {"parts": 8, "part_size": 16, "repeats": 10}
    begun = mlp().prepared()
    first = noise_at(begun.module(seed_of(0, "noise", 0)), begun, seed=seed_of("noise", 0), **options)
    assert points[0].found == first
    assert points[1].found.scale != first.scale
