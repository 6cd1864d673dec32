"""Means over rings of an image."""

from descend.zoo.modules import RadialProfile

__all__ = ["RadialProfile"]
