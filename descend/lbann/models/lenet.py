"""LeNet."""

from descend.zoo.networks import LeNet

__all__ = ["LeNet"]
