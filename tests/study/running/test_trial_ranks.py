"""Trials on several ranks: the scores of one rank, and an end in words where the ranks fail."""

from pathlib import Path

import pytest
from study_tasks import mlp, trial

from descend.study.design import Arm, Needs, Study, log
from descend.study.running import trial_ranks
from descend.study.running.described_trial import DescribedTrial
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record
from descend.study.running.trial_ranks import run_on_ranks, work_as_rank
from descend.study.running.trial_setup import TrialSetup

TESTS = Path(__file__).parents[2]
TASK = mlp(width=4, double=True).prepared()


def setup(folder, **fields):
    described = Study(
        workload=f"{TESTS / 'study_tasks.py'}:mlp",
        workload_options={"width": 4, "double": True},
        batch_sizes=32,
        steps=20,
        evaluations=2,
        arms={"a": Arm("SGD", {"lr": log(1e-3, 1.0)})},
        needs=Needs(ranks=2),
        checkpoint_every=8,
        **fields,
    )
    return TrialSetup.of(described, folder)


def test_what_a_rank_does(tmp_path):
    given, found = tmp_path / "trial.json", tmp_path / "record.json"
    given.write_text(DescribedTrial.of(setup(tmp_path), trial(steps=20)).text())
    work_as_rank(given, found)
    assert Record.read(found.read_text()).scores == run_trial(TASK, trial(steps=20), 2).scores


def test_ranks_that_fail_are_an_error_with_their_last_words(tmp_path, monkeypatch):
    program = ["bash", "-c", "echo far; echo no memory left >&2; exit 3"]
    monkeypatch.setattr(trial_ranks.local, "command", lambda ranks, arguments: program)
    (record,) = run_on_ranks(TASK, [trial()], 2, setup=setup(tmp_path))
    assert (record.status, record.message) == ("error", "its 2 ranks ended with exit code 3: no memory left")


@pytest.mark.slow
def test_two_ranks_give_the_scores_of_one_and_save_the_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    given = setup(tmp_path)
    (record,) = run_on_ranks(TASK, [trial(steps=20)], 2, setup=given)
    assert record.status == "done", record.message
    alone = run_trial(TASK, trial(steps=20), 2)
    for split in ("train", "validation"):
        assert record.scores[split]["loss"] == pytest.approx(alone.scores[split]["loss"], rel=1e-12)
    assert (given.checkpoints.run_dir(trial(steps=20)) / "checkpoints" / "step-20").is_dir()
