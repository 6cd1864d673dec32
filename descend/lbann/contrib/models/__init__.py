"""Models that LBANN keeps apart from the others."""

from descend.lbann.contrib.models import wide_resnet

__all__ = ["wide_resnet"]
