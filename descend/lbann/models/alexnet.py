"""AlexNet."""

from descend.zoo.networks import AlexNet

__all__ = ["AlexNet"]
