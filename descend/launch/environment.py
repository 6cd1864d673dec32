"""Which rank this process is, of how many, in the words of whatever started it.

    torchrun        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
    Slurm (srun)    SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
    Flux            FLUX_TASK_RANK, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID
    LSF (jsrun)     JSM_NAMESPACE_RANK, JSM_NAMESPACE_SIZE, JSM_NAMESPACE_LOCAL_RANK
    Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK

The first of these that is there counts. Inside a batch script that no srun stands before, Slurm sets SLURM_PROCID too;
only a step has a number of its own, SLURM_STEP_ID, and only there this process is one of several.
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
    """One process among those that were started together.

    Attributes:
        rank: Its number, from 0.
        ranks: How many there are.
        local_rank: Its number among those of its host.
        launcher: Who started it.
        address: Host where rank 0 can be met; None where nothing says so.
        port: Port there.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = "none"
    address: str | None = None
    port: int | None = None


SINGLE_PROCESS = RankEnvironment()

# launcher: (a variable without which it is not this one, rank, ranks, rank on this host)
_VARIABLES = {
    "torchrun": ("WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "slurm": ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "flux": ("FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    "lsf": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
_PORT = 29500  # torch's own default
_PORTS = (20000, 10000)  # of jobs: the first one, and how many


def detect(environment: Mapping[str, str] = os.environ) -> RankEnvironment:
    """Where this process stands.

    Raises:
        ConfigurationError: variables of a launcher are missing, or are not numbers that fit together.
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
            f"{launcher} started this process, and {', '.join(problems)} is to be a whole number: start all ranks with "
            "torchrun, srun, flux run, jsrun or mpirun"
        )
    numbers = [int(value) for value in needed.values()]
    if not 0 <= numbers[0] < numbers[1]:
        raise ConfigurationError(f"{names[0]}={numbers[0]} and {names[1]}={numbers[1]}: that is not one of the ranks")
    return numbers


def _meeting(launcher: str, environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Where the ranks meet: as the environment says, or the first host of a Slurm step and a port made of its job."""
    job = environment.get("SLURM_JOB_ID", "")
    port = environment.get("MASTER_PORT") or (str(_PORTS[0] + int(job) % _PORTS[1]) if job.isdecimal() else str(_PORT))
    address = environment.get("MASTER_ADDR")
    if address is None and launcher == "slurm":
        address = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return address, int(port) if port.isdecimal() else None


def first_host(nodes: str) -> str | None:
    """The first of a list of hosts as Slurm writes it, such as "tux[03-05,9],other"; None of an empty one."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else None


def timeout_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long a rank is waited for: DESCEND_TIMEOUT_SECONDS, or 30.

    Raises:
        ConfigurationError: it is not a number above 0.
    """
    text = environment.get("DESCEND_TIMEOUT_SECONDS", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"DESCEND_TIMEOUT_SECONDS={text!r} is to be a number of seconds above 0")
    return seconds
