"""Jobs on a real Slurm that the test starts on this machine: run, signalled, saved, requeued, resumed."""

import json
import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from launch.cluster import Cluster
from system_needs import needs_slurm

import descend

pytestmark = [pytest.mark.slow, needs_slurm]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder,
        Cluster(Path(folder)) as up,
    ):
        yield up


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    """A function that starts the experiment by `descend.launcher.run`, with settings of its own."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setattr("descend.launch.job.NODE_LOCAL", ())  # both nodes are this machine
    # n1 is no host name here
    own = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def start(epochs, **settings):
        images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
        scores = descend.FullyConnected(images, num_neurons=10, has_bias=True, name="scores")
        loss = descend.CrossEntropy(descend.Softmax(scores), labels, name="loss")
        model = descend.Model(
            epochs,
            layers=descend.traverse_layer_graph([images, labels]),
            objective_function=descend.ObjectiveFunction([loss]),
        )
        trainer = descend.Trainer(mini_batch_size=20, random_seed=3)
        sgd = descend.SGD(learn_rate=0.05)
        given = {"scheduler": "slurm", "environment": own, "time_limit": 10, **settings}
        return descend.launcher.run(trainer, model, descend.zoo.digits(), sgd, tmp_path / "job", **given)

    return start


def rows(folder):
    path = folder / "job" / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def newest_job(cluster):
    return max(cluster.call("squeue", "-h", "-o", "%i", "-t", "all").split(), key=int)


def test_a_job_over_two_nodes_that_is_waited_for(submit, tmp_path, capfd):
    assert submit(2, nodes=2, procs_per_node=1) == 0
    assert "finished 2 of 2 epochs" in (tmp_path / "job" / "out.log").read_text()
    assert [row["epoch"] for row in rows(tmp_path) if row["mode"] == "train"] == [1, 2]
    assert "finished 2 of 2 epochs" in capfd.readouterr().out


@pytest.mark.timeout(600)
def test_a_job_that_has_to_leave_saves_and_goes_on_in_the_same_directory(cluster, submit, tmp_path, capfd):
    assert submit(60, nodes=1, procs_per_node=2, batch_job=True, partition="debug") == 0
    number = re.search(r"Submitted batch job (\d+)", capfd.readouterr().out).group(1)
    until = time.monotonic() + 200
    while len(rows(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.2)
    cluster.call("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    facts = cluster.wait_for(number, "COMPLETED", "FAILED", "CANCELLED", seconds=400)
    log = "".join((tmp_path / "job" / name).read_text() for name in ("out.log", "err.log"))
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("COMPLETED", "0:0", "1"), log
    assert "stopped by SIGTERM after step" in log
    found = rows(tmp_path)
    assert [row["epoch"] for row in found if row["mode"] == "train"] == list(range(1, 61))
    assert sum(row["mode"] == "restart" for row in found) == 1
    state = json.loads((tmp_path / "job" / "run" / "run.json").read_text())
    assert (len(state["restarts"]), state["end"]["exit_code"]) == (1, 0)


def test_a_rank_that_fails_fails_the_job(cluster, submit, tmp_path):
    """What the ranks were given is damaged between submission and start."""
    assert submit(2, nodes=2, procs_per_node=1, setup_only=True) == 0
    (tmp_path / "job" / "experiment.prototext").write_text("trainer { mini_batch_size: 5 }")
    text = cluster.call("sbatch", str(tmp_path / "job" / "batch.sh"))
    facts = cluster.wait_for(text.split()[-1], "COMPLETED", "FAILED")
    log = (tmp_path / "job" / "err.log").read_text()
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "2:0"), log
    assert "model (layers and objective) is missing" in log
