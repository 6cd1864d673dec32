"""File formats, one a file, by the names that a description gives them."""

from collections.abc import Mapping

from descend.data.formats.images import DIGITS, MNIST
from descend.data.formats.synthetic import SYNTHETIC
from descend.data.reader_protocol import Format

__all__ = ["FORMATS", "NOT_BUILT"]

FORMATS: Mapping[str, Format] = {"mnist": MNIST, "digits": DIGITS, "synthetic": SYNTHETIC}

# Readers of LBANN that are not implemented; their names give an error of their own.
NOT_BUILT = frozenset({"python", "python_dataset"})
