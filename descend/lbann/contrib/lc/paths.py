"""Where data sets are. No centre's folders are known here; the environment says where yours are.

LBANN_DATA_DIR         one folder for all of them
LBANN_MNIST_DIR        that of MNIST, and likewise CIFAR10 and IMAGENET
"""

from __future__ import annotations

import os
from pathlib import Path

from descend.errors import ConfigurationError

__all__ = [
    "cifar10_dir",
    "imagenet_dir",
    "imagenet_labels",
    "mnist_dir",
    "parallel_file_system_path",
]


def _folder(name: str) -> str:
    own = f"LBANN_{name.upper()}_DIR"
    if given := os.environ.get(own):
        return given
    if shared := os.environ.get("LBANN_DATA_DIR"):
        return str(Path(shared) / name)
    raise ConfigurationError(
        f"where the data set {name} is, is not known here: set {own} to its folder, or LBANN_DATA_DIR to one that has "
        f"'{name}' in it"
    )


def parallel_file_system_path(system: str | None = None) -> str:
    """The folder of all data sets: LBANN_DATA_DIR.

    Raises:
        ConfigurationError: the variable is not set.
    """
    if found := os.environ.get("LBANN_DATA_DIR"):
        return found
    raise ConfigurationError(
        "no parallel file system is known here: set LBANN_DATA_DIR to the folder of your data sets"
    )


def mnist_dir(system: str | None = None) -> str:
    """The folder of MNIST.

    Raises:
        ConfigurationError: it is not known.
    """
    return _folder("mnist")


def cifar10_dir(system: str | None = None) -> str:
    """The folder of CIFAR-10.

    Raises:
        ConfigurationError: it is not known.
    """
    return _folder("cifar10")


def imagenet_dir(system: str | None = None, data_set: str = "training", num_classes: int = 1000) -> str:
    """The folder of ImageNet's images: `train`, or `val`.

    Raises:
        ConfigurationError: it is not known.
    """
    return str(Path(_folder("imagenet")) / _part(data_set))


def imagenet_labels(system: str | None = None, data_set: str = "train", num_classes: int = 1000) -> str:
    """The file of ImageNet's labels: `labels/train.txt`, or `val.txt`, in its folder.

    Raises:
        ConfigurationError: it is not known.
    """
    return str(Path(_folder("imagenet")) / "labels" / f"{_part(data_set)}.txt")


def _part(data_set: str) -> str:
    parts = {"train": "train", "training": "train", "val": "val", "validation": "val", "test": "val", "testing": "val"}
    if data_set not in parts:
        raise ConfigurationError(f"ImageNet has no part '{data_set}'; it has {', '.join(parts)}")
    return parts[data_set]
