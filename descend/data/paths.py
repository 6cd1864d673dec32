"""Resolves what a user calls a data set - a file, a folder, a pattern, a list of these - to files."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEAD_BYTES", "arrays_of_role", "check_mapped", "files_of", "head", "is_path", "of_role", "role_of"]

HEAD_BYTES = 1024
_PATTERN = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_DESCRIPTIONS = frozenset(("dataset_info.json", "dataset_dict.json", "state.json"))  # of Hugging Face's save_to_disk
_OF_SYSTEMS = frozenset(("Thumbs.db", "desktop.ini"))  # that Windows puts into folders
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
    Files whose names begin with a dot or an underscore are left out of folders, as are such folders and files that a
    system puts there; of a folder with files for several roles those of `role` are taken, see `of_role`.

    Raises:
        ConfigurationError: the source does not name files.
        DataError: there is no such file, or none at all.
    """
    if not is_path(source):
        raise ConfigurationError(
            f"the source must be a path, a folder, a pattern such as 'data/*.csv' or a list of these, got "
            f"{shown(cast('object', source))}"
        )
    given: Iterable[Any] = source if isinstance(source, (list, tuple)) else (source,)
    found: dict[Path, None] = {}
    for one in given:
        for name in _without_braces(os.fspath(one)):
            found.update(dict.fromkeys(_expanded(name, role)))
    return list(found)


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


def _expanded(text: str, role: str) -> list[Path]:
    path = Path(text)
    try:
        if path.is_dir():
            files = _inside(path)
            if not files:
                raise DataError(f"the folder {path} has no files")
            return of_role(path, files, role)
        if path.exists():
            if not path.is_file():
                raise DataError(f"{path} is neither a file nor a folder")
            return [path]
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        raise DataError(f"{shown(text)} cannot be opened: {error}") from error
    if _PATTERN & set(text):
        files = [Path(name) for name in sorted(glob.glob(text, recursive=True)) if Path(name).is_file()]  # noqa: PTH207
        if not files:
            raise DataError(f"no file matches the pattern {text}")
        return files
    if _ADDRESS.match(text):
        raise DataError(f"{text} is an address, and files of this machine are read: fetch it, and pass the file's path")
    raise DataError(f"there is no file or folder {path.absolute()}")


def _inside(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name[0] not in "._"]
        found += [Path(place) / name for name in names if name[0] not in "._" and name not in _OF_SYSTEMS]
    return sorted(path for path in found if path.name not in _DESCRIPTIONS and path.is_file())


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
    tops = {path: list(path.relative_to(folder).parts) for path in files}
    while len(first := {tuple(parts[:1]) if len(parts) > 1 else () for parts in tops.values()}) == 1:
        if not (around := first.pop()) or role_of(around[0], whole=True):
            break
        tops = {path: parts[1:] for path, parts in tops.items()}
    folders = {parts[0] for parts in tops.values() if len(parts) > 1}
    if folders and not all(role_of(name, whole=True) for name in folders):
        return files
    whole = bool(folders)
    roles = {path: role_of(parts[0], whole) or "train" for path, parts in tops.items() if len(parts) > 1 or not whole}
    found = sorted(set(roles.values()))
    if not whole and len(found) < 2:
        return files
    chosen = [path for path, of in roles.items() if of == role]
    if not chosen:
        raise DataError(f"{folder} has files for {', '.join(found)} and none for '{role}'; read them with role=")
    return chosen


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
