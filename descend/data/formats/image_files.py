"""Image files: folders whose names are the classes, and lists of names with labels.

a folder    the field "image", and "label" if the images are in sub-folders: the folder's place among them by name
a list      a text file whose lines are "PATH LABEL" or "PATH,LABEL"; paths are relative to the file; the fields "image"
            and "label" (an integer, several with blanks between them, or text that names a class); without labels on
            all lines only "image"

Images are arrays (channels, height, width), see `descend.data.images.pictures`.
"""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.data.file_format import IMAGE_OPTIONS, FileFormat
from descend.data.images.pictures import is_image
from descend.data.images.survey import LOOKED_AT, form_of_images
from descend.data.loading.read_threads import in_threads
from descend.data.numbered_texts import check_classes
from descend.data.paths import role_of, why_no_data
from descend.data.reader_protocol import Field
from descend.errors import ConfigurationError, DataError, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["ENDINGS", "FILE_FORMATS", "ImageFiles"]

_NUMBER = re.compile(r"-?\d+")
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2", ".avif")
_WITH_NUMBERS = re.compile(rf"(.*(?:{'|'.join(map(re.escape, ENDINGS))}))((?:\s+-?\d+){{2,}})", re.IGNORECASE)


class ImageFiles:
    """Image files with a label each, or without labels.

    Args:
        paths: Of the images.
        labels: A class, or several numbers, for each; None without labels.
        classes: The classes in the order of their numbers, if they have names.
        options: Those of the caller.

    Raises:
        DataError: the first image cannot be read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | Sequence[Sequence[int]] | None,
        classes: Sequence[str],
        options: ReadOptions,
    ) -> None:
        self._paths = paths
        self._labels = None if labels is None else np.array(labels, dtype=np.int64)
        # Which ones are looked at must not depend on the order of a list.
        order = sorted(range(len(paths)), key=lambda one: str(paths[one])) if len(paths) > LOOKED_AT else None
        self._form = form_of_images(
            len(paths), paths.__getitem__, options, lambda sample: str(paths[sample]), order=order
        )
        self.kinds, self.notes = {"image": self._form.kind}, self._form.notes
        self.pixels = frozenset({"image"})
        self.classes: dict[str, list[str]] = {"label": list(classes)} if classes else {}
        self.self_numbered = frozenset(self.classes if options.classes_of("label") is None else ())
        label = {} if self._labels is None else {"label": Field(self._labels.shape[1:], self._labels.dtype)}
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
    _check_label(options)
    root = Path(os.path.commonpath([path.parent for path in paths]))
    names = [path.relative_to(root).parts[0] if path.parent != root else "" for path in paths]
    if not any(names) and _classes_beside(root.parent, [root.name]) is not None:  # all are of one class of a role
        root, names = root.parent, [root.name] * len(paths)
    given = options.classes_of("label") or _classes_beside(root, names)
    if not any(names) and given is None:
        return ImageFiles(paths, None, (), options)
    if not all(names):
        if given is None:
            raise DataError(f"{root} has images beside folders with images; put them into a folder of their class")
        names = [path.parent.name for path in paths]  # one folder of a data set with several
    return ImageFiles(paths, *_numbered(names, given, str(root)), options)


def _classes_beside(root: Path, names: Sequence[str]) -> list[str] | None:
    """The folders of the training images, where those of another role have some of them: classes have one number."""
    if role_of(root.name, whole=True) in (None, "train"):
        return None
    beside = [one for one in root.parent.iterdir() if one.is_dir() and role_of(one.name, whole=True) == "train"]
    found = sorted(
        one.name
        for folder in beside
        for one in folder.iterdir()
        if one.is_dir() and one.name[0] != "." and not why_no_data(one.name)
    )
    own, known = set(names) - {""}, set(found)
    if own & known and (unknown := sorted(own - known)):
        raise DataError(
            f"{root}: '{unknown[0]}' is none of the training images' classes, as '{min(own & known)}' is: say all by "
            "classes=[...], in the order of their numbers"
        )
    if own and known and not own & known:
        warn(f"{root}: no folder is called as a class of training ({min(known)}, ...): its own classes have numbers")
    return found if own and own <= known else None


def _numbered(names: Sequence[str], given: Sequence[str] | None, place: str) -> tuple[list[int], Sequence[str]]:
    classes = sorted(set(names)) if given is None else list(given)
    if unknown := sorted(set(names) - set(classes)):
        raise DataError(f"{place}: '{unknown[0]}' is none of the classes {', '.join(classes)}")
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers[name] for name in names], classes


def _open_list(paths: Sequence[Path], options: ReadOptions) -> ImageFiles:
    """Images named in text files."""
    _check_label(options)
    files: list[Path] = []
    labels: list[str] = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
            if not line.strip():
                continue
            words = _split(line.strip())
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
    numbers = [[int(one) for one in label.split() if _NUMBER.fullmatch(one)] for label in labels]
    if all(len(some) == len(label.split()) for some, label in zip(numbers, labels, strict=True)):
        if odd := next((one for one, some in enumerate(numbers) if len(some) != len(numbers[0])), 0):
            raise DataError(
                f"{paths[0]}: {files[odd]} has {len(numbers[odd])} labels and {files[0]} has {len(numbers[0])}"
            )
        return ImageFiles(files, numbers if len(numbers[0]) > 1 else [one for (one,) in numbers], (), options)
    if (given := options.classes_of("label")) is None:
        check_classes("'label'", labels, lambda sample: str(files[sample]))
    return ImageFiles(files, *_numbered(labels, given, str(paths[0])), options)


def _split(line: str) -> list[str]:
    """The name of an image, and its label if there is one."""
    if line.lower().endswith(ENDINGS):
        return [line]
    if (several := _WITH_NUMBERS.fullmatch(line)) is not None:
        return [several[1], several[2]]
    name, comma, label = (part.strip() for part in line.rpartition(","))
    return [name, label] if comma and name.lower().endswith(ENDINGS) else line.rsplit(maxsplit=1)


def _is_list(begin: bytes) -> bool:
    """Whether all lines at the beginning have the name of an image, and a label or nothing behind it."""
    lines = begin.removeprefix(codecs.BOM_UTF8).split(b"\n")
    whole = lines[:-1] if len(lines) > 1 else lines  # the last one may be cut off
    return all(map(_names_image, [line.strip().lower() for line in whole if line.strip()] or [b""]))


def _names_image(line: bytes) -> bool:
    name, *label = _split(line.decode("utf-8", "replace")) or [""]
    return name.endswith(ENDINGS) and len(name) < 512 and not any("," in one for one in (name, *label))


def _check_label(options: ReadOptions) -> None:
    if options.label not in (None, "label"):
        raise ConfigurationError(f"read: the label of images is the field 'label', got label='{options.label}'")


FILE_FORMATS = (
    FileFormat(
        "images", ENDINGS, _open_images, IMAGE_OPTIONS, recognizes=is_image, by_place=True, folders_name_classes=True
    ),
    FileFormat("image list", (), _open_list, IMAGE_OPTIONS, recognizes=_is_list),
)
