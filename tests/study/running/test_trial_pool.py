"""The driver of a pool, with a pool in this process that loses trials: each is recorded once."""

import random
import warnings

import pytest
from study_tasks import mlp

from descend.errors import DescendError
from descend.study.design import Arm, Study, log
from descend.study.running.plan import total_trials
from descend.study.running.record_keeper import RecordKeeper
from descend.study.running.scheduler import conduct
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record
from descend.study.running.trial_pool import Ended, conduct_in_pool
from descend.study.running.trial_setup import TrialSetup
from descend.study.running.trial_store import Memory

TASK = mlp(width=4).prepared()
ARMS = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-3, 1e-1)})}
SIZES = {"trials": 3, "searches": 2, "shortlist": 2, "shortlist_seeds": 1, "confirmation_seeds": 2}
STUDY = Study(workload=TASK, batch_sizes=32, steps=(4,), evaluations=2, arms=ARMS, **SIZES)


class Pool:
    """Runs a trial when it is waited for, in any order; `fate` says what comes of it."""

    def __init__(self, fate, width=3):
        self.fate, self.width = fate, width
        self.under_way, self.most, self.chance = [], 0, random.Random(3)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.under_way.clear()

    def room(self):
        return self.width - len(self.under_way)

    def submit(self, trial):
        self.under_way.append(trial)
        self.most = max(self.most, len(self.under_way))

    def ended(self, seconds):
        trial = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        lost = self.fate(trial)
        return [lost or Ended(trial, run_trial(TASK, trial, STUDY.evaluations))]


class Once(Memory):
    """A ledger that hands out no trial twice before its record is there, and takes no second record."""

    def __init__(self):
        super().__init__()
        self.claimed = set()

    def claim(self, trials, at_most):
        found = super().claim([one for one in trials if one.id not in self.claimed], at_most)
        self.claimed |= {one.id for one in found}
        return found

    def record(self, *records):
        assert not {record.trial.id for record in records} & set(self.records())
        super().record(*records)


def run(pool, ledger):
    keeper = RecordKeeper(ledger, TrialSetup(), lambda records, record: None)
    return conduct_in_pool(STUDY, ledger, pool, keeper)


def scores(records):
    return {name: (record.status, record.scores) for name, record in records.items()}


def test_trials_that_are_lost_with_machines_and_workers_run_again_and_are_recorded_once():
    chance, lost = random.Random(1), []

    def fate(trial):
        if chance.random() < 0.4 and lost.count(trial.id) < 2:
            lost.append(trial.id)
            return Ended(trial, None, "it was lost", machine_lost=chance.random() < 0.5)
        return None

    pool = Pool(fate)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = run(pool, Once())
    assert len(lost) > 5
    assert pool.most == 3
    assert f"{lost[0]}: it was lost; it runs again" in {str(one.message) for one in said}
    assert len(found) == total_trials(STUDY)
    assert scores(found) == scores(conduct(STUDY, Memory(), executor="one", task=TASK))


@pytest.mark.filterwarnings("ignore:.*runs again")
def test_a_trial_that_takes_its_worker_with_it_each_time_ends_the_study():
    def fate(trial):
        return Ended(trial, None, "its worker crashed") if trial.index == 1 else None

    ledger = Memory()
    with pytest.raises(DescendError, match=r"001: error: its worker was lost 3 times: its worker crashed"):
        run(Pool(fate, width=1), ledger)
    assert all(record.status == "done" for record in ledger.records().values() if record.trial.index != 1)


@pytest.mark.filterwarnings("ignore:.*runs again")
def test_machines_may_be_lost_any_number_of_times():
    left = [20]

    def fate(trial):
        left[0] -= 1
        return Ended(trial, None, "its node was lost", machine_lost=True) if left[0] > 0 else None

    assert len(run(Pool(fate, width=1), Once())) == total_trials(STUDY)


def test_an_error_is_recorded_and_tried_once_more():
    tried = []

    def fate(trial):
        tried.append(trial.id)
        return Ended(trial, Record(trial, "error", message="mine")) if tried.count(trial.id) == 1 else None

    found = run(Pool(fate), Memory())
    assert {record.status for record in found.values()} <= {"done", "collapsed"}
    assert max(tried.count(name) for name in tried) == 2
