"""Starting ranks, and knowing which one this process is; one file a scheduler. Nothing here needs torch."""

from descend.launch import flux, local, lsf, mpi, slurm
from descend.launch.job import Job
from descend.launch.place import ALONE, Place, place, timeout_seconds

__all__ = ["ALONE", "Job", "Place", "flux", "local", "lsf", "mpi", "place", "slurm", "timeout_seconds"]
