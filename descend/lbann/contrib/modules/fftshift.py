"""The zero frequency in the middle."""

from descend.zoo.modules import FFTShift

__all__ = ["FFTShift"]
