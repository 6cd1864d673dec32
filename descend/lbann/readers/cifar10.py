"""LBANN's reader cifar10: the binary batches of CIFAR-10 in data_filedir.

train   data_batch_1.bin ... data_batch_5.bin       test    test_batch.bin

samples   (3, 32, 32) pixels 0 to 255, channels red, green, blue
labels    one-hot, (10,)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.data.formats.cifar import CIFARFiles
from descend.data.reader_protocol import Field, Format, one_hot
from descend.errors import DataError
from descend.lbann.readers.locations import FOLDERS, folders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["CIFAR10", "CIFAR10Batches"]

NUM_LABELS = 10
FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}


class CIFAR10Batches:
    """The samples of a role.

    Raises:
        DataError: files are missing or are not those of CIFAR-10, or the role has none.
    """

    def __init__(self, reader: Reader, seed: int) -> None:
        if reader.role not in FILES:
            raise DataError(
                f"CIFAR-10 has files for {' and '.join(FILES)}, not for '{reader.role}'; hold samples of the train "
                f"reader out with {'validation' if reader.role == 'validate' else reader.role}_fraction"
            )
        names = FILES[reader.role][: reader.max_files_to_load or None]
        places = [folder for folder in folders(reader) if all((folder / name).is_file() for name in names)]
        if not places:
            raise DataError(
                f"looked for {', '.join(names)} in {' and '.join(str(f.absolute()) for f in folders(reader))}; set "
                "data_filedir to the folder of CIFAR-10's binary version"
            )
        self._files = CIFARFiles([places[0] / name for name in names])
        if set(self._files.fields) != {"image", "label"}:
            raise DataError(f"{places[0]} has files of CIFAR-100; the reader cifar10 reads those of CIFAR-10")
        self.fields: Mapping[str, Field] = {
            "samples": self._files.fields["image"],
            "labels": Field((NUM_LABELS,), np.dtype(np.float32)),
        }

    def __len__(self) -> int:
        return len(self._files)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        found = self._files.read(samples)
        return {"samples": found["image"], "labels": one_hot(found["label"], NUM_LABELS)}


CIFAR10 = Format(CIFAR10Batches, FOLDERS | {"max_files_to_load"})
