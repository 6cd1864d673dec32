"""The questions that scripts ask of OLCF, answered for the machine at hand."""

from descend.lbann.contrib.olcf import systems

__all__ = ["systems"]
