"""A job: the number of nodes and ranks, the time limit, and the command that each rank runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import (
    check_each,
    check_instance,
    check_integer,
    check_number,
    check_string,
    collect,
    require,
    shown,
)
from descend.errors import ConfigurationError
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "LEAD_SECONDS",
    "NODE_LOCAL",
    "Job",
    "JobArray",
    "check_environment",
    "check_words",
    "clock",
    "lines",
    "quoted",
    "require_unset",
]

NODE_LOCAL = ("/tmp", "/dev/shm", "/var/tmp")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of a variable
LEAD_SECONDS = 120  # this long before its time limit a job gets a signal; the run saves and the job is requeued


@dataclass(frozen=True)
class JobArray:
    """Many jobs of one script, its tasks, each with an allocation of its own on one node.

    Args:
        tasks: Number of them.
        logs: Folder of their output, a file each, on a file system that all nodes share.
        cores: Processors of a task.
        memory_bytes: Main memory of a task; None for the default of the scheduler.
        gpus: GPUs of a task.

    Raises:
        ConfigurationError: there are no tasks.
    """

    tasks: int
    logs: Path
    cores: int = 1
    memory_bytes: int | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        require(check_integer("tasks", self.tasks, 1))


@dataclass(frozen=True)
class Job:
    """A program to start on many ranks, independent of the scheduler.

    Args:
        command: The program of every rank, with its arguments.
        work_dir: Its working directory, which gets its output.
        nodes: Number of machines.
        procs_per_node: Ranks on each machine.
        time_limit: Minutes; None for the default of the scheduler.
        job_name: Its name in the scheduler.
        partition: Queue.
        account: The account that is charged.
        reservation: Name of a reservation.
        launcher_args: More arguments of the program that starts the ranks, such as `["--exclusive"]`.
        environment: More environment variables of the job.
        procs_per_trainer: Ranks that share a model; None for all of them.
        array: Its tasks, if it is an array of jobs.

    Raises:
        ConfigurationError: arguments of the wrong type or that contradict each other, all at once.
    """

    command: Sequence[str]
    work_dir: Path
    nodes: int = 1
    procs_per_node: int = 1
    time_limit: float | None = None
    job_name: str = "descend"
    partition: str | None = None
    account: str | None = None
    reservation: str | None = None
    launcher_args: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    procs_per_trainer: int | None = None
    array: JobArray | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.procs_per_node

    def __post_init__(self) -> None:
        if problems := [*self._counts(), *self._limits(), *self._words(), *self._places()]:
            raise ConfigurationError(problems)

    def _counts(self) -> list[str]:
        if wrong := collect(
            check_integer("nodes", self.nodes, 1),
            check_integer("procs_per_node", self.procs_per_node, 1),
            check_integer("procs_per_trainer", self.procs_per_trainer, 1, also=(None,)),
        ):
            return wrong
        if self.procs_per_trainer and self.ranks % self.procs_per_trainer:
            fitting = [n for n in range(1, self.ranks + 1) if self.ranks % n == 0]
            return [
                f"procs_per_trainer={self.procs_per_trainer} does not divide the {self.ranks} ranks of {self.nodes} "
                f"nodes with {self.procs_per_node} each; {', '.join(map(str, fitting))} do"
            ]
        return []

    def _limits(self) -> list[str]:
        least = 2 * LEAD_SECONDS // 60
        remedy = f"it is in minutes, and the run gets a signal to save {LEAD_SECONDS} seconds before the end"
        return collect(check_number("time_limit", self.time_limit, above=least, also=(None,), remedy=remedy))

    def _words(self) -> list[str]:
        """Strings that a job script or a scheduler's command line would not pass on unchanged."""
        named = {name: getattr(self, name) for name in ("job_name", "partition", "account", "reservation")}
        return collect(
            check_words({**named, "work_dir": str(self.work_dir)}),
            check_environment(self.environment),
            check_each("launcher_args", self.launcher_args, _argument, f"a list of strings such as {self._split()}"),
        )

    def _split(self) -> list[str]:
        """What a string of launcher arguments was probably meant to be."""
        try:
            words = shlex.split(self.launcher_args) if isinstance(self.launcher_args, str) else []
        except ValueError:  # a quote that is not closed
            words = []
        return words or ["--exclusive"]

    def _places(self) -> list[str]:
        existing = next(place for place in (self.work_dir, *self.work_dir.parents) if place.exists())
        problems: list[str] = []
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            problems.append(f"work_dir {self.work_dir} cannot be written: no permission in {existing}; choose another")
        local = next((root for root in NODE_LOCAL if self.work_dir.is_relative_to(root)), None)
        if self.array and (apart := next((root for root in NODE_LOCAL if self.array.logs.is_relative_to(root)), None)):
            problems.append(
                f"{self.array.logs} is below {apart}, which is local to each node, and the tasks of a job array run on "
                "several: choose a directory of a shared file system"
            )
        if self.nodes > 1 and local:
            problems.append(
                f"work_dir {self.work_dir} is below {local}, which is local to each node, and {self.nodes} nodes share "
                "the run: choose a directory of a shared file system"
            )
        return problems


def check_words(named: Mapping[str, object]) -> list[str]:
    """The problem with each value that a line of a script, or a scheduler's command line, would not pass on unchanged.

    Args:
        named: Values by the names that users know them by; None where not given.
    """
    return collect(check_string(name, text, empty=False, one_line=True, also=(None,)) for name, text in named.items())


def check_environment(given: object) -> list[str]:
    """The problem with each environment variable that no script can set.

    Args:
        given: Values by name.
    """
    if not isinstance(given, Mapping):
        return collect(check_instance("environment", given, Mapping, "a mapping from names of variables to values"))
    variables = cast("Mapping[Any, Any]", given)
    names = [name for name in variables if not (isinstance(name, str) and _NAME.fullmatch(name))]
    cut = [name for name, value in variables.items() if not _is_storable(str(value))]
    return [
        *(f"environment: {shown(name)} is not a name of a variable" for name in names),
        *(f"environment[{shown(name)}] must be text without NUL and lone surrogates" for name in cut),
    ]


def _is_storable(value: str) -> bool:
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def quoted(word: str) -> str:
    """A word of a bash command; bytes of characters that a terminal would obey are written as escapes."""
    if printable(word, keep="\n\t") == word:
        return shlex.quote(word)
    plain = {ord(one): f"\\{one}" for one in "\\'"}
    shown = (
        one.translate(plain)
        if printable(one) == one
        else "".join(f"\\x{byte:02x}" for byte in one.encode("utf-8", "surrogateescape"))
        for one in word
    )
    return f"$'{''.join(shown)}'"


def lines(job: Job, header: Sequence[str], meeting: Sequence[str], starter: Sequence[str], after: Sequence[str]) -> str:
    """The script of a job.

    Args:
        job: The job.
        header: The scheduler's directives.
        meeting: Commands that set MASTER_ADDR and MASTER_PORT.
        starter: The program that starts the ranks, with its arguments.
        after: Commands that follow, where `status` is the exit code.
    """
    exports = [f"export {name}={quoted(str(value))}" for name, value in job.environment.items()]
    launch = " ".join(map(quoted, [*starter, *job.launcher_args, *job.command]))
    return "\n".join(
        [
            "#!/bin/bash",
            *header,
            "",
            f"cd {quoted(str(job.work_dir))}",
            "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            *exports,
            *meeting,
            'echo "Started at $(date)"',
            launch,
            "status=$?",
            'echo "Finished at $(date)"',
            *after,
            "exit ${status}",
            "",
        ]
    )


def _argument(name: str, value: object) -> str | None:
    return check_string(name, value, one_line=True)


def clock(minutes: float) -> str:
    """A time limit as H:MM:SS."""
    seconds = round(minutes * 60)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def require_unset(job: Job, scheduler: str, *names: str) -> None:
    """Refuse settings that a scheduler does not have.

    Raises:
        ConfigurationError: some of these are set.
    """
    if given := [f"{name}={getattr(job, name)!r}" for name in names if getattr(job, name) is not None]:
        raise ConfigurationError(f"{scheduler} has no counterpart of {', '.join(given)}: remove it")
