"""Starts ranks and detects the rank of this process; one file for each scheduler. Nothing here imports torch."""

from typing import TYPE_CHECKING

from descend.launch import flux, local, lsf, mpi, pjm, slurm
from descend.launch.environment import (
    SINGLE_PROCESS,
    RankEnvironment,
    TrainerLayout,
    as_trainer,
    current_trainer,
    detect,
    layout_trainers,
    timeout_seconds,
)
from descend.launch.job import Job, JobArray
from descend.launch.local import cores
from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.launch.cost_model import Forecast, Network, Profile, forecast, rank_counts

__all__ = [
    "SINGLE_PROCESS",
    "Forecast",
    "Job",
    "JobArray",
    "Network",
    "Profile",
    "RankEnvironment",
    "TrainerLayout",
    "as_trainer",
    "cores",
    "current_trainer",
    "detect",
    "flux",
    "forecast",
    "layout_trainers",
    "local",
    "lsf",
    "mpi",
    "pjm",
    "rank_counts",
    "slurm",
    "timeout_seconds",
]

__getattr__, __dir__ = lazy_names(
    __name__, {"cost_model": ("Forecast", "Network", "Profile", "forecast", "rank_counts")}
)
