"""Means over rings of an image."""

from descend.modules import RadialProfile

__all__ = ["RadialProfile"]
