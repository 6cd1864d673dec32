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

from descend.errors import ConfigurationError, MissingExtra
from descend.study.comparing import run_study
from descend.study.design import Arm, Study, log
from descend.study.design.toml import to_toml
from descend.study.running.plan import total_trials
from descend.study.running.ray_pool import RayCluster
from descend.study.running.scheduler import conduct
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
