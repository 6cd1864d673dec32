"""Models and small data sets that ship with the package.

digits(), fashion_mnist(folder=None)    descriptions of readers, for `descend.run` and for a text
lenet(images), small_lenet(images)      layers from images to class probabilities
demo_experiment(name)                   a whole run, ready made
"""

from descend.zoo.datasets import digits, fashion_mnist
from descend.zoo.demo import demo_experiment
from descend.zoo.lenet import lenet, small_lenet

__all__ = ["demo_experiment", "digits", "fashion_mnist", "lenet", "small_lenet"]
