"""Models: those of `descend.models`."""

from descend.lbann.models import alexnet, lenet, resnet, roberta, subgraph, transformer
from descend.models import (
    AlexNet,
    LeNet,
    ResNet,
    ResNet18,
    ResNet34,
    ResNet50,
    ResNet101,
    ResNet152,
    RoBERTa,
    Transformer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)

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
