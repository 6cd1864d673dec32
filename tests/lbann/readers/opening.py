"""What the tests of LBANN's readers share."""

import numpy as np
import pytest

from descend.data import DataReader, Reader, open_readers
from descend.errors import DescendError


def opened(name, folder, role="train", seed=0, **fields):
    return open_readers(DataReader([Reader(name=name, role=role, data_filedir=str(folder), **fields)]), seed)[role]


def everything(reader, epoch=0):
    return reader.read(np.arange(len(reader)), epoch)


def refusal(name, folder, **fields):
    """The text of the error when a reader is opened and read."""
    with pytest.raises(DescendError) as caught:
        everything(opened(name, folder, **fields))
    return str(caught.value)
