"""What the machine is, as scripts ask it of NERSC: answered for the machine at hand."""

from descend.lbann.contrib.lc.systems import cores_per_node, gpus_per_node, has_gpu, procs_per_node, scheduler, system

__all__ = [
    "cores_per_node",
    "gpus_per_node",
    "has_gpu",
    "is_nersc_system",
    "procs_per_node",
    "scheduler",
    "system",
]


def is_nersc_system(name: str | None = None) -> bool:
    """Whether this is a system of NERSC; none is known here."""
    return False
