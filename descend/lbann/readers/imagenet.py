"""LBANN's reader imagenet: image files with integer labels.

data_filename     a text whose lines are "NAME LABEL"; names are relative to data_filedir. With num_image_srcs = k a
                  line is "NAME_1 ... NAME_k LABEL", and the images of a sample are joined along their channels
sample_list       a list SINGLE-SAMPLE of the images instead, whose labels are on the lines of label_filename
num_labels        labels are one-hot with this many entries, 1000 where it is 0

Images are of any size, gray or of three channels, until transforms bring them to one shape. Image transforms see the
channels red, green, blue; behind them, and so for the means of a normalization, they are blue, green, red: LBANN
decodes with OpenCV, and the files of its users have their means in this order ("0.406 0.456 0.485").
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.data.images.pictures import decoded
from descend.data.reader_protocol import Field, Format, one_hot
from descend.errors import ConfigurationError, DataError
from descend.lbann.readers.locations import FOLDERS, folders, located
from descend.lbann.readers.sample_list import LISTS, listed_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["IMAGENET", "ListedImages"]

NUM_LABELS = 1000


class ListedImages:
    """Images of a list, with labels.

    Args:
        paths: For each sample its images.
        labels: An integer for each sample.
        num_labels: Of the one-hot labels.
    """

    blue_first = True

    def __init__(self, paths: Sequence[Sequence[Path]], labels: NDArray[np.int64], num_labels: int) -> None:
        self._paths = paths
        self._labels = labels
        self.images_per_sample = len(paths[0]) if paths else 1
        self.fields: Mapping[str, Field] = {
            "samples": Field((-1, -1, -1), np.dtype(np.uint8)),
            "labels": Field((num_labels,), np.dtype(np.float32)),
        }

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The labels with these numbers; the images come one by one from `images`."""
        return {"labels": one_hot(self._labels[samples], self.fields["labels"].shape[0])}

    def images(self, sample: int, which: int) -> Array:
        """An image of a sample, (channels, height, width) of uint8.

        Raises:
            DataError: it cannot be decoded.
        """
        path = self._paths[sample][which]
        try:
            return decoded(path)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def _open_imagenet(reader: Reader, seed: int) -> ListedImages:
    if bool(reader.data_filename) == bool(reader.sample_list):
        raise ConfigurationError("set data_filename or sample_list, one of the two: it names the images")
    num_labels = reader.num_labels or NUM_LABELS
    if reader.sample_list:
        return _of_sample_list(reader, num_labels)
    if reader.label_filename:
        raise ConfigurationError("label_filename is set, and the labels are in data_filename; remove it")
    listing = located(reader, "data_filename")
    images = max(reader.num_image_srcs, 1)
    paths: list[tuple[Path, ...]] = []
    labels: list[int] = []
    roots, whole = folders(reader), False
    for number, line in enumerate(_lines(listing), start=1):
        # Names of images may contain blanks where a line has one of them.
        words = line.rsplit(maxsplit=1) if images == 1 else line.split()
        if not words:
            continue
        if len(words) != images + 1:
            raise DataError(f"{listing}:{number}: a line must be {images} names and a label, got '{line.strip()}'")
        labels.append(_label(words[-1], num_labels, f"{listing}:{number}"))
        whole = _are_whole(roots, words[0]) if not paths else whole
        paths.append(tuple(Path(name) if whole else _image(roots, name) for name in words[:-1]))
    return ListedImages(paths, np.array(labels, np.int64), num_labels)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be a text: {error}") from error


def _image(roots: Sequence[Path], name: str) -> Path:
    """The path of an image; whether it exists is found when it is read, since a list may have millions."""
    if len(roots) > 1 and (roots[0] / name.lstrip("/")).is_file():
        return roots[0] / name.lstrip("/")
    # LBANN joins the two texts, so that "/n01440764/x.JPEG" is a name below the folder.
    below = roots[-1] / name.lstrip("/")
    return Path(name) if name.startswith("/") and roots == [Path()] else below


def _are_whole(roots: Sequence[Path], name: str) -> bool:
    """Whether names in a list are whole paths, judged by the first one, though there is a folder to put before them."""
    return name.startswith("/") and not _image(roots, name).is_file() and Path(name).is_file()


def _label(word: str, num_labels: int, place: str) -> int:
    if not word.isdecimal() or int(word) >= num_labels:
        raise DataError(
            f"{place}: the label is '{word}', and labels are integers from 0 to {num_labels - 1}; correct the line or "
            "set num_labels"
        )
    return int(word)


def _of_sample_list(reader: Reader, num_labels: int) -> ListedImages:
    if reader.num_image_srcs > 1:
        raise ConfigurationError(
            "num_image_srcs needs data_filename, whose lines name several images; remove sample_list"
        )
    listing = located(reader, "label_filename")
    of_name: dict[str, int] = {}
    for number, line in enumerate(_lines(listing), start=1):
        words = line.rsplit(maxsplit=1)
        if len(words) == 2:
            of_name[words[0]] = _label(words[1], num_labels, f"{listing}:{number}")
    samples = listed_samples(reader, lambda path: [path.name])
    labels: list[int] = []
    for sample in samples:
        known = [name for name in (str(sample.path), sample.path.name) if name in of_name]
        known += [name for name in ("/".join(sample.path.parts[-2:]),) if name in of_name]
        if not known:
            raise DataError(f"{listing} has no line 'NAME LABEL' for {sample.path}")
        labels.append(of_name[known[0]])
    return ListedImages([(sample.path,) for sample in samples], np.array(labels, np.int64), num_labels)


_USES = FOLDERS | LISTS | {"data_filename", "label_filename", "num_labels", "num_image_srcs", "max_files_to_load"}
IMAGENET = Format(_open_imagenet, _USES)
