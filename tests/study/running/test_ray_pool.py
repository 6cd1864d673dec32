"""Trials on a real Ray of two nodes: workers, a node and the driver are killed, and nothing else is lost."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from study_tasks import mlp
from system_needs import library

from descend.errors import ConfigurationError, DescendError, MissingExtra
from descend.study.comparing import run_study
from descend.study.design import Arm, Study, log
from descend.study.design.toml import to_toml
from descend.study.running.plan import total_trials
from descend.study.running.ray_pool import Ended, RayCluster, conduct_in_pool
from descend.study.running.scheduler import RecordKeeper, conduct
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record, TrialSetup
from descend.study.running.trial_store import Memory, StudyDirectory

TESTS = Path(__file__).parents[2]
ARMS = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-3, 1e-1)})}


def study(**fields):
    sizes = {"trials": 2, "searches": 2, "shortlist": 1, "shortlist_seeds": 0, "confirmation_seeds": 2}
    given = {"workload": f"{TESTS / 'study_tasks.py'}:mlp", "steps": (400,), "evaluations": 2, "arms": ARMS}
    return Study(batch_sizes=(32,), **{**given, **sizes, **fields})


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "", "head:"])
def test_an_address_is_auto_or_a_host_with_a_port(address):
    with pytest.raises(ConfigurationError, match="must be 'auto' or HOST:PORT"):
        RayCluster(address)
    assert RayCluster("[::1]:6379") != RayCluster("node-1.cluster:6379")


def test_a_missing_ray_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install ray$"):
        conduct(study(), Memory(), executor="ray")


def test_python_objects_cannot_be_sent_to_other_machines():
    unnamed = study(workload=mlp(), arms={"own": Arm(type("Own", (), {}), {"lr": log(1e-2, 1.0)})})
    with pytest.raises(ConfigurationError) as error:
        conduct(unnamed, Memory(), executor="ray")
    assert "write it as 'file.py:function' or 'module:function'" in error.value.problems[0]
    assert "arms.own: " in error.value.problems[1]


def test_no_cluster_at_an_address_is_said(monkeypatch, tmp_path):
    library("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match=r"no Ray cluster at 'auto' .*ray start --head"):
        run_study(study(), tmp_path, executor=RayCluster("auto"))
    assert not StudyDirectory(tmp_path).records()


def workers():
    """Processes of this machine that run a trial for Ray."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if re.match(rb"ray::(sgd|adam)/", (folder / "cmdline").read_bytes()):  # a task, named for its trial
                found.append(int(folder.name))
    return found


@pytest.fixture
def cluster(monkeypatch):
    library("ray")
    from ray.cluster_utils import Cluster

    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # 15 by itself: a busy machine starves workers
    for name, value in {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **own}.items():
        monkeypatch.setenv(name, value)
    up = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield up
    up.shutdown()


@pytest.mark.slow(seconds=30)
def test_workers_a_node_and_the_driver_are_killed_and_the_report_is_that_of_an_undisturbed_run(
    cluster, tmp_path, monkeypatch
):
    node, described, chance = cluster.add_node(num_cpus=1), study(), random.Random(0)
    (tmp_path / "study.toml").write_text(to_toml(described))
    command = [sys.executable, "-m", "descend", "study", "run", "study.toml", "ray", "--executor", "ray"]
    driver = subprocess.Popen([*command, "--address", cluster.address], cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "ray").glob("records/*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    for lease in (tmp_path / "ray" / "leases").iterdir():
        os.utime(lease, (1, 1))  # a minute later

    killed = []

    def said(records, record):
        if len(killed) < 2 and (busy := workers()):
            killed.append(chance.choice(busy))
            os.kill(killed[-1], signal.SIGKILL)
        elif len(killed) == 2:
            killed.append(cluster.remove_node(node, allow_graceful=False))

    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*runs again")
        result = run_study(described, tmp_path / "ray", executor=RayCluster(cluster.address), said=said)
    assert len(killed) == 3
    assert result.report(tmp_path / "ray").read_bytes() == undisturbed(described, tmp_path).read_bytes()
    lines = [line for file in (tmp_path / "ray" / "records").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(StudyDirectory(tmp_path / "ray").records()) == total_trials(described)


def undisturbed(described, folder):
    return run_study(described, folder / "one", executor="one").report(folder / "one")


TASK = mlp(width=4).prepared()
POOLED_ARMS = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-3, 1e-1)})}
SIZES = {"trials": 3, "searches": 2, "shortlist": 2, "shortlist_seeds": 1, "confirmation_seeds": 2}
STUDY = Study(workload=TASK, batch_sizes=32, steps=(4,), evaluations=2, arms=POOLED_ARMS, **SIZES)


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
