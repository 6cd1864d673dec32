"""Modules that move the entries of tensors."""

from descend.zoo.modules import Cumsum, PeriodicPadding2D, PeriodicPadding3D, Permute

__all__ = ["Cumsum", "PeriodicPadding2D", "PeriodicPadding3D", "Permute"]
