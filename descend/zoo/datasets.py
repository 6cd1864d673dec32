"""Image data sets that ship with the package or are easily found, as descriptions of their readers."""

from __future__ import annotations

import os
from pathlib import Path

from descend.data import DataReader, Reader
from descend.data.transforms import Scale
from descend.errors import DataError

__all__ = ["digits", "fashion_mnist"]

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def digits() -> DataReader:
    """1,797 handwritten digits that ship with the package, in a fixed and class-balanced split.

        role        samples   order
        train         1,201   shuffled in each epoch
        validate        300   fixed
        test            296   fixed

    Fields: `samples` (1, 8, 8), floats in [0, 1]; `labels` (10,), one-hot.

    Source: E. Alpaydin and C. Kaynak 1998, Optical Recognition of Handwritten Digits, https://doi.org/10.24432/C50P49,
    licence CC BY 4.0; `digits/LICENCE.md` beside this file says how they are split.
    """
    scale = Scale(1 / 16)
    return DataReader(
        [
            Reader(name="digits", role="train", shuffle=True, transforms=[scale]),
            Reader(name="digits", role="validate", transforms=[scale]),
            Reader(name="digits", role="test", transforms=[scale]),
        ]
    )


def fashion_mnist(folder: str | Path | None = None, validation_fraction: float = 1 / 60) -> DataReader:
    """Fashion-MNIST: 60,000 + 10,000 images of clothes in ten classes, from the four IDX files of its authors.

        role        samples   order
        train        59,000   shuffled in each epoch
        validate      1,000   held out of the 60,000 by the seed of the run
        test         10,000   fixed

    Fields: `samples` (1, 28, 28), floats in [0, 1]; `labels` (10,), one-hot.

    Args:
        folder: Of the files, plain or with .gz. By default `fashion-mnist` in the folder that the variable
            DESCEND_DATA_DIR names, else where Debian's package dataset-fashion-mnist puts it.
        validation_fraction: Of the 60,000; 0 trains on all of them and makes no reader for validation.

    Raises:
        DataError: there is no such folder.

    Source: Xiao, Rasul and Vollgraf 2017, https://arxiv.org/abs/1708.07747, licence MIT.
    """
    data = str(_fashion_mnist_folder(folder))
    scale = Scale(1 / 255)
    return DataReader(
        [
            Reader(
                name="mnist",
                role="train",
                shuffle=True,
                data_filedir=data,
                validation_fraction=validation_fraction,
                transforms=[scale],
            ),
            Reader(name="mnist", role="test", data_filedir=data, transforms=[scale]),
        ]
    )


def _fashion_mnist_folder(folder: str | Path | None) -> Path:
    data_dir = os.environ.get("DESCEND_DATA_DIR")
    chosen = Path(folder) if folder is not None else Path(data_dir) / "fashion-mnist" if data_dir else DEBIAN_FOLDER
    if not chosen.is_dir():
        raise DataError(
            f"Fashion-MNIST is not in {chosen}: run 'apt install dataset-fashion-mnist' (Debian, Ubuntu), or put "
            "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
            "t10k-labels-idx1-ubyte.gz into a folder and pass folder=, or name its parent in DESCEND_DATA_DIR"
        )
    return chosen
