"""Image files: folders whose names are the classes, and lists of names with labels.

a folder    the field "image", and "label" if the images are in sub-folders: the folder's place among them by name
a list      a text file whose lines are "PATH LABEL"; paths are relative to the file; the fields "image" and "label"
            (an integer, or text that names a class); without labels on all lines only "image"

Images are arrays (channels, height, width), see `descend.data.pictures`.
"""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.data.file_format import FileFormat
from descend.data.pictures import form_of_images, is_image
from descend.data.read_threads import in_threads
from descend.data.reader_protocol import Field
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["ENDINGS", "FILE_FORMATS", "ImageFiles"]

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


class ImageFiles:
    """Image files with a label each, or without labels.

    Args:
        paths: Of the images.
        labels: A class for each; None without labels.
        classes: The classes in the order of their numbers, if they have names.
        options: Those of the caller.

    Raises:
        DataError: the first image cannot be read.
    """

    def __init__(
        self, paths: Sequence[Path], labels: Sequence[int] | None, classes: Sequence[str], options: ReadOptions
    ) -> None:
        self._paths = paths
        self._labels = None if labels is None else np.array(labels, dtype=np.int64)
        self._form = form_of_images(paths, options.height_and_width, lambda sample: str(paths[sample]))
        self.pixels = frozenset({"image"})
        self.classes: dict[str, list[str]] = {"label": list(classes)} if classes else {}
        label = {"label": Field((), np.dtype(np.int64))} if labels is not None else {}
        self.fields: Mapping[str, Field] = {"image": self._form.field, **label}

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def files(self) -> Sequence[Path]:
        """The images, in the order of the samples."""
        return self._paths

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Images, decoded, and labels."""
        images = np.empty((len(samples), *self.fields["image"].shape), self.fields["image"].dtype)

        def decode(place: int) -> None:
            images[place] = self._form.decode(self._paths[samples[place]])

        in_threads(decode, len(samples))
        return {"image": images} if self._labels is None else {"image": images, "label": self._labels[samples]}

    def column(self, name: str) -> Array | None:
        """The labels of all images, none of which is opened."""
        return self._labels if name == "label" else None

    def place(self, sample: int) -> str:
        """The path of the image."""
        return str(self._paths[sample])


def _open_images(paths: Sequence[Path], options: ReadOptions) -> ImageFiles:
    """Images whose classes are the folders in which they lie, below the one that has all."""
    root = Path(os.path.commonpath([path.parent for path in paths]))
    names = [path.relative_to(root).parts[0] if path.parent != root else "" for path in paths]
    given = options.classes_of("label")
    if not any(names) and given is None:
        return ImageFiles(paths, None, (), options)
    if not all(names):
        if given is None:
            raise DataError(f"{root} has images beside folders with images; put them into a folder of their class")
        names = [path.parent.name for path in paths]  # one folder of a data set with several
    return ImageFiles(paths, *_numbered(names, given, str(root)), options)


def _numbered(names: Sequence[str], given: Sequence[str] | None, place: str) -> tuple[list[int], Sequence[str]]:
    classes = sorted(set(names)) if given is None else list(given)
    if unknown := sorted(set(names) - set(classes)):
        raise DataError(f"{place}: '{unknown[0]}' is none of the classes {', '.join(classes)}")
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers[name] for name in names], classes


def _open_list(paths: Sequence[Path], options: ReadOptions) -> ImageFiles:
    """Images named in text files."""
    files: list[Path] = []
    labels: list[str] = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
            if not line.strip():
                continue
            words = line.strip().rsplit(maxsplit=1) if _has_label(line) else [line.strip()]
            name, label = words if len(words) == 2 else (words[0], "")
            if not (path.parent / name).is_file():
                raise DataError(f"{path}, line {number}: there is no file {path.parent / name}")
            files.append(path.parent / name)
            labels.append(label)
    if not files:
        raise DataError(f"{paths[0]} names no image")
    if not any(labels):
        return ImageFiles(files, None, (), options)
    if not all(labels):
        raise DataError(f"{paths[0]}: some lines have a label and others have none")
    if all(label.lstrip("-").isdecimal() for label in labels):
        return ImageFiles(files, [int(label) for label in labels], (), options)
    return ImageFiles(files, *_numbered(labels, options.classes_of("label"), str(paths[0])), options)


def _has_label(line: str) -> bool:
    return not line.strip().lower().endswith(ENDINGS)


def _is_list(begin: bytes) -> bool:
    """Whether all lines at the beginning have the name of an image, and a label or nothing behind it."""
    lines = begin.removeprefix(codecs.BOM_UTF8).split(b"\n")
    whole = lines[:-1] if len(lines) > 1 else lines  # the last one may be cut off
    return all(map(_names_image, [line.strip().lower() for line in whole if line.strip()] or [b""]))


def _names_image(line: bytes) -> bool:
    name, *_ = [line] if line.endswith(tuple(e.encode() for e in ENDINGS)) else line.rsplit(maxsplit=1) or [b""]
    return name.endswith(tuple(e.encode() for e in ENDINGS)) and len(name) < 512 and b"," not in line


def _check_label(options: ReadOptions) -> None:
    if options.label not in (None, "label"):
        raise ConfigurationError(f"read: the label of images is the field 'label', got label='{options.label}'")


def _checked_images(paths: Sequence[Path], options: ReadOptions) -> ImageFiles:
    _check_label(options)
    return _open_images(paths, options)


def _checked_list(paths: Sequence[Path], options: ReadOptions) -> ImageFiles:
    _check_label(options)
    return _open_list(paths, options)


FILE_FORMATS = (
    FileFormat("images", ENDINGS, _checked_images, frozenset({"image_size"}), recognizes=is_image, by_place=True),
    FileFormat("image list", (), _checked_list, frozenset({"image_size"}), recognizes=_is_list),
)
