"""Samples on disk as they are after decoding, so that later epochs and runs map them instead of decoding again.

A cache is two files in a folder, `KEY.samples` with a record of fixed size for each sample and `KEY.index` with a
checksum for each, 0 where there is none yet. KEY stands for the files (path, size, times of change), the options of the
caller and the form of the samples, so changed data or settings have another cache.

Several processes may use a cache at once. A record is written before its checksum, and the content of a sample is the
same from all of them; a record that does not have its checksum, torn by a crash or damaged, is decoded again.

Not more than `limit` bytes are used in a folder: caches that were not used for longest are removed, and of a data set
that does not fit the first samples are stored. Records are written by system calls and not through the map, so that a
full disk is an error that is handled (nothing more is stored) and not a signal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.reader_protocol import WrappedSource
from descend.errors import ConfigurationError, warn
from descend.files.private_folder import PrivateFolder, cache_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["CachedSource", "cache_folder", "cached", "is_private", "make_private"]

_FORM = 3  # of the files and of what is in them; another one has other keys
_OURS = re.compile(r"([0-9a-f]{32})\.(samples|index)")
_NOT_OF_CONTENT = ("cache", "cache_bytes", "role", "target", "skip_bad")


def cached(source: FileSource, paths: Sequence[Path], options: ReadOptions) -> FileSource:
    """The samples of some files, through a cache.

    Args:
        source: The samples.
        paths: The files; a source that reads others, such as images of a list, names them in `files`.
        options: Has `cache`, a folder or True for `$XDG_CACHE_HOME/descend/samples`, and `cache_bytes`.

    Raises:
        ConfigurationError: samples are of no fixed size, or one is larger than the cache.

    Warns:
        UserWarning: the folder cannot be used, and samples are decoded each time.
    """
    if options.tokenizer is not None and not isinstance(options.tokenizer, str):
        raise ConfigurationError("read: cache= needs a tokenizer that is named by a file, to know it again")
    text = [name for name, one in source.fields.items() if one.dtype.itemsize == 0 or one.dtype.hasobject]
    if text:
        raise ConfigurationError(
            f"read: cache= stores samples of a fixed size, and '{text[0]}' is text of any length: leave it out with "
            "columns=, make it a class with label=, or read without a cache"
        )
    record = np.dtype([(name, one.dtype, one.shape) for name, one in source.fields.items()])
    capacity = min(len(source), options.cache_bytes // (record.itemsize + 4))
    if capacity == 0:
        raise ConfigurationError(
            f"read: a sample has {record.itemsize:,} bytes and cache_bytes is {options.cache_bytes:,}; set it higher"
        )
    files: Sequence[Path] = getattr(source, "files", paths)
    if isinstance(options.tokenizer, str) and Path(options.tokenizer).is_file():
        files = [*files, Path(options.tokenizer)]
    key = _key(files, options, record, capacity)
    folder: Path | str = "~/.cache" if isinstance(options.cache, bool) else Path(options.cache)
    try:
        if isinstance(folder, Path):  # of which the caller knows who else uses it
            folder.mkdir(parents=True, exist_ok=True)
        elif not make_private(folder := cache_folder("samples")):
            warn(
                f"cache=True is not used: {folder} is not of this user alone, and others could have put samples into "
                "it; take their right to write away (chmod go-w), or name a folder by cache="
            )
            return source
        _make_room(folder, key, options.cache_bytes - capacity * (record.itemsize + 4))
        for ending, size in (("samples", record.itemsize), ("index", 4)):
            with (folder / f"{key}.{ending}").open("ab") as file:
                file.truncate(capacity * size)  # takes no place on the disk before something is written
    except OSError as error:
        warn(f"the cache {folder} cannot be used ({error}): samples are decoded each time they are read")
        return source
    return CachedSource(source, folder / key, record, capacity)


def _key(files: Sequence[Path], options: ReadOptions, record: np.dtype[Any], capacity: int) -> str:
    settings = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _NOT_OF_CONTENT}
    settings["is_class"] = sorted(options.target)
    digest = hashlib.sha256(json.dumps([_FORM, settings, str(record.descr), capacity], default=str).encode())
    for path in files:
        state = path.stat()
        times = f"{state.st_mtime_ns}\n{state.st_ctime_ns}"  # programs set the first one, and none the second
        digest.update(f"{path.resolve()}\n{state.st_size}\n{times}\n".encode())
    return digest.hexdigest()[:32]


def _make_room(folder: Path, key: str, room: int) -> None:
    """Remove the caches of others that were not used for longest, until the rest takes at most `room` bytes."""
    held: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if (ours := _OURS.fullmatch(path.name)) is not None and ours[1] != key:
            held.setdefault(ours[1], []).append(path)
    used = {name: max(path.stat().st_mtime for path in some) for name, some in held.items()}
    for name in sorted(used, key=lambda name: used[name], reverse=True):
        room -= sum(path.stat().st_blocks * 512 for path in held[name])
        if room < 0:
            for path in held[name]:
                path.unlink(missing_ok=True)


class CachedSource(WrappedSource):
    """The samples of a source, stored when they are first read; see `FileSource`.

    Args:
        source: Decodes them.
        stem: Path of the two files without their endings, which exist and have their sizes.
        record: Type of a stored sample.
        capacity: How many samples are stored, the first ones.
    """

    def __init__(self, source: FileSource, stem: Path, record: np.dtype[Any], capacity: int) -> None:
        super().__init__(source)
        self._stem, self._record, self._capacity = stem, record, capacity
        self._maps: tuple[Array, NDArray[np.uint32]] | None = None
        self._descriptors: tuple[Any, Any] | None = None
        self._full = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": None, "_descriptors": None}

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        try:
            records, sums = self._mapped()
        except OSError as error:  # removed under this process, or too many files are open
            warn(f"the cache {self._stem.parent} cannot be read ({error}): samples are decoded each time they are read")
            return self._source.read(samples)
        inside = samples < self._capacity
        found = np.empty(len(samples), self._record)
        there = np.zeros(len(samples), bool)
        places = np.flatnonzero(inside)
        wanted = sums[samples[places]]  # before the records, which are written before it
        places, wanted = places[wanted != 0], wanted[wanted != 0]
        found[places] = records[samples[places]]
        there[places] = _checksums(found[places]) == wanted
        missing = np.flatnonzero(~there)
        if missing.size:
            for name, values in self._source.read(samples[missing]).items():
                found[name][missing] = values
            self._store(samples[missing], found[missing])
        return {name: np.ascontiguousarray(found[name]) for name in self.fields}

    def _mapped(self) -> tuple[Array, NDArray[np.uint32]]:
        if self._maps is None:
            names = (self._stem.with_suffix(".samples"), self._stem.with_suffix(".index"))
            self._descriptors = (names[0].open("r+b", buffering=0), names[1].open("r+b", buffering=0))
            os.utime(names[1])
            self._maps = (
                np.memmap(self._descriptors[0], self._record, "r", shape=(self._capacity,)),
                np.memmap(self._descriptors[1], np.uint32, "r", shape=(self._capacity,)),
            )
        return self._maps

    def _store(self, samples: NDArray[np.int64], records: Array) -> None:
        if self._full or self._descriptors is None:
            return
        content, index = (file.fileno() for file in self._descriptors)
        size = self._record.itemsize
        try:
            for sample, record, total in zip(samples.tolist(), records, _checksums(records), strict=True):
                if sample < self._capacity:
                    _write(content, record.tobytes(), sample * size)
                    _write(index, np.uint32(total).tobytes(), sample * 4)
        except OSError:  # the disk is full, or a quota is
            self._full = True


def _write(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


def _checksums(records: Array) -> NDArray[np.uint32]:
    """A number for each record that is never 0."""
    content, size = memoryview(np.ascontiguousarray(records).view(np.uint8).data), records.dtype.itemsize
    return np.array([zlib.crc32(content[at : at + size]) or 1 for at in range(0, len(content), size)], np.uint32)


# ---- finds the folder of a cache, into which other users cannot have put content that would be believed


def cache_folder(name: str) -> Path:
    """The folder NAME in that of this user's caches, whether it exists or not.

    Without a home, as in some containers, it is in the folder for temporary files, under the number of the user.
    """
    try:
        return cache_root() / name
    except OSError:
        return Path(tempfile.gettempdir()) / f"descend-cache-{_user()}" / "descend" / name


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def is_private(folder: Path) -> bool:
    """Whether a folder exists and is of this user, and no other one may write into it, or exchange it.

    What this process then reads by its path is what it has written there.
    """
    try:
        PrivateFolder(folder, make=False).close()
    except OSError:
        return False
    return True


def make_private(folder: Path) -> bool:
    """Make a folder, and those above it that are missing, for this user alone; whether it is private then.

    Raises:
        OSError: it cannot be made.
    """
    try:
        PrivateFolder(folder).close()
    except PermissionError as error:
        if error.errno != errno.EPERM:  # that it is of others is said by this one, and by no system call here
            raise
        return False
    return True
