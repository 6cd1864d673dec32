"""`lbann.run` for computing centres: the same arguments.

LBANN's own version fills in settings of its authors' centres. Here none is known, so it is `lbann.run` as it is, and a
machine is asked for by `scheduler`, `partition` and `account`.
"""

from __future__ import annotations

from descend.lbann.launcher import make_batch_script, run

__all__ = [
    "compute_center",
    "is_lc_center",
    "is_nersc_center",
    "is_olcf_center",
    "is_riken_center",
    "make_batch_script",
    "run",
]


def compute_center() -> str:
    """Name of the computing centre; "unknown" everywhere, since no centre's settings are known here."""
    return "unknown"


def is_lc_center() -> bool:
    """Whether this is Livermore Computing; its settings are not known here."""
    return False


def is_nersc_center() -> bool:
    """Whether this is NERSC; its settings are not known here."""
    return False


def is_olcf_center() -> bool:
    """Whether this is OLCF; its settings are not known here."""
    return False


def is_riken_center() -> bool:
    """Whether this is RIKEN; its settings are not known here."""
    return False
