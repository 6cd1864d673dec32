"""LBANN's sample lists: text files that say which samples of which files a reader has.

    SINGLE-SAMPLE               a file has one sample          line 2: FILES
    MULTI-SAMPLE_INCLUSION      the named samples of a file    line 2: INCLUDED EXCLUDED FILES
    MULTI-SAMPLE_EXCLUSION      all but the named ones         the same
    CONDUIT_HDF5_INCLUSION      MULTI-SAMPLE_INCLUSION, for HDF5 files
    CONDUIT_HDF5_EXCLUSION      MULTI-SAMPLE_EXCLUSION, for HDF5 files

Line 1 has the kind, line 2 the counts over the whole list, line 3 the folder of the files. Each line after that is a
file, for all kinds but the first followed by the numbers of its included and excluded samples and the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import DataError, nearest
from descend.lbann.readers.locations import folders, located

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.data.description import Reader

__all__ = ["LISTS", "ListedSample", "listed_samples"]

SINGLE = "SINGLE-SAMPLE"
KINDS = (
    SINGLE,
    "MULTI-SAMPLE_INCLUSION",
    "MULTI-SAMPLE_EXCLUSION",
    "CONDUIT_HDF5_INCLUSION",
    "CONDUIT_HDF5_EXCLUSION",
)
LISTS = frozenset({"sample_list", "sample_list_keep_order"})  # the order of a list is kept in any case
HEADER_LINES = 3


@dataclass(frozen=True)
class ListedSample:
    """A sample of a list: its file, and its name in it, which is empty where the file has one sample."""

    path: Path
    name: str


@dataclass(frozen=True)
class _Entry:
    """A line of a list."""

    path: Path
    included: int
    excluded: int
    names: Sequence[str]
    place: str


def listed_samples(reader: Reader, names_in: Callable[[Path], Sequence[str]]) -> list[ListedSample]:
    """The samples of a reader's sample list, in the order of the list; of `max_files_to_load` files, if that is set.

    Args:
        reader: Has the list.
        names_in: The names of all samples in a file, asked where a list excludes some of them.

    Raises:
        DataError: the list is missing, damaged, or contradicts its counts or the files.
    """
    path = located(reader, "sample_list")
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    kind = lines[0][0] if lines and lines[0] else ""
    if kind not in KINDS:
        raise DataError(
            f"{path}:1: a sample list must begin with its kind ({', '.join(KINDS)}), got '{kind}'{nearest(kind, KINDS)}"
        )
    counts = _counts(path, lines, 1 if kind == SINGLE else 3)
    if len(lines) < HEADER_LINES or not lines[2]:
        raise DataError(f"{path}:3: the third line of a sample list must be the folder of its files")
    folder = _folder(reader, path, " ".join(lines[2]))
    entries = [
        _entry(kind, folder, words, f"{path}:{number}")
        for number, words in enumerate(lines[HEADER_LINES:], start=HEADER_LINES + 1)
        if words
    ]
    found = [len(entries)]
    if kind != SINGLE:
        found = [sum(one.included for one in entries), sum(one.excluded for one in entries), len(entries)]
    if found != counts:
        raise DataError(
            f"{path}:2: the counts of the list are {_words(counts)} and its lines make {_words(found)}; "
            "the list was cut off or edited: write it again"
        )
    return _samples(kind, entries[: reader.max_files_to_load or None], names_in)


def _words(counts: Sequence[int]) -> str:
    return " ".join(str(count) for count in counts)


def _counts(path: Path, lines: Sequence[Sequence[str]], wanted: int) -> list[int]:
    words = lines[1] if len(lines) > 1 else []
    if len(words) != wanted or not all(word.isdecimal() for word in words):
        meant = "the number of files" if wanted == 1 else "the numbers of included samples, excluded samples and files"
        raise DataError(f"{path}:2: the second line must be {meant}, got '{' '.join(words)}'")
    return [int(word) for word in words]


def _folder(reader: Reader, path: Path, name: str) -> Path:
    """The folder of a list: below the reader's folders, beside the list, or from the working directory."""
    for candidate in (*(folder / name for folder in folders(reader)), path.parent / name, Path(name)):
        if candidate.is_dir():
            return candidate
    raise DataError(f"{path}:3: there is no folder {name}; the third line must be the folder of the files")


def _entry(kind: str, folder: Path, words: Sequence[str], place: str) -> _Entry:
    file, *rest = words
    if kind == SINGLE:
        if rest:
            raise DataError(f"{place}: a line of a list '{SINGLE}' is the name of a file, got also '{' '.join(rest)}'")
        return _Entry(folder / file, 1, 0, ("",), place)
    if len(rest) < 2 or not all(word.isdecimal() for word in rest[:2]):
        raise DataError(f"{place}: a line must be FILE INCLUDED EXCLUDED NAME ..., got '{' '.join(words)}'")
    included, excluded, names = int(rest[0]), int(rest[1]), rest[2:]
    what, wanted = ("included", included) if kind.endswith("INCLUSION") else ("excluded", excluded)
    if len(set(names)) != len(names) or len(names) != wanted:
        raise DataError(f"{place}: the line must name {wanted} {what} samples, each once, and names {len(set(names))}")
    return _Entry(folder / file, included, excluded, names, place)


def _samples(kind: str, entries: Sequence[_Entry], names_in: Callable[[Path], Sequence[str]]) -> list[ListedSample]:
    found: list[ListedSample] = []
    for entry in entries:
        if not entry.path.is_file():
            raise DataError(f"{entry.place}: there is no file {entry.path}")
        names = entry.names
        if not kind.endswith(("INCLUSION", SINGLE)):
            there = names_in(entry.path)
            if missing := sorted(set(names) - set(there)):
                raise DataError(f"{entry.place}: {entry.path} has no sample '{missing[0]}'{nearest(missing[0], there)}")
            names = [name for name in there if name not in set(entry.names)]
            if len(names) != entry.included:
                raise DataError(
                    f"{entry.place}: {entry.path} has {len(names)} samples that are not excluded, and the line says "
                    f"{entry.included}"
                )
        found += [ListedSample(entry.path, name) for name in names]
    return found
