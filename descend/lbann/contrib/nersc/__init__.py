"""The questions that scripts ask of NERSC, answered for the machine at hand."""

from descend.lbann.contrib.nersc import systems

__all__ = ["systems"]
