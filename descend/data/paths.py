"""Resolves what a user calls a data set - a file, a folder, a pattern, a list of these - to files.

In folders, links are followed as if what they lead to lay there, but for those to a folder that they lie in. A link
that leads nowhere is an error. Names that begin with a dot and those of `NO_DATA` are skipped, and counted.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.errors import ConfigurationError, DataError
from descend.terminal.display import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "HEAD_BYTES",
    "SourceFiles",
    "arrays_of_role",
    "check_mapped",
    "files_of",
    "head",
    "is_path",
    "of_role",
    "role_of",
    "skipped_line",
    "training_beside",
    "why_no_data",
]

HEAD_BYTES = 1024
_PATTERN = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
NO_DATA = {  # names that programs put beside data, and what they are
    "_SUCCESS": "Spark's and Hadoop's mark of a job that has ended",
    "_temporary": "files of a job of Spark or Hadoop that has not ended",
    "_metadata": "footers of all Parquet files",
    "_common_metadata": "the schema of all Parquet files",
    "_delta_log": "the log of Delta Lake",
    "_delta_index": "an index of Delta Lake",
    "_change_data": "the changes of Delta Lake",
    "_symlink_format_manifest": "lists of files of Delta Lake",
    "_spark_metadata": "the log of Spark's streams",
    "__MACOSX": "what macOS adds to archives",
    "__pycache__": "compiled modules of Python",
    "dataset_info.json": "a description of Hugging Face",
    "dataset_dict.json": "a description of Hugging Face",
    "state.json": "a description of Hugging Face",
    "Thumbs.db": "small images of Windows",
    "ehthumbs.db": "small images of Windows",
    "desktop.ini": "settings of a folder of Windows",
    "Icon\r": "the icon of a folder of macOS",
    "$RECYCLE.BIN": "deleted files of Windows",
    "System Volume Information": "files of Windows",
    "lost+found": "what a check of the file system found",
    "@eaDir": "small images of Synology",
}
_NO_DATA_BEGINNINGS = {"_started_": "Databricks' mark of a job", "_committed_": "Databricks' mark of a job"}
_ANY_TWICE = ("**", "**")
_CIRCLE = "link to a folder that it is in"
_LISTED = 3  # names of a kind in a line about skipped ones
_LISTED_LINKS = 5  # in an error
_NAME, _LINE = 100, 200  # characters of such a name, and of the place
_MOST_TIMES = 1024  # that a folder may be entered by links: links to folders of links multiply
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_YEAR = re.compile(r"(?:19|20)\d\d")
MAX_NAMES = 2**20  # that a pattern with braces may expand to
ROLE_WORDS = {
    "train": ("train", "training"),
    "validate": ("validate", "validation", "valid", "val"),
    "test": ("test", "testing", "t10k"),
    "tournament": ("tournament",),
}


def is_path(source: object) -> bool:
    """Whether something names files: a text, a path, or a list or tuple of these."""
    if isinstance(source, (list, tuple)):
        parts = cast("list[Any]", source)
        return len(parts) > 0 and all(isinstance(part, (str, os.PathLike)) for part in parts)
    return isinstance(source, (str, os.PathLike))


def files_of(source: Any, role: str = "train") -> list[Path]:
    """The files of a source, each once: those of a list in its order, those of a folder or a pattern in order of names.

    Braces expand to several names, in their order, all of which must be there: "shard-{000..127}.tar", "{a,b}.csv".
    Of a folder with files for several roles those of `role` are taken, see `of_role`.

    Raises:
        ConfigurationError: the source does not name files.
        DataError: there is no such file, or none at all; a link leads nowhere; a folder cannot be read.
    """
    return SourceFiles.found(source).of(role)


@dataclass
class SourceFiles:
    """The files of a source in all roles, and what is skipped of its folders.

    Attributes:
        parts: For each name of the source, the files, and the folder that they are in; None of a file or a pattern.
        linked: Files that are in a folder that a link leads to.
        skipped: Paths that are no data, by the kind of reason.
    """

    parts: list[tuple[Path | None, list[Path]]] = field(default_factory=list[tuple[Path | None, list[Path]]])
    linked: set[Path] = field(default_factory=set[Path])
    skipped: dict[str, list[Path]] = field(default_factory=dict[str, list[Path]])

    @classmethod
    def found(cls, source: Any) -> SourceFiles:
        """The files of a source; see `files_of`."""
        if not is_path(source):
            raise ConfigurationError(
                f"the source must be a path, a folder, a pattern such as 'data/*.csv' or a list of these, got "
                f"{shown(cast('object', source))}"
            )
        made = cls()
        given: Iterable[Any] = source if isinstance(source, (list, tuple)) else (source,)
        for one in given:
            for name in _without_braces(os.fspath(one)):
                made._add(name)
        return made

    def of(self, role: str) -> list[Path]:
        """The files of a role, each once.

        Raises:
            DataError: names tell roles and none tells this one.
        """
        found: dict[Path, None] = {}
        for folder, files in self.parts:
            found.update(dict.fromkeys(files if folder is None else of_role(folder, files, role)))
        return list(found)

    def beside_roles(self) -> list[Path]:
        """Files of folders that are of no role, though others are."""
        return [one for folder, files in self.parts if folder for one in (_by_role(folder, files) or {}).get("", [])]

    def __len__(self) -> int:
        return sum(len(files) for _, files in self.parts)

    def skip(self, kind: str, path: Path) -> None:
        """Note a path that is no data."""
        self.skipped.setdefault(kind, []).append(path)

    def _add(self, text: str) -> None:
        if not text:
            raise ConfigurationError("the source must be a path, got ''; '.' is the folder that is worked in")
        path = Path(text)
        try:
            if path.is_dir():
                self.parts.append((path, self._inside(path)))
                return
            if path.exists():
                if not path.is_file():
                    raise DataError(f"{path} is neither a file nor a folder")
                self.parts.append((None, [path]))
                return
            _check_links([path] if path.is_symlink() else [])
        except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
            raise DataError(f"{shown(text)} cannot be opened: {error}") from error
        if _PATTERN & set(text):
            self.parts.append((None, self._matching(text)))
        elif _ADDRESS.match(text):
            raise DataError(
                f"{text} is an address, and files of this machine are read: fetch it, and pass the file's path"
            )
        else:
            raise DataError(f"there is no file or folder {path.absolute()}")

    def _matching(self, pattern: str) -> list[Path]:
        """The files that match a pattern."""
        if "**" in pattern.split("/"):
            matches = sorted(self._matching_anywhere(pattern), key=str)
        else:
            matches = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207  # a Path drops a final / and leading ./
            _check_links([path for path in matches if path.is_symlink() and not path.exists()])
            for path in (path for path in matches if not path.is_file()):
                self.skip("folder beside files that match" if path.is_dir() else "no regular file", path)
        files = [path for path in matches if path.is_file()]
        if not files:
            raise DataError(f"no file matches the pattern {pattern}")
        return files

    def _matching_anywhere(self, pattern: str) -> list[Path]:
        """The files of a pattern with ** for any folders; `glob` goes through links in a circle time and again."""
        split = pattern.split("/")
        parts = [name for name, before in zip(split, ["", *split], strict=False) if (before, name) != _ANY_TWICE]
        plain = next(place for place, part in enumerate(parts) if _PATTERN & set(part))
        root = Path("/".join(parts[:plain]) or ("/" if plain else ""))
        if not root.is_dir():
            return []
        found: list[Path] = []
        dangling: list[Path] = []
        for path, kind, _ in _walk(root, lambda _: None):
            if _fits(path.relative_to(root).parts, parts[plain:]):
                found += [path] if kind == "file" else []
                dangling += [path] if kind == "dangling" else []
            if kind == _CIRCLE:
                self.skip(kind, path)
        _check_links(sorted(dangling))
        return found

    def _inside(self, root: Path) -> list[Path]:
        """The files in a folder, in order of their names.

        Raises:
            DataError: there are none; a link leads nowhere; a folder cannot be read.
        """
        files: list[Path] = []
        dangling: list[Path] = []
        for path, kind, is_linked in _walk(root, _kind_of_name):
            if kind == "file":
                files.append(path)
                if is_linked:
                    self.linked.add(path)
            elif kind == "dangling":
                dangling.append(path)
            else:
                self.skip(kind, path)
        _check_links(sorted(dangling))
        if not files:
            raise DataError(f"the folder {root} has no files" + (f": {line}" if (line := self.line(root)) else ""))
        return sorted(files)

    def line(self, place: object, more: Mapping[str, Iterable[Path]] | None = None) -> str:
        """One line on what is skipped of a source; empty where nothing is.

        Args:
            place: The name of the source.
            more: Files that are skipped besides, by the kind of reason.
        """
        kinds = {**self.skipped, **{kind: list(paths) for kind, paths in (more or {}).items()}}
        names = {kind: (sorted(path.name for path in paths), len(paths)) for kind, paths in kinds.items()}
        return skipped_line(names, len(self) + sum(map(len, self.skipped.values())), f"files in {place}")


def skipped_line(kinds: Mapping[str, tuple[Sequence[str], int]], total: int, what: str) -> str:
    """One line such as "skipped 3 of 1,203 files in images: 2 hidden (.a, .b), 1 marker (_SUCCESS: ...)".

    Args:
        kinds: Names that are skipped, and how many are, by the kind of reason.
        total: Of all names, with these.
        what: What they are and where, such as "files in images".

    Returns:
        An empty text where nothing is skipped.
    """
    count = sum(of_kind for _, of_kind in kinds.values())
    if not count:
        return ""
    parts = [f"{of_kind:,} {kind} ({_some_names(names)})" for kind, (names, of_kind) in kinds.items() if of_kind]
    return f"skipped {count:,} of {max(total, count):,} {printable(shortened(what, _LINE))}: {', '.join(parts)}"


def _some_names(names: Sequence[str]) -> str:
    """The first of some names, with what they are where that is known."""
    some = list(dict.fromkeys(names))
    whys = [(name, why_no_data(name)) for name in some[:_LISTED]]
    parts = [printable(shortened(name, _NAME)) + (f": {why}" if why else "") for name, why in whys]
    return ", ".join(parts) + (", ..." if len(some) > _LISTED else "")


def why_no_data(name: str) -> str | None:
    """The purpose of a file or a folder of this name, if it is one that a program puts beside data."""
    if (known := NO_DATA.get(name)) is not None:
        return known
    return next((why for begin, why in _NO_DATA_BEGINNINGS.items() if name.startswith(begin)), None)


_Identity = tuple[int, int]  # of a folder: its device and its number there, whatever path leads to it


def _identity(folder: Path) -> _Identity:
    state = folder.stat()
    return state.st_dev, state.st_ino


def _folders_above(folder: Path) -> frozenset[_Identity]:
    """A folder and those that it is in, where it really is."""
    real = folder.resolve()
    return frozenset(map(_identity, (real, *real.parents)))


def _kind_of_name(name: str) -> str | None:
    """Why a file or a folder of this name is skipped; None if it is not."""
    return "hidden" if name[0] == "." else "marker" if why_no_data(name) else None


def _walk(root: Path, why_skipped: Callable[[str], str | None]) -> Iterator[tuple[Path, str, bool]]:
    """The content of a folder and of those below it.

    Yields:
        A path; "file", "dangling" of a link that leads nowhere, or why it is skipped; whether it is in a linked folder.

    Raises:
        DataError: a folder cannot be read, or links multiply.
    """
    entered: Counter[_Identity] = Counter()
    open_folders = [(root, _folders_above(root), False)]
    while open_folders:
        folder, above, is_linked = open_folders.pop()
        for entry in _entries(folder):
            path = folder / entry.name
            if (kind := why_skipped(entry.name)) is not None:
                yield path, kind, is_linked
            elif entry.is_symlink() and not path.exists():
                yield path, "dangling", is_linked
            elif entry.is_file():
                yield path, "file", is_linked
            elif not entry.is_dir():
                yield path, "no regular file", is_linked
            elif (own := _identity(path)) in above:
                yield path, _CIRCLE, is_linked
            else:
                entered[own] += 1
                if entered[own] > _MOST_TIMES:
                    raise DataError(f"links lead to the folder {path} more than {_MOST_TIMES:,} times: remove some")
                around = _folders_above(path) if entry.is_symlink() else frozenset((own,))
                open_folders.append((path, above | around, is_linked or entry.is_symlink()))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read: {error.strerror or error}") from error


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern whose parts may be **, any number of folders; hidden names need a dot there."""
    states = {0}
    for name in names:
        states |= {state + 1 for state in states if pattern[state : state + 1] == ["**"]}
        stay = {state for state in states if pattern[state : state + 1] == ["**"] and name[0] != "."}
        step = {
            state + 1
            for state in states
            if state < len(pattern) and pattern[state] != "**" and fnmatch.fnmatchcase(name, pattern[state])
            if name[0] != "." or pattern[state][0] == "."
        }
        states = stay | step
    return bool(states & {len(pattern), *([len(pattern) - 1] if pattern[-1] == "**" else [])})


def _check_links(dangling: list[Path]) -> None:
    if dangling:
        more = len(dangling) - _LISTED_LINKS
        raise DataError(
            [
                f"{path} is a link to {shown(str(path.readlink()))}, which is not there: mount or fetch what it leads "
                "to, or remove the link"
                for path in dangling[:_LISTED_LINKS]
            ]
            + ([f"and {more:,} links more lead nowhere"] if more > 0 else [])
        )


def _without_braces(text: str) -> list[str]:
    """The names that a pattern with braces expands to, as in a shell; a file of exactly this name goes first."""
    names = [text]
    while (found := _BRACES.search(names[0])) is not None and not Path(text).exists():
        inside = found[1]
        if (ends := _RANGE.fullmatch(inside)) is not None:
            first, last = int(ends[1]), int(ends[2])
            width = max(map(len, ends.groups())) if any(end[0] == "0" and len(end) > 1 for end in ends.groups()) else 0
            count = abs(last - first) + 1
            numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
            parts = (f"{number:0{width}}" for number in numbers)
        else:
            count, parts = inside.count(",") + 1, iter(inside.split(","))
        if count * len(names) > MAX_NAMES:
            raise ConfigurationError(f"the braces of {shown(text)} expand to more than {MAX_NAMES:,} names")
        of_brace = list(parts)
        names = [_BRACES.sub(lambda _, part=part: part, name, count=1) for name in names for part in of_brace]
    return names


def check_mapped(path: Path, size: int) -> None:
    """Check that a mapped file still has its bytes: reading behind its end would end the process by a signal.

    Raises:
        ValueError: it is shorter.
    """
    if (now := path.stat().st_size) < size:
        raise ValueError(f"the file was cut to {now:,} bytes while it was read, and had {size:,} when it was opened")


def head(path: Path) -> bytes:
    """The first bytes of a file, decompressed if they are compressed.

    Raises:
        DataError: the file cannot be read.
    """
    from descend.data.expansion import begin_of  # data in memory need none of it

    try:
        return begin_of(path, HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def of_role(folder: Path, files: list[Path], role: str) -> list[Path]:
    """The files of a folder that belong to a role, where the names in the folder tell roles; else all of them.

    They do if all its sub-folders are called train, validate (or val), test or tournament, or train2017 and so on; or
    if there are no sub-folders and files of at least two roles begin with such a word, as in test.csv and train-00.csv.
    Files without such a word, beside others with one, are for training. A single sub-folder with another name, as many
    archives have around their content, is looked into.

    Raises:
        DataError: names tell roles and none tells this one.
    """
    roles = _by_role(folder, files)
    if roles is None:
        return files
    found = sorted(name for name in roles if name)
    if role not in found:
        raise DataError(f"{folder} has files for {', '.join(found)} and none for '{role}'; read them with role=")
    return roles[role]


def _by_role(folder: Path, files: list[Path]) -> dict[str, list[Path]] | None:
    """The files of each role, and of none under an empty name; None where names tell no roles."""
    tops = {path: list(path.relative_to(folder).parts) for path in files}
    while len(first := {tuple(parts[:1]) if len(parts) > 1 else () for parts in tops.values()}) == 1:
        if not (around := first.pop()) or role_of(around[0], whole=True):
            break
        tops = {path: parts[1:] for path, parts in tops.items()}
    folders = {parts[0] for parts in tops.values() if len(parts) > 1}
    if folders and not all(role_of(name, whole=True) for name in folders):
        return None
    whole = bool(folders)
    roles: dict[str, list[Path]] = {}
    for path, parts in tops.items():
        of_one = role_of(parts[0], whole) or "train"
        roles.setdefault(of_one if len(parts) > 1 or not whole else "", []).append(path)
    return roles if whole or len(roles) > 1 else None


def role_of(name: str, whole: bool) -> str | None:
    """The role that a name tells: the whole name, or its beginning; None if it tells none."""
    name = name.lower()
    for role, words in ROLE_WORDS.items():
        for word in words:
            if name == word or (whole and name.startswith(word) and _YEAR.fullmatch(name, len(word))):
                return role
            if not whole and name.startswith(word) and name != word and not name[len(word)].isalnum():
                return role
    return None


def training_beside(path: Path) -> list[Path]:
    """The training data of which a file or a folder has those of another role, as train.csv beside test.csv."""
    path = path.absolute()
    for part in (path, path.parent):
        whole = part.is_dir()
        if role_of(part.name, whole) in (None, "train"):
            continue
        try:
            around = [other for other in part.parent.iterdir() if role_of(other.name, whole) == "train"]
        except OSError:  # one that may not be read
            continue
        others = [other for other in around if other.is_dir() == whole and (whole or other.suffixes == part.suffixes)]
        # An array has a file for each field, and other files have samples of all.
        same = part != path and path.suffix == ".npy"
        return (
            sorted(other / path.name for other in others if (other / path.name).is_file()) if same else sorted(others)
        )
    return []


def arrays_of_role(names: Iterable[str], role: str) -> dict[str, str] | None:
    """The arrays of a role, by their names without it, where the names of all arrays of a file tell roles.

    They do in x_train, y_train, x_test or train_images, test_images: all begin or end with the name of a role, and what
    is left is among that of the training arrays.

    Returns:
        None where they do not.

    Raises:
        DataError: they do, and none tells this role.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        words = [word for word in re.split(r"[_.-]", name) if word]
        ends = [word for word in (words[:1] + words[-1:]) if role_of(word, whole=True) is not None]
        if not ends or len(words) < 2:
            return None
        word = ends[0]
        rest = name.removeprefix(word) if words[0] == word else name.removesuffix(word)
        found.setdefault(role_of(word, whole=True) or "", {})[rest.strip("_.-")] = name
    if len(found) < 2 or not all(of.keys() <= found.get("train", {}).keys() for of in found.values()):
        return None
    if role not in found:
        raise DataError(f"there are arrays for {', '.join(found)} and none for '{role}'; read them with role= or key=")
    return found[role]
