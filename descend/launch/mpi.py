"""Open MPI's mpiexec, which starts ranks on the hosts that it knows; there is no queue.

torch's own wheels have no MPI: the ranks take their numbers from Open MPI and talk by gloo or NCCL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.launch.job import Job, lines, require_unset

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["detect", "script"]


def detect(environment: Mapping[str, str]) -> bool:
    """Never: mpiexec knows no allocation of its own."""
    return False


def script(job: Job) -> str:
    """The text of the job; it is run with bash."""
    require_unset(job, "mpiexec", "array")
    meeting = [
        'export MASTER_ADDR="${MASTER_ADDR:-$(hostname)}"',
        'export MASTER_PORT="${MASTER_PORT:-29500}"',
    ]
    passed = [part for name in ("MASTER_ADDR", "MASTER_PORT", *job.environment) for part in ("-x", name)]
    starter = ["mpiexec", "-n", str(job.ranks), "--map-by", f"ppr:{job.procs_per_node}:node", *passed]
    return lines(job, [], meeting, starter, [])
