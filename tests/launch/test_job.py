"""Job scripts, and the arguments that are refused before anything is submitted."""

import shlex
import subprocess

import pytest

from descend.errors import ConfigurationError
from descend.launch import Job, flux, local, lsf, mpi, pjm, slurm
from descend.launch.job import clock

COMMAND = ["python", "-m", "descend", "run", "a b.prototext"]


def job(folder, **changes):
    given = {"nodes": 2, "procs_per_node": 4, "time_limit": 90, "job_name": "lenet", "partition": "pbatch", **changes}
    given.setdefault("environment", {"A": "x y"})
    return Job(COMMAND, folder, **given)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Takes the place of one on a shared file system."""
    monkeypatch.setattr("descend.launch.job.NODE_LOCAL", ())
    return tmp_path


@pytest.mark.parametrize("scheduler", [slurm, lsf, flux, pjm, mpi, local])
def test_every_script_is_a_shell_script_with_the_command_and_its_status(scheduler, folder):
    text = scheduler.script(job(folder, **({"nodes": 1} if scheduler is local else {})))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "-m descend run 'a b.prototext'" in text
    assert "export A='x y'" in text
    assert text.endswith("exit ${status}\n")


@pytest.mark.parametrize(
    ("scheduler", "lines"),
    [
        (
            slurm,
            [
                "#SBATCH --nodes=2",
                "#SBATCH --ntasks-per-node=4",
                "#SBATCH --time=1:30:00",
                "#SBATCH --partition=pbatch",
                "#SBATCH --signal=TERM@120",
                "#SBATCH --requeue",
                'if [ "${status}" -eq 75 ]; then scontrol requeue "${SLURM_JOB_ID}"; fi',
            ],
        ),
        (lsf, ["#BSUB -J lenet", "#BSUB -nnodes 2", "#BSUB -W 1:30", "#BSUB -q pbatch"]),
        (pjm, ["#PJM -L node=2", "#PJM --mpi proc=8", "#PJM -L elapse=1:30:00", "#PJM -L rscgrp=pbatch"]),
        (flux, ["#flux: --nodes=2", "#flux: --time-limit=90m", "#flux: --queue=pbatch"]),
    ],
)
def test_what_schedulers_read(scheduler, lines, folder):
    text = scheduler.script(job(folder)).splitlines()
    assert [line for line in lines if line not in text] == []


@pytest.mark.parametrize(
    ("minutes", "shown"),
    [(0.5, "0:00:30"), (90, "1:30:00"), (1439.99, "23:59:59"), (1440, "24:00:00"), (6000, "100:00:00")],
)
def test_a_time_limit_may_be_longer_than_a_day(minutes, shown):
    assert clock(minutes) == shown


def test_starters_get_the_geometry(folder):
    def start(scheduler):
        return next(line for line in scheduler.script(job(folder)).splitlines() if "a b.prototext" in line)

    assert start(slurm).startswith("srun --kill-on-bad-exit=0 --wait=90 --nodes=2 --ntasks=8 --ntasks-per-node=4 ")
    assert start(lsf).startswith("jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 4 ")
    assert start(flux).startswith("flux run --nodes=2 --ntasks=8 ")
    assert start(pjm).startswith("mpiexec -n 8 python ")
    assert start(mpi).startswith("mpiexec -n 8 --map-by ppr:4:node -x MASTER_ADDR ")


def test_an_allocation_is_distinguished_from_an_installed_client():
    assert slurm.detect({"SLURM_JOB_ID": "1"})
    assert lsf.detect({"LSB_JOBID": "1"})
    assert pjm.detect({"PJM_JOBID": "1"})
    assert not flux.detect({"FLUX_URI": "local:///run/flux/local"})
    assert not any(scheduler.detect({"PATH": "/usr/bin"}) for scheduler in (slurm, lsf, flux, pjm, mpi))


def test_all_that_does_not_fit_is_said_at_once(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        Job(COMMAND, tmp_path, nodes=2, procs_per_node=3, procs_per_trainer=4, time_limit=3)
    problems = "\n".join(error.value.problems)
    assert "procs_per_trainer=4 does not divide the 6 ranks of 2 nodes with 3 each; 1, 2, 3, 6 do" in problems
    assert "time_limit must be a finite number > 4 or None, got 3" in problems
    assert "which is local to each node" in problems


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"procs_per_node": -1}, {"procs_per_trainer": 0}])
def test_counts(wrong, tmp_path):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Job(COMMAND, tmp_path, **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"time_limit": float("inf")}, "time_limit .*, got inf"),
        ({"time_limit": float("nan")}, "time_limit .*, got nan"),
        ({"time_limit": "1:30"}, "time_limit .*, got '1:30'"),
        ({"time_limit": True}, "time_limit .*, got True"),
        ({"job_name": "a\nrm -r x"}, "job_name must be a non-empty string of one line"),
        ({"account": ""}, "account .*, got ''"),
        ({"partition": 3}, "partition .*, got 3"),
        ({"launcher_args": "--mem=0 --exclusive"}, r"such as \['--mem=0', '--exclusive'\], got '--mem=0 --exclusive'"),
        ({"launcher_args": '"'}, r"launcher_args must be a list of strings such as \['--exclusive'\], got '\"'"),
        ({"launcher_args": 5}, r"launcher_args must be a list of strings .*, got 5"),
        ({"launcher_args": None}, r"launcher_args must be a list of strings .*, got None"),
        ({"launcher_args": ["a", 5]}, r"launcher_args\[1\] must be a string of one line, got 5"),
        ({"launcher_args": ["a\nrm -r x"]}, r"launcher_args\[0\] must be a string of one line"),
    ],
)
def test_what_no_scheduler_could_read(wrong, words, folder):
    with pytest.raises(ConfigurationError, match=words):
        job(folder, **wrong)


def test_names_with_blanks_stay_one_word(folder):
    """Slurm, LSF and Flux read their lines as a shell reads words."""
    odd = {"job_name": "my net; x", "account": "a'b", "time_limit": 90.5}
    place = folder / "of two words"
    place.mkdir()
    for scheduler, sign in ((slurm, "#SBATCH "), (lsf, "#BSUB "), (flux, "#flux: ")):
        text = scheduler.script(job(place, **odd))
        words = [word for line in text.splitlines() if line.startswith(sign) for word in shlex.split(line[len(sign) :])]
        found = " ".join(words) if scheduler is lsf else "\n".join(words)
        for wanted in ("my net; x", "a'b", *([] if scheduler is flux else [str(place)])):
            assert any(word.rpartition("=")[2] == wanted for word in words), (wanted, found)
    assert "#BSUB -W 1:31" in lsf.script(job(folder, **odd))


def test_an_allocation_is_asked_for_as_the_script_would(folder):
    given = job(folder, account="physics", reservation=None)
    assert lsf.allocate(given, "batch.sh") == [
        *("bsub", "-Is", "-J", "lenet", "-nnodes", "2", "-W", "1:30", "-q", "pbatch", "-G", "physics"),
        *("bash", "batch.sh"),
    ]
    with pytest.raises(ConfigurationError, match="flux has no counterpart of reservation='mine'"):
        flux.script(job(folder, reservation="mine"))


def test_several_nodes_need_a_scheduler(folder):
    with pytest.raises(ConfigurationError, match="2 nodes need a scheduler"):
        local.script(job(folder))
