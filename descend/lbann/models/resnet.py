"""Residual networks."""

from descend.zoo.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152

__all__ = ["ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"]
