"""Detects the rank, the world size and the trainer of this process from the environment of its launcher.

    torchrun        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
    Slurm (srun)    SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
    Flux            FLUX_TASK_RANK, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID
    LSF (jsrun)     JSM_NAMESPACE_RANK, JSM_NAMESPACE_SIZE, JSM_NAMESPACE_LOCAL_RANK
    Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK

The first launcher whose variables are set is used. Slurm sets SLURM_PROCID in a batch script outside of srun, too; only
a job step has SLURM_STEP_ID, and only there this process is one of several.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.arguments import check_integer, require
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = [
    "SINGLE_PROCESS",
    "RankEnvironment",
    "TrainerLayout",
    "as_trainer",
    "current_trainer",
    "detect",
    "layout_trainers",
    "timeout_seconds",
]


@dataclass(frozen=True)
class RankEnvironment:
    """One process of those that were started together.

    Attributes:
        rank: Its rank, from 0.
        world_size: Number of ranks.
        local_rank: Its rank among those of its host.
        launcher: The program that started it.
        address: Host of rank 0, for the rendezvous; None where unknown.
        port: Port of the rendezvous.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = "none"
    address: str | None = None
    port: int | None = None


SINGLE_PROCESS = RankEnvironment()

# launcher: (a variable that only this launcher sets, rank, world size, local rank)
_VARIABLES = {
    "torchrun": ("WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "slurm": ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "flux": ("FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    "lsf": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
_PORT = 29500  # torch's own default
_PORTS = (20000, 10000)  # of jobs: the first one, and the number of them


def detect(environment: Mapping[str, str] = os.environ) -> RankEnvironment:
    """The rank environment of this process.

    Raises:
        ConfigurationError: variables of a launcher are missing, or are not numbers of a rank.
    """
    for launcher, (sign, *names) in _VARIABLES.items():
        if sign in environment:
            rank, ranks, local_rank = _numbers(launcher, names, environment)
            if ranks == 1:
                return SINGLE_PROCESS
            return RankEnvironment(rank, ranks, local_rank, launcher, *_meeting(launcher, environment))
    return SINGLE_PROCESS


def _numbers(launcher: str, names: list[str], environment: Mapping[str, str]) -> list[int]:
    needed = {name: environment.get(name, "0" if name == names[2] else "") for name in names}
    if problems := [f"{name}={value!r}" for name, value in needed.items() if not value.isdecimal()]:
        raise ConfigurationError(
            f"{launcher} started this process, and {', '.join(problems)} must be an integer >= 0: start all ranks with "
            "torchrun, srun, flux run, jsrun or mpirun"
        )
    numbers = [int(value) for value in needed.values()]
    if not 0 <= numbers[0] < numbers[1]:
        raise ConfigurationError(f"{names[0]}={numbers[0]} must be less than {names[1]}={numbers[1]}")
    return numbers


def _meeting(launcher: str, environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Host and port of the rendezvous: of the environment or the first host of a Slurm step and a port of its job."""
    job = environment.get("SLURM_JOB_ID", "")
    port = environment.get("MASTER_PORT") or (str(_PORTS[0] + int(job) % _PORTS[1]) if job.isdecimal() else str(_PORT))
    address = environment.get("MASTER_ADDR")
    if address is None and launcher == "slurm":
        address = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return address, int(port) if port.isdecimal() else None


def first_host(nodes: str) -> str | None:
    """The first of a list of hosts in Slurm's notation, such as "tux[03-05,9],other"; None if it is empty."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else None


def timeout_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Longest wait for another rank: DESCEND_TIMEOUT_SECONDS, or 30.

    Raises:
        ConfigurationError: it is not a finite number > 0.
    """
    text = environment.get("DESCEND_TIMEOUT_SECONDS", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"DESCEND_TIMEOUT_SECONDS must be a number of seconds > 0, got {text!r}")
    return seconds


# ---- assigns ranks to trainers, where several trainers share the ranks: contiguous blocks of ranks, in order

_MOST_TRAINERS = 1_000_000

_acting: ContextVar[tuple[int, int] | None] = ContextVar("trainer", default=None)


@dataclass(frozen=True)
class TrainerLayout:
    """The assignment of trainers to ranks.

    Attributes:
        trainers: Number of trainers.
        world_size: Number of ranks.
        procs_per_trainer: Ranks of a block; the trainers of a block share all of them.
    """

    trainers: int
    world_size: int
    procs_per_trainer: int

    @property
    def blocks(self) -> int:
        """Number of blocks of ranks."""
        return self.world_size // self.procs_per_trainer

    def block_of(self, trainer: int) -> int:
        """The block that a trainer belongs to."""
        return trainer // (self.trainers // self.blocks)

    def first_of(self, trainer: int) -> int:
        """The first rank of a trainer."""
        return self.block_of(trainer) * self.procs_per_trainer

    def of_rank(self, rank: int) -> range:
        """The trainers that a rank works for."""
        each = self.trainers // self.blocks
        block = rank // self.procs_per_trainer
        return range(block * each, (block + 1) * each)

    def ranks_of_block(self, block: int) -> range:
        """The ranks of a block."""
        return range(block * self.procs_per_trainer, (block + 1) * self.procs_per_trainer)


def layout_trainers(
    ranks: int,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> TrainerLayout:
    """Assign trainers to ranks.

    Args:
        ranks: Number of ranks.
        trainers: Number of trainers; None for one in each block of ranks.
        procs_per_trainer: Ranks of a block; None for DESCEND_PROCS_PER_TRAINER or LBANN_PROCS_PER_TRAINER, and without
            them all ranks divided by the trainers, or one where there are fewer ranks than trainers.
        environment: The environment variables.

    Raises:
        ConfigurationError: the numbers contradict each other.
    """
    require(
        check_integer("trainers", trainers, 1, _MOST_TRAINERS, also=(None,)),
        check_integer("procs_per_trainer", procs_per_trainer, 1, also=(None,)),
    )
    procs = procs_per_trainer or _from(environment)
    if procs is None:
        procs = max(ranks // trainers, 1) if trainers else ranks
    if ranks % procs:
        fitting = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        raise ConfigurationError(f"procs_per_trainer={procs} does not divide {ranks} ranks; {fitting} do")
    blocks = ranks // procs
    number = trainers or blocks
    if number % blocks:
        raise ConfigurationError(
            f"{number} trainers cannot be divided evenly among {blocks} blocks of {procs} ranks each"
        )
    return TrainerLayout(number, ranks, procs)


def _from(environment: Mapping[str, str]) -> int | None:
    for name in ("DESCEND_PROCS_PER_TRAINER", "LBANN_PROCS_PER_TRAINER"):
        text = environment.get(name, "")
        if text and (not text.isdecimal() or int(text) < 1):
            raise ConfigurationError(f"{name} must be an integer >= 1, got {text!r}")
        if text:
            return int(text)
    return None


@contextmanager
def as_trainer(trainer: int, trainers: int) -> Generator[None]:
    """Within this block the process works for one of its trainers."""
    token = _acting.set((trainer, trainers))
    try:
        yield
    finally:
        _acting.reset(token)


def current_trainer() -> tuple[int, int]:
    """The current trainer of this process, and the number of trainers; outside of a run from the environment."""
    if (now := _acting.get()) is not None:
        return now
    where = detect()
    shares = layout_trainers(where.world_size)
    return shares.of_rank(where.rank)[0], shares.trainers
