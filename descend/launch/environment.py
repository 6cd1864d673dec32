"""Detects the rank and the world size of this process from the environment of its launcher.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SINGLE_PROCESS", "RankEnvironment", "detect", "timeout_seconds"]


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
