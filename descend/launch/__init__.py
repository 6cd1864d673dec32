"""Starting ranks, and knowing which one this process is; one file a scheduler. Nothing here needs torch."""

from descend.launch import flux, local, lsf, mpi, slurm
from descend.launch.job import Job
from descend.launch.place import ALONE, Place, place, timeout_seconds
from descend.launch.trainers import Trainers, acting_as, acting_trainer, shared_out

__all__ = [
    "ALONE",
    "Job",
    "Place",
    "Trainers",
    "acting_as",
    "acting_trainer",
    "flux",
    "local",
    "lsf",
    "mpi",
    "place",
    "shared_out",
    "slurm",
    "timeout_seconds",
]
