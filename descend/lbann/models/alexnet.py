"""AlexNet."""

from descend.models import AlexNet

__all__ = ["AlexNet"]
