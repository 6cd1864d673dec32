"""A job: how many ranks on how many nodes, for how long, and the command that each of them starts."""

from __future__ import annotations

import math
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LEAD_SECONDS", "NODE_LOCAL", "Job", "clock", "lines", "require_unset"]

NODE_LOCAL = ("/tmp", "/dev/shm", "/var/tmp")
LEAD_SECONDS = 120  # before the end of its time a job is told so; the run saves and the job asks to be started again


@dataclass(frozen=True)
class Job:
    """What is to be started, whatever starts it.

    Args:
        command: The program of every rank, with its arguments.
        work_dir: Where it runs and leaves its output.
        nodes: How many machines.
        procs_per_node: Ranks on each.
        time_limit: Minutes; None for what the scheduler gives.
        job_name: Its name there.
        partition: Queue.
        account: Who pays.
        reservation: Name of a reservation.
        launcher_args: More for the program that starts the ranks.
        environment: More variables of the job.
        procs_per_trainer: Ranks that share a model; None for all of them.

    Raises:
        ConfigurationError: numbers that do not fit together, all at once.
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

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return self.nodes * self.procs_per_node

    def __post_init__(self) -> None:
        if problems := [*self._counts(), *self._limits(), *self._words(), *self._places()]:
            raise ConfigurationError(problems)

    def _counts(self) -> list[str]:
        given = {
            "nodes": self.nodes,
            "procs_per_node": self.procs_per_node,
            "procs_per_trainer": self.procs_per_trainer,
        }
        wrong = {name: n for name, n in given.items() if n is not None and (type(n) is not int or n < 1)}
        if wrong:
            return [f"{name} is {n!r} and is to be a whole number above 0" for name, n in wrong.items()]
        if self.procs_per_trainer and self.ranks % self.procs_per_trainer:
            fitting = [n for n in range(1, self.ranks + 1) if self.ranks % n == 0]
            return [
                f"procs_per_trainer={self.procs_per_trainer} does not divide the {self.ranks} ranks of {self.nodes} "
                f"nodes with {self.procs_per_node} each; {', '.join(map(str, fitting))} do"
            ]
        return []

    def _limits(self) -> list[str]:
        limit: Any = self.time_limit
        if limit is not None and (type(limit) not in (int, float) or not math.isfinite(limit)):
            return [f"time_limit is {limit!r} and is to be a number of minutes, or None for what the scheduler gives"]
        if self.time_limit is None or self.time_limit * 60 > 2 * LEAD_SECONDS:
            return []
        return [
            f"time_limit={self.time_limit:g} minutes: the job is told {LEAD_SECONDS} seconds before its end to save, "
            f"so it is to be more than {2 * LEAD_SECONDS // 60} minutes"
        ]

    def _words(self) -> list[str]:
        """What would not come to the scheduler as it was meant."""
        named = {name: getattr(self, name) for name in ("job_name", "partition", "account", "reservation")}
        named["work_dir"] = str(self.work_dir)
        problems = [
            f"{name} is {text!r} and is to be one line of text"
            for name, text in named.items()
            if text is not None and (not isinstance(text, str) or not text.isprintable() or not text)
        ]
        if isinstance(self.launcher_args, str):
            words = shlex.split(self.launcher_args)
            problems.append(f"launcher_args is a text and is to be a list: {words!r}")
        return problems

    def _places(self) -> list[str]:
        existing = next(place for place in (self.work_dir, *self.work_dir.parents) if place.exists())
        problems: list[str] = []
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            problems.append(f"work_dir {self.work_dir} cannot be written: {existing} refuses it; name another")
        local = next((root for root in NODE_LOCAL if self.work_dir.is_relative_to(root)), None)
        if self.nodes > 1 and local:
            problems.append(
                f"work_dir {self.work_dir} is below {local}, which every node has for itself, and {self.nodes} nodes "
                "share the run: name a directory of a shared file system"
            )
        return problems


def lines(job: Job, header: Sequence[str], meeting: Sequence[str], starter: Sequence[str], after: Sequence[str]) -> str:
    """The text of a job.

    Args:
        job: The job.
        header: What the scheduler reads.
        meeting: Commands that set MASTER_ADDR and MASTER_PORT.
        starter: The program that starts the ranks, with its arguments.
        after: Commands that follow, where `status` is the exit code.
    """
    exports = [f"export {_name(name)}={shlex.quote(str(value))}" for name, value in job.environment.items()]
    launch = shlex.join([*starter, *job.launcher_args, *job.command])
    return "\n".join(
        [
            "#!/bin/bash",
            *header,
            "",
            f"cd {shlex.quote(str(job.work_dir))}",
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


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigurationError(f"environment: {name!r} is no name of a variable")
    return name


def clock(minutes: float) -> str:
    """A time limit as H:MM:SS."""
    seconds = round(minutes * 60)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def require_unset(job: Job, scheduler: str, *names: str) -> None:
    """Refuse what a scheduler has nothing for.

    Raises:
        ConfigurationError: some of these are set.
    """
    if given := [f"{name}={getattr(job, name)!r}" for name in names if getattr(job, name) is not None]:
        raise ConfigurationError(f"{scheduler} has nothing for {', '.join(given)}: leave it out")
