"""Classes that are given in another form than integers: as text, of formats that know nothing of classes, such as .npy
and .npz files; and as numbers with a point, as pandas writes integers of which some are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.data.reader_protocol import Field
from descend.data.table_cells import CellCounts, count_texts
from descend.data.wrapped_source import WrappedSource
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["check_classes", "with_class_numbers", "with_numbers"]

_READ_AT_ONCE = 8192


def with_class_numbers(source: FileSource, names: Collection[str]) -> FileSource:
    """The source, with integers in place of floating-point numbers in fields that hold a class number for each sample.

    One that is missing, or has a fraction, is an error of its sample.
    """
    found = [name for name in names if (one := source.fields.get(name)) and one.shape == () and one.dtype.kind == "f"]
    return _ClassNumbers(source, found) if found else source


class _ClassNumbers(WrappedSource):
    """The samples of a source; see `FileSource`.

    Args:
        source: The samples.
        names: Fields that hold class numbers.
    """

    def __init__(self, source: FileSource, names: Collection[str]) -> None:
        super().__init__(source)
        self._names = frozenset(names)
        self.fields = {
            name: Field((), np.dtype(np.int64)) if name in self._names else one for name, one in self.fields.items()
        }

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return {name: self._whole(name, values) for name, values in self._source.read(samples).items()}

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        values = super().column(name)
        return None if values is None else self._whole(name, values)

    def _whole(self, name: str, values: Array) -> Array:
        if name not in self._names:
            return values
        if np.isnan(values).any():
            raise ValueError(f"'{name}' is a class number, and is missing: leave such rows out, or allow skip_bad=")
        whole = values.astype(np.int64)
        if (wrong := values[whole != values]).size:
            raise ValueError(f"'{name}' is a class number, and {wrong[0]} is no integer")
        return whole


def check_classes(what: str, texts: Sequence[str], place: Callable[[int], str] | None = None) -> None:
    """Refuse texts that are to become classes where most of them are numbers.

    Args:
        what: The name of the field, or of the file and the field.
        texts: Of all samples.
        place: The file and the place of a sample, by its number, for the error.

    Raises:
        DataError: they are.
    """
    _refuse_numbers(what, count_texts(texts), place)


def _refuse_numbers(what: str, counts: CellCounts, place: Callable[[int], str] | None) -> None:
    if (problem := counts.of_target()) is not None:
        begin = "" if place is None or problem[0] is None else f"{place(problem[0])}, "
        raise DataError(
            f"{begin}{what}: {problem[1]}: save numbers as numbers, or say classes=[...] if they are texts, each of "
            "them a class"
        )


def with_numbers(source: FileSource, options: ReadOptions) -> FileSource:
    """The source, with integers in place of the text in fields that name classes.

    Raises:
        DataError: most texts of such a field are numbers, so that it may be none of classes.
    """
    texts = [name for name, one in source.fields.items() if one.dtype.kind in "US" and options.is_class(name)]
    return _NumberedTexts(source, texts, options) if texts else source


class _NumberedTexts(WrappedSource):
    """The samples of a source; see `FileSource`.

    Args:
        source: The samples.
        names: Fields of text that are classes.
        options: May have the classes in the order of their numbers; else it is that of the alphabet.
    """

    def __init__(self, source: FileSource, names: list[str], options: ReadOptions) -> None:
        super().__init__(source)
        found: dict[str, set[str]] = {name: set() for name in names if options.classes_of(name) is None}
        counts = dict.fromkeys(found, CellCounts())
        for first in range(0, len(source) if found else 0, _READ_AT_ONCE):
            rows = source.read(np.arange(first, min(first + _READ_AT_ONCE, len(source))))
            for name, texts in found.items():
                flat = _text(rows[name]).reshape(-1).tolist()
                texts.update(flat)
                width = max(1, len(flat) // len(rows[name]))
                part = count_texts(flat).moved(lambda place, first=first, width=width: first + place // width)
                counts[name] = counts[name].joined(part)
        for name, of in counts.items():
            _refuse_numbers(f"'{name}'", of, source.place)
        own = {name: sorted(found[name]) if name in found else options.classes_of(name) or [] for name in names}
        self.classes = {**self.classes, **own}
        self._numbers = {name: {text: number for number, text in enumerate(of)} for name, of in own.items()}
        self.fields = {
            name: Field(one.shape, np.dtype(np.int64)) if name in own else one for name, one in self.fields.items()
        }

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return {name: self._numbered(name, values) for name, values in self._source.read(samples).items()}

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        values = super().column(name)
        return None if values is None else self._numbered(name, values)

    def _numbered(self, name: str, values: Array) -> Array:
        if name not in self._numbers:
            return values
        numbers = self._numbers[name]
        flat = _text(values).reshape(-1).tolist()
        if unknown := [text for text in flat if text not in numbers]:
            raise ValueError(f"'{unknown[0]}' in '{name}' is none of its classes: {', '.join(numbers)}")
        return np.array([numbers[text] for text in flat], dtype=np.int64).reshape(values.shape)


def _text(values: Array) -> Array:
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
