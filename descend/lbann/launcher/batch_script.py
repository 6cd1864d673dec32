"""The script of a job: the scheduler's header, exports, commands, and the driver's exit status.

A header has the job's name, nodes, time limit, queue and account, and where its output goes. What a scheduler's job
does beyond that in `descend.launch`, such as saving before the time limit and queueing again, is left out: a program
written for LBANN restarts a run by itself.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.arguments import check_integer, check_number, check_string, collect, require
from descend.errors import ConfigurationError
from descend.experiment.launcher import SCHEDULERS, run_shown
from descend.launch import local, pjm
from descend.launch.job import check_environment, check_words, clock, quoted
from descend.lbann.util.data import dataset_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BatchScript", "words"]

# How each scheduler writes its directives, and the program that starts the processes.
_DIRECTIVES = {"slurm": "#SBATCH", "lsf": "#BSUB", "flux": "#flux:", "pjm": "#PJM"}
_MEETING = {
    "lsf": "$(jsrun --nrs 1 --tasks_per_rs 1 hostname)",
    "flux": "$(flux run -N 1 -n 1 hostname)",
    "openmpi": "$(hostname)",
    "pjm": "$(hostname)",
}


_SPREAD = "--launch_distribution packed --cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS"


class BatchScript:
    """A script that a scheduler or a shell runs.

    Args:
        scheduler: slurm, lsf, flux, pjm, openmpi or local.
        work_dir: Folder of the job.
        nodes: Number of machines.
        procs_per_node: Processes on each.
        time_limit: Minutes; None for the scheduler's default.
        job_name: Name of the job.
        options: partition, account and reservation; None where not given.

    Attributes:
        path: Where the script is written.
        launcher: Program that starts the processes; None for the scheduler's own.
        launcher_args: More arguments for it.
    """

    def __init__(
        self,
        scheduler: str,
        work_dir: Path,
        nodes: int = 1,
        procs_per_node: int = 1,
        time_limit: float | None = None,
        job_name: str = "lbann",
        **options: str | None,
    ) -> None:
        self.scheduler, self.work_dir, self.job_name = scheduler, work_dir, job_name
        self.nodes, self.procs_per_node, self.time_limit = nodes, procs_per_node, time_limit
        self.options = options
        self.path = work_dir / "batch.sh"
        self.launcher: str | None = None
        self.launcher_args: list[str] = []
        self.exports: list[str] = []
        self._key_lines: list[str] = []
        self.body: list[str] = []

    def add_export(self, name: str, value: Any) -> None:
        """Set an environment variable of the job.

        Raises:
            ConfigurationError: no variable can have this name.
        """
        require(check_environment({name: value}))
        self.exports.append(f"export {name}={quoted(str(value))}")

    def add_command(self, command: str | Iterable[str]) -> None:
        """Add a command, its words joined with spaces.

        Raises:
            ConfigurationError: it has several lines, or other control characters.
        """
        self.body.append(_one_line("command", command))

    def add_parallel_command(self, command: str | Iterable[str]) -> None:
        """Add a command that each process runs, its words joined with spaces; its exit status is the script's.

        Raises:
            ConfigurationError: it, the launcher or its arguments have several lines, or other control characters.
        """
        starter = [
            _one_line("launcher", self.starter()),
            *(_one_line("launcher_args", one) for one in self.launcher_args),
        ]
        self.body += [" ".join(filter(None, [*starter, _one_line("command", command)])), "status=$?"]

    def starter(self) -> list[str]:
        """The program that starts the processes, with its own arguments; nothing for one process on this machine.

        Raises:
            ConfigurationError: several machines without a scheduler.
        """
        ranks, each = self.nodes * self.procs_per_node, self.procs_per_node
        starters = {
            "slurm": ["srun", f"--nodes={self.nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={each}"],
            "lsf": ["jsrun", f"--nrs {self.nodes}", "--rs_per_host 1", f"--tasks_per_rs {each}", _SPREAD],
            "flux": ["flux run", f"--nodes={self.nodes}", f"--ntasks={ranks}", "--exclusive"],
            "pjm": pjm.starter(self.nodes, each),
            "openmpi": ["mpiexec", f"-n {ranks}", f"--map-by ppr:{each}:node"],
        }
        if self.launcher is not None:
            return [self.launcher]
        if self.scheduler in starters:
            return starters[self.scheduler]
        if self.nodes > 1:
            raise ConfigurationError(
                f"nodes={self.nodes} needs a scheduler, and this is no allocation: pass scheduler='slurm' (or lsf, "
                "flux, openmpi), or nodes=1"
            )
        if each == 1:
            return []
        # Processes of one machine: a shell stands between torchrun, which starts programs, and the driver's command.
        return [shlex.join([*local.command(each, []), "--no-python"])]

    def problems(self) -> list[str]:
        """The problems that no script may have: a wrong count, or text that would stand on lines of its own."""
        named = {"job_name": self.job_name, "work_dir": str(self.work_dir), "launcher": self.launcher, **self.options}
        return collect(
            check_integer("nodes", self.nodes, 1),
            check_integer("procs_per_node", self.procs_per_node, 1),
            check_number("time_limit", self.time_limit, above=0, also=(None,), remedy="it is in minutes"),
            check_words(named),
        )

    def text(self) -> str:
        """The script.

        Raises:
            ConfigurationError: it has `problems`.
        """
        require(self.problems())
        directive = _DIRECTIVES.get(self.scheduler, "")
        host = _MEETING.get(self.scheduler)  # Slurm's steps and torchrun say where rank 0 is
        meeting = [] if host is None else [f'export MASTER_ADDR="${{MASTER_ADDR:-{host}}}"']
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"{directive} {option}" for option in self._header()),
                "",
                f"cd {quoted(str(self.work_dir))}",
                *self.exports,
                *self._key_lines,
                *meeting,
                'echo "Started at $(date)"',
                *self.body,
                'echo "Finished at $(date)"',
                "exit ${status:-0}",
                "",
            ]
        )

    def _header(self) -> list[str]:
        """The scheduler's directives."""
        folder, name = self.work_dir, self.job_name
        if self.scheduler == "slurm":
            given = {"time": None if self.time_limit is None else clock(self.time_limit), **self.options}
            files = {"chdir": folder, "output": folder / "out.log", "error": folder / "err.log"}
            named = {**files, "nodes": self.nodes, "job-name": name, **given}
        elif self.scheduler == "flux":
            given = {"queue": self.options.get("partition"), "bank": self.options.get("account")}
            limit = None if self.time_limit is None else f"{self.time_limit:g}m"
            files = {"output": folder / "out.log", "error": folder / "err.log"}
            named = {**files, "nodes": self.nodes, "job-name": name, "time-limit": limit, **given}
        elif self.scheduler == "lsf":
            minutes = None if self.time_limit is None else math.ceil(self.time_limit)
            limit = None if minutes is None else f"{minutes // 60}:{minutes % 60:02}"
            files = {"-cwd": folder, "-o": folder / "out.log", "-e": folder / "err.log"}
            short = {"-q": "partition", "-G": "account", "-U": "reservation"}
            letters = {letter: self.options.get(option) for letter, option in short.items()}
            given = {**files, "-nnodes": self.nodes, "-J": name, "-W": limit, **letters}
            return [f"{key} {shlex.quote(str(value))}" for key, value in given.items() if value is not None]
        elif self.scheduler == "pjm":
            queue = (self.options.get("partition"), self.options.get("account"))
            head = pjm.header(self.nodes, self.procs_per_node, self.time_limit, name, *queue)
            return [*head, f"-o {shlex.quote(str(folder / 'out.log'))}", f"-e {shlex.quote(str(folder / 'err.log'))}"]
        else:
            return []
        return [f"--{key}={shlex.quote(str(value))}" for key, value in named.items() if value is not None]

    def write(self, overwrite: bool = True) -> None:
        """Write the script and make it executable.

        Raises:
            ConfigurationError: it exists, and `overwrite` is False.
        """
        if self.path.exists() and not overwrite:
            raise ConfigurationError(f"{self.path} exists already: pass overwrite=True, or another folder")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text(), encoding="utf-8")
        self.path.chmod(0o755)

    def run(self, overwrite: bool = True) -> int:
        """Write the script and run it, in an allocation that is made for it where the scheduler has such.

        Output is shown, and written to out.log and err.log.
        """
        self.write(overwrite)
        module = SCHEDULERS[self.scheduler]
        inside = not hasattr(module, "allocate") or module.detect(os.environ)
        command = ["bash", str(self.path)] if inside else self._allocation()
        shared = local.surroundings(self.procs_per_node) if self.scheduler == "local" else {}
        return run_shown(command, self.work_dir, {**os.environ, **shared, **_for_the_driver(os.environ)})

    def check_queue(self) -> None:
        """Refuse to submit where that is not possible.

        Raises:
            ConfigurationError: the scheduler has no queue.
        """
        if not hasattr(SCHEDULERS[self.scheduler], "submit"):
            raise ConfigurationError(f"batch_job=True: scheduler '{self.scheduler}' has no queue; remove it")

    def submit(self, overwrite: bool = True) -> int:
        """Write the script and submit it.

        Returns:
            The exit status of the submission.

        Raises:
            ConfigurationError: the scheduler has no queue.
        """
        self.check_queue()
        module = SCHEDULERS[self.scheduler]
        environment = {**os.environ, **_for_the_driver(os.environ)}
        self._key_lines = [self._in_a_file(name, environment.pop(name)) for name in dataset_environment()]
        self.write(overwrite)
        return subprocess.run(module.submit(str(self.path)), cwd=self.work_dir, env=environment, check=False).returncode

    def _in_a_file(self, name: str, secret: str) -> str:
        """Keep a secret in a file that this user alone can read; returns the line of the script that reads it.

        Schedulers record the environment and the script of a job, where others may see them.
        """
        self.work_dir.mkdir(parents=True, exist_ok=True)
        path = self.work_dir / f"{name.lower()}-{secrets.token_hex(4)}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret)
        return f'export {name}="$(cat {quoted(str(path))})"'

    def _allocation(self) -> list[str]:
        """The command that gets an allocation and runs the script in it."""
        if self.scheduler == "pjm":
            return ["pjsub", "--interact", "--sparam", "wait-time=unlimited", str(self.path)]
        files = {"slurm": ("chdir", "output", "error"), "lsf": ("-cwd ", "-o ", "-e "), "flux": ("output", "error")}
        leading = tuple(f"--{name}=" if self.scheduler != "lsf" else name for name in files[self.scheduler])
        options = [word for line in self._header() if not line.startswith(leading) for word in shlex.split(line)]
        programs = {"slurm": ["salloc"], "lsf": ["bsub", "-Is"], "flux": ["flux", "alloc"]}
        return [*programs[self.scheduler], *options, "bash", str(self.path)]


def _for_the_driver(environment: Mapping[str, str]) -> dict[str, str]:
    """What the driver's process needs to find this package, the script's modules and the data sets of this process."""
    package = str(Path(__file__).parents[3])
    paths = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), package]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **dataset_environment()}


def _one_line(name: str, given: str | Iterable[Any]) -> str:
    """Words of a command joined with spaces, as a shell takes them.

    Raises:
        ConfigurationError: they have several lines, or other control characters.
    """
    text = " ".join(words(given))
    require(check_string(name, text.replace("\t", " "), one_line=True, remedy="add each line as a command of its own"))
    return text


def words(given: str | Iterable[Any] | None) -> list[str]:
    """A text as one piece, or the pieces of a list; nothing for None."""
    return [given] if isinstance(given, str) else [str(one) for one in given or ()]
