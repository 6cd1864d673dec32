"""Classes that are given in another form than integers: as text, of formats that know nothing of classes, such as .npy
and .npz files; and as numbers with a point, as pandas writes integers of which some are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from descend.data.reader_protocol import Field, WrappedSource
from descend.data.tables.cells import CellCounts, count_texts
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.files import FileReader
    from descend.data.reader_protocol import Array

__all__ = ["check_classes", "in_classes", "self_numbered", "with_class_numbers", "with_numbers"]

_READ_AT_ONCE = 8192
_LISTED = 200  # characters of classes in an error
_INTEGER = re.compile(r"[+-]?\d+")
_REMEDY = "leave such rows out, or allow skip_bad="


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
            raise ValueError(f"'{name}' is a class number, and is missing: {_REMEDY}")
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
    """The source, with integers in place of the text in fields that name classes; see `in_classes`.

    Raises:
        DataError: most texts of such a field are numbers, so that it may be none of classes.
    """
    by_format: frozenset[str] = getattr(source, "class_texts", frozenset())
    targets = [name for name in source.fields if options.is_class(name) or name in by_format]
    texts = [name for name in targets if source.fields[name].dtype.kind in "US"]
    lenient = {name: options.skip_bad > 0 or not options.is_class(name) for name in texts}
    classes = {name: options.classes_of(name) or _classes_in(source, name, lenient[name]) for name in texts}
    if isinstance(options.classes, Mapping) or not {*texts, *getattr(source, "classes", {})}:
        classes |= {name: of for name in targets if (of := options.classes_of(name)) is not None}
    return in_classes(source, classes, frozenset(name for name in texts if options.classes_of(name) is None))


def _classes_in(source: FileSource, name: str, lenient: bool) -> list[str]:
    """The different texts of a field, in the order of the alphabet.

    Raises:
        DataError: most are numbers; or not `lenient`, and a sample cannot be read.
    """
    classes, counts = set[str](), CellCounts()
    for first in range(0, len(source), _READ_AT_ONCE):
        rows = np.arange(first, min(first + _READ_AT_ONCE, len(source)))
        for some in (rows, *rows[:, None]):  # one by one where they cannot be read at once
            try:
                texts = _text(_field(source, name, some)).reshape(-1).tolist()
            except Exception as error:  # of any library, and of any kind: files may contain anything
                if len(some) == 1 and not lenient:
                    raise DataError(f"{source.place(int(some[0]))}: {error}") from error
                continue
            classes.update(texts)
            width = max(1, len(texts) // len(some))
            part = count_texts(texts).moved(lambda place, of=some, width=width: int(of[place // width]))
            counts = counts.joined(part)
            if some is rows:
                break
    _refuse_numbers(f"'{name}'", counts, source.place)
    return sorted(classes - {""})


def _field(source: FileSource, name: str, samples: NDArray[np.int64]) -> Array:
    some = getattr(source, "read_fields", None)
    return (source.read(samples) if some is None else some(samples, frozenset([name])))[name]


def in_classes(
    source: FileSource, classes: Mapping[str, Sequence[str]], self_numbered: frozenset[str] = frozenset()
) -> FileSource:
    """The source, with the places in `classes` as the numbers of classes: those of training, or of the caller.

    Texts become these numbers, and so do numbers that a format, or another data set, gave to texts. Integers and
    booleans of a table stand for texts that look like them; where no class does, they are numbers of classes. A text
    that is none of the classes, or is missing, is an error of its sample.

    Args:
        source: The samples.
        classes: By field; fields that the source does not have, and those of numbers with fractions, stay.
        self_numbered: Fields whose classes are those of this source alone.
    """
    names: Mapping[str, Sequence[str]] = getattr(source, "classes", {})
    changed = {
        name: list(of)
        for name, of in classes.items()
        if name in source.fields
        and source.fields[name].dtype.kind in "USiub"
        and (name not in names or list(names[name]) != list(of))
    }
    return _ClassesInOrder(source, changed, self_numbered) if changed else source


class _ClassesInOrder(WrappedSource):
    """The samples of a source; see `in_classes`."""

    def __init__(self, source: FileSource, classes: Mapping[str, Sequence[str]], self_numbered: frozenset[str]) -> None:
        super().__init__(source)
        self._before = {name: list(of) for name, of in self.classes.items()}
        self.classes = {**self.classes, **classes}
        self.self_numbered = (self.self_numbered - classes.keys()) | self_numbered
        self._numbers = {
            name: {text: number for number, text in enumerate(of)}
            for name, of in classes.items()
            if name in self._before or source.fields[name].dtype.kind in "US" or _stand_for(source.fields[name], of)
        }
        self.fields = {
            name: Field(one.shape, np.dtype(np.int64)) if name in self._numbers else one
            for name, one in self.fields.items()
        }

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return {name: self._numbered(name, values) for name, values in self._source.read(samples).items()}

    def read_fields(self, samples: NDArray[np.int64], names: frozenset[str]) -> dict[str, Array]:
        """Some fields of these samples."""
        some = getattr(self._source, "read_fields", None)
        rows = self._source.read(samples) if some is None else some(samples, names)
        return {name: self._numbered(name, values) for name, values in rows.items() if name in names}

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        values = super().column(name)
        return None if values is None else self._numbered(name, values)

    def _numbered(self, name: str, values: Array) -> Array:
        if name not in self._numbers:
            return values
        numbers, before = self._numbers[name], self._before.get(name)
        different, places = np.unique(_text(values), return_inverse=True)
        result = np.empty(len(different), np.int64)
        for place, value in enumerate(different.tolist()):
            if before is not None and not 0 <= value < len(before):
                result[place] = value  # such as -1, no class of a data set of Hugging Face
                continue
            text = str(value) if before is None else before[value]
            if isinstance(value, bool):
                text = next((name for name in numbers if name.casefold() == text.casefold()), text)
            if text not in numbers:
                what = f"'{text}' in '{name}' is none of its classes: {', '.join(numbers)[:_LISTED]}"
                raise ValueError(what if text else f"'{name}' names a class, and is missing: {_REMEDY}")
            result[place] = numbers[text]
        return result[places].reshape(values.shape)


def self_numbered(reader: FileReader) -> frozenset[str]:
    """Fields of a reader whose classes are numbered by the texts of its samples alone."""
    of_source: frozenset[str] = getattr(reader.source, "self_numbered", frozenset())
    return frozenset(name for name, old in reader.names.items() if old in of_source)


def _stand_for(field: Field, classes: Sequence[str]) -> bool:
    """Whether values of a field of integers or booleans are texts of classes, and not the numbers of classes."""
    forms = ("true", "false") if field.dtype.kind == "b" else ()
    return any(text.casefold() in forms if forms else _INTEGER.fullmatch(text) for text in classes)


def _text(values: Array) -> Array:
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
