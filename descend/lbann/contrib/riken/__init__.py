"""The questions that scripts ask of RIKEN, answered for the machine at hand."""

from descend.lbann.contrib.riken import systems

__all__ = ["systems"]
