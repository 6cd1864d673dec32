"""The questions that scripts ask of Livermore Computing, answered for the machine at hand."""

from descend.lbann.contrib.lc import paths, systems

__all__ = ["paths", "systems"]
