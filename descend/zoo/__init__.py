"""Models and small data sets that ship with the package.

digits(), fashion_mnist(folder=None)    descriptions of readers, for `descend.run` and for a text
lenet(images), small_lenet(images)      layers from images to class probabilities
LeNet, AlexNet, MLP, ResNet18, ...      networks as modules: ResNet50(1000)(images) gives logits
TransformerEncoderLayer, ...            the transformer's layers and its encoding of places
modules                                 what they are built of, with LBANN's names
demo_experiment(name)                   a whole run, ready made
"""

from descend.zoo import modules
from descend.zoo.datasets import digits, fashion_mnist
from descend.zoo.demo import demo_experiment
from descend.zoo.lenet import lenet, small_lenet
from descend.zoo.networks import MLP, AlexNet, LeNet
from descend.zoo.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152, WideResNet50_2
from descend.zoo.transformer import PositionalEncoding, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "MLP",
    "AlexNet",
    "LeNet",
    "PositionalEncoding",
    "ResNet",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "WideResNet50_2",
    "demo_experiment",
    "digits",
    "fashion_mnist",
    "lenet",
    "modules",
    "small_lenet",
]
