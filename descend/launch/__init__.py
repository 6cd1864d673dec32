"""Starting ranks, and knowing which one this process is; one file a scheduler. Nothing here needs torch."""

from descend.launch import flux, local, lsf, mpi, slurm
from descend.launch.forecast import Forecast, Network, Profile, forecast, rank_counts
from descend.launch.job import Job
from descend.launch.local import cores
from descend.launch.place import ALONE, Place, place, timeout_seconds
from descend.launch.trainers import Trainers, acting_as, acting_trainer, shared_out

__all__ = [
    "ALONE",
    "Forecast",
    "Job",
    "Network",
    "Place",
    "Profile",
    "Trainers",
    "acting_as",
    "acting_trainer",
    "cores",
    "flux",
    "forecast",
    "local",
    "lsf",
    "mpi",
    "place",
    "rank_counts",
    "shared_out",
    "slurm",
    "timeout_seconds",
]
