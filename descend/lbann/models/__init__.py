"""LBANN's list of models, under its names; `descend.zoo` has these and more."""

from importlib import import_module

from descend.lbann.places import children
from descend.zoo.language import RoBERTa
from descend.zoo.networks import AlexNet, LeNet
from descend.zoo.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152
from descend.zoo.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "AlexNet",
    "LeNet",
    "ResNet",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "RoBERTa",
    "Transformer",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
]

for _name in children("models"):
    globals()[_name] = import_module(f"{__name__}.{_name}")
    __all__ += [_name]  # pyright: ignore[reportUnsupportedDunderAll]
