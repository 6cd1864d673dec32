"""Which records count, which trials failed too often, and what becomes of checkpoints."""

import pytest
from study_tasks import trial

from descend.errors import DescendError
from descend.study.running.record_keeper import RecordKeeper
from descend.study.running.trial import Record
from descend.study.running.trial_setup import TrialCheckpoints, TrialSetup
from descend.study.running.trial_store import Memory


def silent(records, record):
    pass


def test_errors_are_not_settled_and_the_second_one_ends_the_study():
    keeper = RecordKeeper(Memory(), TrialSetup(), silent)
    keeper.keep([Record(trial(1), "diverged"), Record(trial(2), "error", message="mine")])
    assert [record.status for record in keeper.settled().values()] == ["diverged"]
    keeper.keep([Record(trial(2), "out of memory", message="too large")])
    with pytest.raises(DescendError) as error:
        keeper.settled()
    assert list(error.value.problems) == [f"{trial(2).id}: out of memory: too large"]


def test_errors_of_other_processes_are_tried_here_as_often():
    ledger = Memory()
    ledger.record(Record(trial(1), "error"))
    keeper = RecordKeeper(ledger, TrialSetup(), silent)
    keeper.keep([Record(trial(1), "error")])
    assert keeper.settled() == {}


def test_each_record_is_said_with_those_before_it():
    said = []
    keeper = RecordKeeper(
        Memory(), TrialSetup(), lambda records, record: said.append((len(records), record.trial.index))
    )
    keeper.settled()
    keeper.keep([Record(trial(1), "diverged"), Record(trial(2), "diverged")])
    assert said == [(0, 1), (1, 2)]


def test_checkpoints_are_kept_for_trials_that_run_again(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    for index in (1, 2):
        saved.run_dir(trial(index)).mkdir()
    keeper = RecordKeeper(Memory(), TrialSetup(checkpoints=saved), silent)
    keeper.keep([Record(trial(1), "error"), Record(trial(2), "diverged")])
    assert list(tmp_path.iterdir()) == [saved.run_dir(trial(1))]
