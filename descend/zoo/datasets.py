"""Data sets that ship with the package or are easily found: images as descriptions of readers, and a text."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.data import DataReader, Reader, read
from descend.data.transforms import Scale
from descend.errors import DataError

if TYPE_CHECKING:
    from descend.data import FileReader

__all__ = ["digits", "fashion_mnist", "python_text"]

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


def python_text(role: str = "train", length: int = 256, tokenizer: Any = None) -> FileReader:
    """The modules of Python's own library, a text of about five million bytes that every installation has.

    A module is a document; every tenth of them, in the order of their names, is for validation, the others are for
    training. Another release of Python has another text. Fields are those of text, see `descend.data.packed_text`.

    Args:
        role: "train" or "validate".
        length: Tokens of a sample.
        tokenizer: As of `descend.data.read`; None takes the bytes.

    Raises:
        DataError: there are no such files, as in a Python that is packed into an archive; or another role is asked for.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(path for path in folder.glob("*.py") if path.stat().st_size)
    if role not in ("train", "validate"):
        raise DataError(f"python_text has the roles train and validate, got '{role}'")
    if len(modules) < 10:
        raise DataError(
            f"{folder} has no modules of Python's library to read: name a text of your own, descend.data.read('a.txt')"
        )
    chosen = [path for number, path in enumerate(modules) if (number % 10 == 9) == (role == "validate")]
    return read(chosen, format="text", role=role, length=length, tokenizer=tokenizer)


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
