"""File formats, one a file, by the names that a description gives them."""

from collections.abc import Mapping

from descend.data.formats.images import DIGITS, MNIST, SYNTHETIC
from descend.data.formats.python_dataset import PYTHON_DATASET
from descend.data.formats.python_module import PYTHON
from descend.data.reader_protocol import Format

__all__ = ["FORMATS"]

FORMATS: Mapping[str, Format] = {
    "mnist": MNIST,
    "digits": DIGITS,
    "synthetic": SYNTHETIC,
    "python": PYTHON,
    "python_dataset": PYTHON_DATASET,
}
