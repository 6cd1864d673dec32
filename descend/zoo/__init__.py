"""Models and small data sets that ship with the package.

digits(), fashion_mnist(folder=None)    descriptions of readers, for `descend.run` and for a text
python_text(role="train")               the modules of Python's own library as a text, for `descend.fit`
lenet(images), small_lenet(images)      layers from images to class probabilities
LeNet, AlexNet, MLP, ResNet18, ...      networks as modules: ResNet50(1000)(images) gives logits
Transformer, BERT, RoBERTa, GPT         the transformer, encoders of texts, and a model that continues a text
TransformerEncoderLayer, ...            what they are made of
modules                                 what they are built of: descend.modules
demo_experiment(name)                   a whole run, ready made
"""

from descend.zoo import modules
from descend.zoo.datasets import digits, fashion_mnist, python_text
from descend.zoo.demo import demo_experiment
from descend.zoo.language import BERT, GPT, EncoderConfig, RoBERTa, bert_config, next_token_loss
from descend.zoo.lenet import lenet, small_lenet
from descend.zoo.modules import PositionalEncoding
from descend.zoo.networks import MLP, AlexNet, LeNet
from descend.zoo.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152, WideResNet50_2
from descend.zoo.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "BERT",
    "GPT",
    "MLP",
    "AlexNet",
    "EncoderConfig",
    "LeNet",
    "PositionalEncoding",
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
    "WideResNet50_2",
    "bert_config",
    "demo_experiment",
    "digits",
    "fashion_mnist",
    "lenet",
    "modules",
    "next_token_loss",
    "python_text",
    "small_lenet",
]
