"""The samples of a tar file: members with the same name before the first dot, and where their contents are.

Contents are read by their places and nothing is ever extracted, so names lead nowhere; a file that has absolute ones,
or ones with "..", is refused all the same, since no program that writes data sets makes such names and one that unpacks
the file may follow them. Devices, hidden files and names without an ending are skipped and counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zipfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.arguments import shown
from descend.data.formats.tar_members import Member, members_of, name_before, targets_of
from descend.data.sample_cache import cache_folder, is_private, make_private
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["MEMBER_BYTES", "ShardIndex", "index_of", "key_and_ending"]

MEMBER_BYTES = 2**30  # no content may be longer: a hole in a file can have any size
KEPT_SECONDS = 1.0
KEPT_BYTES = 2**30
_LISTED, _NAME_LISTED = 4, 200  # names of skipped members of a kind, and their characters
_ENDINGS = 256  # of the members of a file
_MOST_BY_KEY = 2**20  # samples whose keys are held
_FORM = 2  # of indices that are kept; those of another one are not believed


def key_and_ending(name: str) -> tuple[str, str]:
    """The sample of a member, and what it is of it: ("a/0001", "seg.png") of "a/0001.seg.png", as in webdataset."""
    folder, slash, last = name.rpartition("/")
    first, _, ending = last.partition(".")
    return folder + slash + first, ending.lower()


@dataclass(frozen=True)
class ShardIndex:
    """The samples of a tar file: members with the same key, which are usually consecutive.

    Args:
        path: Of the file.
        endings: What samples have, in the order in which it first comes.
        offsets: (samples, endings) where each content begins; −1 where a sample lacks one.
        sizes: (samples, endings) in bytes.
        keys: Of samples that have a link, by their number; those of others are in the file.
        skipped: Names of members that are of no sample, by the kind of reason: some of them, and how many.
        members: How many members there are, without folders.
    """

    path: Path
    endings: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: Mapping[int, str] = field(default_factory=dict[int, str])
    skipped: Mapping[str, tuple[Sequence[str], int]] = field(default_factory=dict[str, "tuple[Sequence[str], int]"])
    members: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, row: int) -> str:
        """The name of a sample."""
        if (of_link := self.keys.get(row)) is not None:
            return of_link
        begin = min(offset for offset in self.offsets[row].tolist() if offset >= 0)
        return key_and_ending(name_before(self.path, begin))[0]


def index_of(path: Path) -> ShardIndex:
    """Read the headers of a tar file, or what was kept of an earlier time, as long as its size and time are the same.

    Indices whose making took more than `KEPT_SECONDS` are kept in `$XDG_CACHE_HOME/descend/tar` (`~/.cache`), up to
    `KEPT_BYTES` in all, those used last; nowhere if other users may write into that folder.

    Raises:
        DataError: the file is damaged, a sample has two members with the same ending, or one is too long.
    """
    state = path.stat()
    # Programs set the time of change of the content as they like, but not that of the file.
    known = (_FORM, path.resolve(), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    name = hashlib.sha256("\n".join(map(str, known)).encode()).hexdigest()[:32]
    folder = cache_folder("tar")
    kept = folder / f"{name}.npz"
    if is_private(folder) and (found := _loaded(path, kept, state.st_size)) is not None:
        return found
    begin = time.monotonic()
    made = _made(path)
    if time.monotonic() - begin > KEPT_SECONDS:
        with contextlib.suppress(OSError):  # a folder that cannot be written costs time alone
            if make_private(folder):
                _keep(made, kept)
    return made


def _loaded(path: Path, kept: Path, size: int) -> ShardIndex | None:
    """The index in a file; None if there is none that can be used."""
    try:
        with np.load(kept, allow_pickle=False) as archive:
            about = json.loads(archive["about"].tobytes())
            offsets, sizes = archive["offsets"], archive["sizes"]
        endings, keys = tuple(about["endings"]), {int(row): str(key) for row, key in about["keys"].items()}
        skipped = {str(kind): (list(names), int(count)) for kind, (names, count) in about["skipped"].items()}
        is_known = about["form"] == _FORM
        members = int(about["members"])
        os.utime(kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError):
        return None
    fits = offsets.shape == sizes.shape == (len(offsets), len(endings)) and offsets.dtype == sizes.dtype == np.int64
    if not is_known or not fits:
        return None
    if offsets.size and ((sizes < 0) | (offsets < -1) | (offsets + sizes > size)).any():
        return None
    return ShardIndex(path, endings, offsets, sizes, keys, skipped, members)


def _keep(index: ShardIndex, kept: Path) -> None:
    about = {
        "form": _FORM,
        "endings": index.endings,
        "keys": dict(index.keys),
        "skipped": dict(index.skipped),
        "members": index.members,
    }
    handle, temporary = tempfile.mkstemp(dir=kept.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        content = np.frombuffer(json.dumps(about).encode(), np.uint8)
        np.savez(file, about=content, offsets=index.offsets, sizes=index.sizes)
    Path(temporary).replace(kept)
    held = 0
    for file in sorted(kept.parent.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True):
        held += file.stat().st_size
        if held > KEPT_BYTES and file != kept:
            file.unlink(missing_ok=True)


def _made(path: Path) -> ShardIndex:
    """The index of a file; members that are apart are one sample where samples lack members otherwise."""
    found = _indexed(path, by_key=False)
    lacking = int((found.offsets < 0).sum())
    if lacking and len(found) <= _MOST_BY_KEY:
        joined = _indexed(path, by_key=True)
        if int((joined.offsets < 0).sum()) < lacking:  # as `tar -c` puts them, in the order of the folder
            return joined
    return found


class _Columns:
    """The members of samples, an ending a column, as they are found.

    Args:
        path: Of the tar file.
        by_key: Whether members that are apart are of one sample if they have its key; else consecutive ones are.
    """

    def __init__(self, path: Path, by_key: bool) -> None:
        self._path, self._by_key = path, by_key
        self._columns: dict[str, tuple[array[int], array[int]]] = {}
        self._rows: dict[str, int] = {}
        self._count, self._current, self._row = 0, "", -1
        self.links: list[tuple[Member, int, str]] = []  # with the row and the ending

    def add(self, member: Member, key: str, ending: str) -> None:
        """Note where a member is; a link as -2, -3, ... until it is known where it leads.

        Raises:
            DataError: there are too many endings, or two members of a sample with one.
        """
        offsets, sizes = self._columns.setdefault(ending, (array("q"), array("q")))
        if len(self._columns) > _ENDINGS:
            raise DataError(
                f"{self._path} has members with more than {_ENDINGS} endings, such as .{ending}; write them alike"
            )
        if self._row < 0 or key != self._current:
            self._current, self._row = key, self._rows.get(key, self._count) if self._by_key else self._count
            if self._row < len(offsets) and offsets[self._row] != -1:
                self._row = self._count
            self._count = max(self._count, self._row + 1)
            if self._by_key:
                self._rows[key] = self._row
        elif self._row < len(offsets) and offsets[self._row] != -1:
            raise DataError(f"{self._path}: two members of sample {self._row} are called '{member.name}'")
        missing = self._row + 1 - len(offsets)
        offsets.extend([-1] * missing)
        sizes.extend([0] * missing)
        if member.target:
            self.links.append((member, self._row, ending))
        offsets[self._row], sizes[self._row] = (-2, 0) if member.target else (member.offset, member.size)

    def number_of(self, key: str) -> int:
        """The number of the sample that a next member with a key is of."""
        return self._count - 1 if self._row >= 0 and key == self._current else self._count

    def index(self, skipped: Mapping[str, tuple[Sequence[str], int]], members: int) -> ShardIndex:
        """The index, with links resolved.

        Raises:
            DataError: a link leads to no member.
        """
        shape = (self._count, len(self._columns))
        found = (np.full(shape, -1, np.int64), np.zeros(shape, np.int64))
        for place, column in enumerate(self._columns.values()):
            for whole, some in zip(found, column, strict=True):
                whole[: len(some), place] = some
        endings = tuple(self._columns)
        keys: dict[int, str] = {}
        for (member, row, ending), target in zip(self.links, self._targets(), strict=True):
            _check_size(self._path, target)
            found[0][row, at := endings.index(ending)] = target.offset
            found[1][row, at] = target.size
            keys[row] = key_and_ending(member.name)[0]
        return ShardIndex(self._path, endings, *found, keys, skipped, members)

    def _targets(self) -> list[Member]:
        return targets_of(self._path, [member for member, _, _ in self.links]) if self.links else []


def _indexed(path: Path, by_key: bool) -> ShardIndex:
    """The samples: consecutive members with the same key, or all those of a file with it as far as they differ."""
    columns = _Columns(path, by_key)
    skipped: dict[str, tuple[list[str], int]] = {}
    members = 0
    for member in members_of(path):
        if member.kind == "folder" or member.name.endswith("/"):
            continue
        members += 1
        if (why := _why_no_sample(member)) is not None:
            some, count = skipped.get(why, ([], 0))
            skipped[why] = ([*some, member.name[:_NAME_LISTED]][:_LISTED], count + 1)
            continue
        key, ending = key_and_ending(member.name)
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise DataError(
                f"{path}: sample {columns.number_of(key)} has a member {shown(member.name)}, a name that leads out of "
                "the folder into which the file is unpacked; write it with names like '0001.jpg'"
            )
        _check_size(path, member)
        columns.add(member, key, ending)
    return columns.index(skipped, members)


def _check_size(path: Path, member: Member) -> None:
    if member.size > MEMBER_BYTES:
        raise DataError(f"{path}: '{member.name}' has {member.size:,} bytes; at most {MEMBER_BYTES:,} are read")


def _why_no_sample(member: Member) -> str | None:
    """Why a member is of no sample; None if it is of one."""
    key, ending = key_and_ending(member.name)
    if member.kind == "device":
        return "device"
    if not key.rpartition("/")[2]:
        return "hidden"
    return None if ending else "without an ending"
