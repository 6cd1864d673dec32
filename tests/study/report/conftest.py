"""A finished study whose records were made up: two arms at two batch sizes, of which one diverges at high rates."""

import pytest
from study_tasks import fabricated

from descend.study.design import Arm, Study, log
from descend.study.results import compare_records


@pytest.fixture(scope="session")
def result():
    study = Study(
        name="digits <&> more",
        workload="t.py:t",
        batch_sizes=(32, 128),
        steps=(20,),
        arms={"sgd": Arm("SGD", {"lr": log(0.05, 1.0)}), "wild": Arm("SGD", {"lr": log(1.0, 1e30)})},
        trials=4,
        searches=2,
        shortlist=1,
        confirmation_seeds=6,
        metric="loss",
        target={"value": 0.5},
        select="steps",
    )
    return compare_records(study, fabricated(study, score))


def score(trial):
    return "diverged" if trial.configuration["lr"] > 1e3 else 0.6 + 1e-4 * (trial.seed % 1000)


@pytest.fixture(scope="session")
def by_value():
    """One batch size, compared by accuracy, with rate and decay searched over."""
    space = {"lr": log(0.05, 1.0), "weight_decay": log(1e-4, 1e-1)}
    study = Study(
        workload="t.py:t",
        batch_sizes=(32,),
        steps=(20,),
        arms={"a": Arm("SGD", space), "b": Arm("SGD", space, {}, "cosine")},
        trials=16,
        searches=2,
        shortlist=1,
        confirmation_seeds=6,
        target={"value": 0.7},
        reference={"a": "75.97 % on ImageNet"},
    )
    return compare_records(study, fabricated(study, peaked))


def peaked(trial):
    """Best at the rate 0.2, whatever the decay."""
    rate = trial.configuration["lr"]
    return "diverged" if rate > 0.8 else 0.9 - (rate - 0.2) ** 2 + 1e-5 * (trial.seed % 100)
