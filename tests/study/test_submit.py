"""Studies as job arrays: the script, and tasks of a real Slurm that have to leave in the middle of a trial."""

import os
import tempfile
import time
from pathlib import Path

import pytest
from launch.cluster import Cluster
from system_needs import needs_slurm
from typer.testing import CliRunner

from descend.errors import ConfigurationError
from descend.study.commands import app
from descend.study.comparing import run_study
from descend.study.design import read_study
from descend.study.running.plan import total_trials
from descend.study.running.scheduler import conduct
from descend.study.running.trial_store import Memory, StudyDirectory
from descend.study.submit import ArrayOptions, submit_study

TESTS = Path(__file__).parents[1]
FILE = """
name = "small"
workload = "task.py:task"
batch_sizes = 32
steps = 40
trials = 2
searches = 1
shortlist = 1
shortlist_seeds = 0
confirmation_seeds = 1
evaluations = 4
[needs]
cores = 1
[arms.sgd]
optimizer = "SGD"
fixed = { momentum = 0.9 }
space.lr = { log = [0.01, 1] }
"""
TASK = """
import os, time
from dataclasses import replace
import torch
from study_tasks import mlp
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        if torch.is_grad_enabled() and "STEPS" in os.environ:
            time.sleep(0.05)
            with open(os.environ["STEPS"], "a") as file:
                file.write("1")
        return super().forward(x)

def task():
    return replace(mlp(), model=lambda: Slow(nn.Linear(64, 8), nn.Dropout(0.2), nn.Linear(8, 10)))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Takes the place of one on a shared file system, with a study."""
    monkeypatch.setattr("descend.launch.job.NODE_LOCAL", ())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TESTS)
    Path("task.py").write_text(TASK)
    Path("study.toml").write_text(FILE)
    return tmp_path


def script(folder, *changes, tasks=None, **options):
    """The lines of the script of the study, whose file is changed."""
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("study.toml").write_text(text)
    submit_study(Path("study.toml"), folder / "runs", tasks, ArrayOptions(**options), setup_only=True)
    return (folder / "runs" / "slurm" / "batch.sh").read_text().splitlines()


def test_a_task_has_what_a_trial_needs(folder):
    needs = ("cores = 1", "cores = 3\nmemory_gib = 0.5\nranks = 2")
    lines = script(folder, needs, tasks=7, time_limit=90, partition="batch", account="x")
    logs = f"{folder}/runs/slurm"
    for option in (
        "--job-name=small",
        "--array=0-6",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=6",
        "--mem=1024M",
        "--time=1:30:00",
        "--partition=batch",
        "--account=x",
        f"--chdir={folder}",
        f"--output={logs}/%a.log",
        "--open-mode=append",
        "--requeue",
        "--signal=TERM@120",
    ):
        assert f"#SBATCH {option}" in lines
    assert not any("gpus" in line for line in lines)
    assert "export OMP_NUM_THREADS=3" in lines
    assert (
        'if [ "${status}" -eq 75 ]; then scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"; fi' in lines
    )
    (started,) = [line for line in lines if line.startswith("srun ")]
    assert "--ntasks=1 --ntasks-per-node=1 --cpus-per-task=6 " in started
    run = f"-m descend study run {folder}/study.toml {folder}/runs --executor=one --idle-seconds=120"
    assert started.endswith(run)


def test_gpus_are_asked_for_on_a_machine_that_has_none(folder):
    lines = script(folder, ("[needs]\n", '[needs]\ndevice = "cuda"\n'), tasks=1)
    assert "#SBATCH --gpus-per-node=1" in lines


def test_there_are_as_many_tasks_as_trials_that_can_run(folder):
    assert "#SBATCH --array=0-1" in script(folder)
    assert "#SBATCH --array=0-15" in script(folder, ("trials = 2", "trials = 99"))


def test_a_finished_study_is_not_submitted(folder):
    run_study(read_study("study.toml"), folder / "runs", executor="one")
    assert submit_study(Path("study.toml"), folder / "runs", None, ArrayOptions()).startswith("nothing is left to run")


def test_a_directory_of_one_node_is_refused_before_anything_is_written(folder, monkeypatch):
    monkeypatch.setattr("descend.launch.job.NODE_LOCAL", (str(folder),))
    with pytest.raises(ConfigurationError, match=r"local to each node, and the tasks of a job array"):
        script(folder)
    assert not (folder / "runs").exists()


def test_a_machine_without_sbatch_says_where_the_script_is(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ConfigurationError, match=r"no sbatch on this machine, so .*batch\.sh was written"):
        submit_study(Path("study.toml"), folder / "runs", None, ArrayOptions())


@pytest.mark.parametrize(
    ("words", "said"), [([], "say --slurm"), (["--slurm", "--executor", "ray"], "no Ray"), (["--slurm"], None)]
)
def test_the_command(folder, words, said):
    ended = CliRunner().invoke(app, ["submit", "study.toml", "runs", "--setup-only", *words])
    if said:
        assert isinstance(ended.exception, ConfigurationError)
        assert said in str(ended.exception)
    else:
        assert ended.output == "runs/slurm/batch.sh: 2 tasks; submit it with: sbatch runs/slurm/batch.sh\n"


def waited_for(condition, seconds=90):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
@needs_slurm
def test_tasks_that_have_to_leave_in_the_middle_of_a_trial_go_on_with_it(folder, monkeypatch):
    """The signal is the one that Slurm sends before the time limit; no update is computed twice."""
    whole = conduct(read_study("study.toml"), Memory(), executor="one")
    Path("study.toml").write_text(FILE.replace("[needs]", "checkpoint_every = 30\n[needs]"))
    study, steps, runs = read_study("study.toml"), folder / "steps", folder / "runs"
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as place, Cluster(Path(place)) as up:
        for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
            monkeypatch.delenv(name)
        path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        own = {"SLURM_CONF": up.environment["SLURM_CONF"], "PATH": up.environment["PATH"]}
        for name, value in {**own, "PYTHONPATH": path, "STEPS": str(steps)}.items():
            monkeypatch.setenv(name, value)
        number = submit_study(Path("study.toml"), runs, None, ArrayOptions()).partition(":")[0].split()[-1]
        waited_for(lambda: steps.is_file() and len(steps.read_text()) > 20)
        up.call("scancel", "--signal=TERM", number)
        waited_for(lambda: len(StudyDirectory(runs).records()) == total_trials(study))
        waited_for(lambda: not up.call("squeue", "-h"))
        logs = "".join(file.read_text() for file in (runs / "slurm").glob("*.log"))
    assert "stopped by SIGTERM after step" in logs
    assert "report: " in logs
    found = StudyDirectory(runs).records()
    assert {name: one.scores for name, one in found.items()} == {name: one.scores for name, one in whole.items()}
    lines = [line for file in (runs / "records").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(found) == total_trials(study)
    assert len(steps.read_text()) == len(found) * 40
    assert not list((runs / "trials").iterdir())
