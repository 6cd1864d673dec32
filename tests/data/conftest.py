"""IDX files written by their published description, independent of the code that reads them."""

import gzip
import struct

import numpy as np
import pytest

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


@pytest.fixture(scope="session")
def idx_bytes():
    """A function: array → content of an IDX file."""

    def content(array: np.ndarray) -> bytes:
        header = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        return header + array.astype(array.dtype.newbyteorder(">")).tobytes()

    return content


@pytest.fixture(scope="session")
def write_idx(idx_bytes):
    """A function: (path, array) → the file, compressed when its name ends in .gz."""

    def write(path, array):
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture
def mnist_folder(tmp_path, write_idx):
    """A folder like MNIST's: 20 small images for training, compressed, and 8 for the test, plain."""
    rng = np.random.default_rng(0)
    for name, n, ending in (("train", 20, ".gz"), ("t10k", 8, "")):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte{ending}", rng.integers(0, 256, (n, 4, 3)).astype(np.uint8))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte{ending}", (np.arange(n) % 10).astype(np.uint8))
    return tmp_path
