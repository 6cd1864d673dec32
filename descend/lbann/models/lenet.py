"""LeNet."""

from descend.models import LeNet

__all__ = ["LeNet"]
