"""The zero frequency in the middle."""

from descend.modules import FFTShift

__all__ = ["FFTShift"]
