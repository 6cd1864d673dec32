"""Models and small data sets that ship with the package.

digits(), fashion_mnist(folder=None)    descriptions of readers, for `descend.run` and for a text
"""

from descend.zoo.datasets import digits, fashion_mnist

__all__ = ["digits", "fashion_mnist"]
