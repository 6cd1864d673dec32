"""What the machine is, as LBANN's scripts ask it of a computing centre: answered for the machine at hand."""

from __future__ import annotations

import platform
import shutil
import subprocess

from descend.experiment.launcher import detected
from descend.launch import cores

__all__ = [
    "cores_per_node",
    "gpus_per_node",
    "has_gpu",
    "is_lc_system",
    "is_nersc_system",
    "is_olcf_system",
    "is_riken_system",
    "procs_per_node",
    "scheduler",
    "system",
]


def system() -> str:
    """Name of the system: that of the machine without a number at its end."""
    return platform.node().partition(".")[0].rstrip("0123456789") or "unknown"


def is_lc_system(name: str | None = None) -> bool:
    """Whether this is a system of Livermore Computing; none is known here."""
    return False


def is_nersc_system(name: str | None = None) -> bool:
    """Whether this is a system of NERSC; none is known here."""
    return False


def is_olcf_system(name: str | None = None) -> bool:
    """Whether this is a system of OLCF; none is known here."""
    return False


def is_riken_system(name: str | None = None) -> bool:
    """Whether this is a system of RIKEN; none is known here."""
    return False


def gpus_per_node(name: str | None = None) -> int:
    """Number of NVIDIA GPUs that the driver lists; 0 where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def has_gpu(name: str | None = None) -> bool:
    """Whether there is a GPU."""
    return gpus_per_node(name) > 0


def cores_per_node(name: str | None = None) -> int:
    """Number of processors that this process may use."""
    return cores()


def scheduler(name: str | None = None) -> str:
    """The scheduler in whose allocation this process is, or local."""
    return detected()


def procs_per_node(name: str | None = None) -> int:
    """Processes to start on a machine: one for each GPU, or one."""
    return max(1, gpus_per_node(name))
