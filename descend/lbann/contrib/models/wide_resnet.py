"""Wide residual networks."""

from descend.zoo.resnet import WideResNet50_2

__all__ = ["WideResNet50_2"]
