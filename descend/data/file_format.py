"""What a file format provides to `descend.data.read`: how its files are recognized, and how they are opened.

A format is one file in `descend/data/formats/` with a tuple `FILE_FORMATS`; nothing else names it. A program can add
one of its own with `register`.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from descend.arguments import check_bool, check_choice, check_integer, check_string, collect, shown
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.images.pictures import ImageKind
    from descend.data.reader_protocol import Array, Field

__all__ = [
    "IMAGE_OPTIONS",
    "FileFormat",
    "FileSource",
    "ReadOptions",
    "added_formats",
    "check_used",
    "file_formats",
    "option_names",
    "parsed_options",
    "register",
]

_LONGEST_SIDE = 65_536  # of an image
_COMMON = ("role", "target", "label", "classes", "format", "skip_bad", "cache", "cache_bytes", "kinds_beside")
_NOT_GIVEN = ("role", "target", "kinds_beside")  # by words of a caller
IMAGE_OPTIONS = frozenset({"image_size", "colors", "depth"})


@dataclass(frozen=True)
class ReadOptions:
    """What a caller of `read` may set; each format uses some. Unset fields are None and leave the choice to the format.

    Args:
        role: "train", "validate", "test" or "tournament"; some data sets have files for each.
        target: Names of the fields that a model predicts.
        label: Name of the field that holds a class, a target as well; classes given as text become integers.
        classes: The classes in the order of their numbers, where those in the files must not determine it: a list, or
            one for each field.
        format: Name of the format, where the content of the files does not tell it.
        separator: Between the cells of a row, one character, where a blank stands for runs of blanks and tabs; or
            between the documents of a text.
        header: Whether the first row has the names of the columns.
        encoding: Of a table of text, as Python calls it: "latin-1", "utf-16"; None for UTF-8.
        comment: What lines of a table of text begin with that are no rows, such as "#".
        quote: The character around cells of a table of text that have separators in them; None for ", "" for none.
        escape: The character before a quote, a separator or a newline that is text, in a table of text: "\\" where
            Spark or MySQL has written it.
        missing: Cells of a table of text that stand for missing values, besides the usual ones.
        text: Columns of a table that are text, whatever is in them: 00123 stays 00123, and targets among them are
            classes.
        columns: Columns to read; a mapping joins several columns of numbers into a field: {"x": ["a", "b"]}.
        key: Name of an array, or of a group of arrays, within a file; or several names.
        length: Entries to which ragged fields are padded or cut.
        mask_and_scale: Use the attributes of netCDF's conventions in HDF5 files: `_FillValue`, `scale_factor` and so
            on; False reads the numbers as they are stored.
        image_size: Height and width to which images are scaled; one number for both.
        colors: "grey", "rgb" or "rgba": what all images are converted to, though they lose colours or transparency by
            it; None for RGB, or grey where all are, and an error where something would be lost.
        depth: Bits of a channel of images, 8 or 16, likewise; None for 8, or 16 where an image has 16.
        tokenizer: Makes tokens of text, packed to samples of `length`: "bytes", the path of a JSON file of the
            `tokenizers` library, or such a tokenizer.
        skip_bad: So many rows of a text that cannot be parsed become samples that cannot be read; one more is an error,
            as is the first one where this is 0.
        cache: Keep samples on disk as they are after decoding, in this folder, or where True in
            `$XDG_CACHE_HOME/descend/samples`; see `descend.data.sample_cache`.
        cache_bytes: That the folder takes at most; caches that were not used for longest are removed for it.
        kinds_beside: What images the files of other roles have, by field: all roles of a data set have one form. Not
            set by a caller of `read`.
    """

    role: str = "train"
    target: tuple[str, ...] = ()
    label: str | None = None
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    separator: str | None = None
    header: bool | None = None
    encoding: str | None = None
    comment: str | None = None
    quote: str | None = None
    escape: str | None = None
    missing: Sequence[str] | None = None
    text: Sequence[str] | None = None
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    key: str | Sequence[str] | None = None
    length: int | None = None
    mask_and_scale: bool = True
    image_size: int | Sequence[int] | None = None
    colors: str | None = None
    depth: int | None = None
    tokenizer: Any = None
    format: str | None = None
    skip_bad: int = 0
    cache: bool | str | os.PathLike[str] = False
    cache_bytes: int = 2**34
    kinds_beside: tuple[tuple[str, ImageKind], ...] = ()

    def is_class(self, name: str) -> bool:
        """Whether the text in this field names classes."""
        return name == self.label or name in self.target

    def classes_of(self, name: str) -> list[str] | None:
        """The classes that were given for a field, in the order of their numbers."""
        if self.classes is None:
            return None
        if isinstance(self.classes, Mapping):
            return list(self.classes[name]) if name in self.classes else None
        return list(self.classes)

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """`image_size` as two numbers."""
        if self.image_size is None:
            return None
        height, width = (self.image_size,) * 2 if isinstance(self.image_size, int) else self.image_size
        return height, width


class FileSource(Protocol):
    """The samples of some files of one format, in the order of the files. Must be picklable before the first read.

    A source that has the values of a field without reading the other fields may have a method `column(name)`, which
    returns them for all samples, (n, *shape), or None. One that has some fields at less cost than all may have a method
    `read_fields(samples, names)`, which gives these as `read` does.

    `read` may raise any exception; the caller finds the sample that is responsible and names it.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of each sample, by name."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers, in any order: for each field an array (n, *shape)."""
        ...

    def place(self, sample: int) -> str:
        """Where a sample comes from: the path of its file and its place in it."""
        ...


@dataclass(frozen=True)
class FileFormat:
    """A kind of files.

    Args:
        name: Of the format, in messages.
        endings: Of file names, in lower case, such as ".csv".
        open: Makes a source of files, reading no more than is needed for the fields and the number of samples.
        uses: The options that it reads, besides those of every format: `role`, `target` and `label`.
        recognizes: Whether a file begins like one of this format; gets up to 1,024 bytes, decompressed if they were
            compressed. None if the content does not show it.
        folders_name_classes: Whether files are samples, and the folders in which they are name their classes.
        by_place: Whether contents are read by their place in the file, so that none may be compressed as a whole.
    """

    name: str
    endings: tuple[str, ...]
    open: Callable[[Sequence[Path], ReadOptions], FileSource]
    uses: frozenset[str] = frozenset()
    recognizes: Callable[[bytes], bool] | None = None
    by_place: bool = False
    folders_name_classes: bool = False

    def check(self, options: ReadOptions) -> None:
        """Check that every option that is set is used.

        Raises:
            ConfigurationError: one is not.
        """
        check_used(f"the format '{self.name}'", self.uses, options)


def check_used(what: str, uses: Set[str], options: ReadOptions) -> None:
    """Check that every option that is set is used by what is read.

    Raises:
        ConfigurationError: one is not.
    """
    for field in fields(options):
        if field.name in uses or field.name in _COMMON:
            continue
        if (value := getattr(options, field.name)) != field.default:
            raise ConfigurationError(
                f"read: {field.name}={shown(value)} is set and {what} does not use it; remove it "
                f"(its options: {', '.join(sorted(uses)) or 'none'})"
            )


@cache
def _shipped() -> list[FileFormat]:
    package = importlib.import_module("descend.data.formats")
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    return [one for module in modules for one in getattr(module, "FILE_FORMATS", ())]


_ADDED: list[FileFormat] = []


def added_formats() -> list[FileFormat]:
    """Those that a program added."""
    return list(_ADDED)


def file_formats() -> list[FileFormat]:
    """All formats, those that a program added first."""
    return [*_ADDED, *_shipped()]


def register(added: FileFormat) -> FileFormat:
    """Add a format.

    Raises:
        ConfigurationError: there is one of this name.
    """
    if any(added.name == one.name for one in file_formats()):
        raise ConfigurationError(f"there is a file format '{added.name}' already; choose another name")
    _ADDED.append(added)
    return added


def option_names() -> list[str]:
    """The options that a caller of `read` may set besides `role` and `target`."""
    return [field.name for field in fields(ReadOptions) if field.name not in _NOT_GIVEN]


def options_of(role: str, target: Any, given: Mapping[str, Any]) -> ReadOptions:
    """The options of a call of `read`, checked as far as no format is needed.

    Raises:
        ConfigurationError: an option does not exist or has a wrong value.
    """
    names = option_names()
    problems = [
        f"read: there is no option '{name}'{nearest(name, names)}; the options are {', '.join(names)}"
        for name in given
        if name not in names
    ]
    if problems:
        raise ConfigurationError(problems)
    chosen = given.get("label") if target is None else target
    several = isinstance(chosen, Iterable) and not isinstance(chosen, str)
    targets: tuple[Any, ...] = () if chosen is None else tuple(cast("Iterable[Any]", chosen)) if several else (chosen,)
    if given.get("colors") == "gray":
        given = {**given, "colors": "grey"}
    options = ReadOptions(role=role, target=targets, **given)
    if problems := _wrong_values(options):
        raise ConfigurationError([f"read: {problem}" for problem in problems])
    return options


def _are_texts(some: Any) -> bool:
    return isinstance(some, Iterable) and all(isinstance(one, str) for one in cast("Iterable[Any]", some))


def _wrong_values(options: ReadOptions) -> list[str]:
    value: Mapping[str, Any] = {field.name: getattr(options, field.name) for field in fields(options)}
    found = collect(
        check_string("label", value["label"], also=(None,)),
        check_string("encoding", value["encoding"], also=(None,)),
        check_choice("format", value["format"], [one.name for one in file_formats()], also=(None,)),
        check_bool("header", value["header"], also=(None,)),
        check_bool("mask_and_scale", value["mask_and_scale"]),
        check_integer("length", value["length"], 1, also=(None,)),
        check_choice("colors", value["colors"], ["grey", "rgb", "rgba"], also=(None,)),
        check_integer("skip_bad", value["skip_bad"], 0),
        check_integer("cache_bytes", value["cache_bytes"], 1),
    )
    if not isinstance(value["cache"], (bool, str, os.PathLike)) or value["cache"] == "":
        found.append(f"cache must be a folder, True or False, got {shown(value['cache'])}")
    names: tuple[Any, ...] = value["target"]
    is_label = value["label"] is not None and names == (value["label"],)
    if not is_label and (wrong := [name for name in names if not isinstance(name, str)]):
        found.append(f"target must be the name of a field or a list of names, got {shown(wrong[0])}")
    separator, size = value["separator"], value["image_size"]
    if separator is not None and (not isinstance(separator, str) or not separator):
        found.append(f"separator must be a character, or several in a text, got {shown(separator)}")
    if value["comment"] is not None and (not isinstance(value["comment"], str) or not value["comment"]):
        found.append(f"comment must be what lines begin with, such as '#', got {shown(value['comment'])}")
    quote = value["quote"]
    if quote is not None and (not isinstance(quote, str) or len(quote) > 1 or not quote.isascii()):
        found.append(f"quote must be one character of ASCII, or '' for none, got {shown(quote)}")
    escape = value["escape"]
    if escape is not None and (not isinstance(escape, str) or len(escape) != 1 or not escape.isascii()):
        found.append(f"escape must be one character of ASCII, such as '\\\\', got {shown(escape)}")
    elif escape is not None and (escape.isalnum() or escape in f",;|\t\r\n {separator or ''}"):
        found.append(f"escape must be no letter, digit, blank or separator, got {shown(escape)}: pass such as '\\\\'")
    for name in ("missing", "text"):
        some = value[name]
        if some is not None and (isinstance(some, str) or not _are_texts(some)):
            found.append(f"{name} must be a list of texts, got {shown(some)}")
    classes = value["classes"]
    for of in classes.values() if isinstance(classes, Mapping) else [classes]:
        if of is not None and (isinstance(of, str) or not _are_texts(of) or len({*of}) < len([*of])):
            found.append(f"classes must be different texts in a list, got {shown(of)}")
    pair = list(cast("Sequence[Any]", size)) if isinstance(size, (tuple, list)) else [size, size]
    if size is not None and (len(pair) != 2 or any(check_integer("", n, 1, _LONGEST_SIDE) for n in pair)):
        found.append(
            f"image_size must be one or two integers from 1 to {_LONGEST_SIDE:,} (height, width), got {size!r}"
        )
    if value["depth"] not in (None, 8, 16):
        found.append(f"depth must be 8 or 16, the bits of a channel, got {shown(value['depth'])}")
    if isinstance(value["columns"], str):
        found.append(f"columns must be a list of names or a mapping, got {shown(value['columns'])}")
    return found


# ---- options of `read` as words of a command line: label=kind, length=128, columns=a,b, header=false

_LISTS = ("fields", "columns", "classes", "key", "target", "missing", "text")
_TEXTS = ("separator", "tokenizer", "label", "format", "role", "quote", "escape", "comment", "encoding", "colors")
_ESCAPES = {"\\t": "\t", "\\n": "\n"}


def parsed_options(words: Iterable[str]) -> dict[str, Any]:
    """The options that some words say: lists are separated by commas, or any value is JSON.

    Raises:
        ConfigurationError: a word is not NAME=VALUE, an option does not exist, or one comes twice.
    """
    known = ["fields", "role", "target", *option_names()]
    found: dict[str, Any] = {}
    for word in words:
        name, equal, text = word.partition("=")
        if not equal or not (text or name == "quote"):
            raise ConfigurationError(f"an option of the data must be NAME=VALUE, got {shown(word)}")
        if name not in known:
            raise ConfigurationError(
                f"the data have no option {shown(name)}{nearest(name, known)}; the options are {', '.join(known)}"
            )
        if name in found:
            raise ConfigurationError(f"the option '{name}' of the data is given twice")
        found[name] = _value(name, text)
    return found


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        for written, meant in _ESCAPES.items():
            text = text.replace(written, meant)
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text.split(",") if name in _LISTS else text
    return [text] if name in ("missing", "text") and not isinstance(value, list) else value
