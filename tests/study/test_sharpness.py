"""Sharpness along the run of a winner, from the command to the report."""

import re

import pytest
import torch
from study_tasks import mlp
from typer.testing import CliRunner

from descend.study import Arm, Study, read_directory, run_study
from descend.study.commands import app
from descend.study.design.sampling import seed_of


def test_it_is_measured_along_the_run_of_a_winner_and_shown_in_the_report(tmp_path):
    study = Study(
        workload="study_tasks:mlp",
        workload_options={"width": 4},
        batch_sizes=64,
        steps=10,
        arms={"sgd": Arm("SGD", {}, {"lr": 0.1})},
        trials=1,
        searches=1,
        shortlist=1,
        confirmation_seeds=1,
        evaluations=1,
    )
    run_study(study, tmp_path, executor="one")
    given = ["sharpness", str(tmp_path), "--arm", "sgd", "--looks", "1", "--iterations", "8"]
    ended = CliRunner().invoke(app, given)
    assert ended.exit_code == 0, ended.output
    (found,) = read_directory(tmp_path).follow_ups
    assert [point["step"] for point in found["points"]] == [0, 1, 10]
    task = mlp(width=4).prepared()
    module = task.module(seed_of(0, "sharpness", 0))
    assert found["points"][0]["sharpness"] == pytest.approx(top(module, task), rel=0.05)
    assert found["points"][1]["stability"] == pytest.approx(0.1 * found["points"][1]["sharpness"] / 2, rel=1e-3)
    report = read_directory(tmp_path).report(tmp_path).with_suffix(".md").read_text()
    assert re.search(r"\*\*Table \d+\. [Ss]harpness of sgd\*\*", report)


def top(module, task):
    """The largest eigenvalue by power iteration with differences of gradients, in float64, on the first mini-batch."""
    from descend.data import Batches
    from descend.data.tensor_reader import TensorReader

    seed = seed_of(0, "sharpness", 0)
    reader = TensorReader(dict(zip("xy", task.train, strict=True)), "train")
    fields = next(iter(Batches(reader, 64, seed, True).epoch(0))).fields
    module = module.double()
    weights = list(module.parameters())
    x, y = torch.as_tensor(fields["x"]).double(), torch.as_tensor(fields["y"])
    start = [p.detach().clone() for p in weights]

    def slope(vector, h):
        with torch.no_grad():
            for p, w, v in zip(weights, start, vector, strict=True):
                p.copy_(w + h * v)
        return torch.autograd.grad(torch.nn.functional.cross_entropy(module(x), y), weights)

    vector = [torch.ones_like(p) for p in weights]
    for _ in range(150):
        size = torch.cat([v.flatten() for v in vector]).norm()
        vector = [v / size for v in vector]
        pair = zip(slope(vector, 1e-4), slope(vector, -1e-4), strict=True)
        vector = [(above - below) / 2e-4 for above, below in pair]
    return float(torch.cat([v.flatten() for v in vector]).norm())
