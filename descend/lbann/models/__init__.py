"""LBANN's list of models, under its names; `descend.zoo` has these and more."""

from descend.lbann.models import alexnet, lenet, resnet, roberta, subgraph, transformer
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
    "alexnet",
    "lenet",
    "resnet",
    "roberta",
    "subgraph",
    "transformer",
]
