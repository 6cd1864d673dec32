"""Where the members of a tar file are: one pass over its headers, without the contents.

    bytes 0 to 99       name                    345 to 499   what goes before the name, and a slash ("ustar")
    bytes 124 to 135    size, octal digits; or a big-endian number where the first bit is set
    bytes 148 to 155    sum of the bytes of the header, these eight being spaces, in octal digits
    byte 156            type: "0", "7" or a zero byte for a file; "L" for a long name of the next member; "x" for
                        settings of the next member ("LENGTH NAME=VALUE" lines), of which `path` and `size` matter

The content of a member follows its header and is filled up to a multiple of 512 bytes. Nothing is ever extracted, so
names lead nowhere; a file that has absolute ones, or ones with "..", is refused all the same, since no program that
writes data sets makes such names and one that unpacks the file may follow them. Links and devices are passed over.

Python's `tarfile` reads names and settings of any length that a header promises into memory; here both are bounded.

Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html ("ustar Interchange Format", "pax Extended
Header"); the long names are GNU's, https://www.gnu.org/software/tar/manual/html_node/Standard.html
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zipfile
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from descend.arguments import shown
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["MEMBER_BYTES", "Member", "ShardIndex", "index_of", "key_and_ending", "members_of", "name_before"]

MEMBER_BYTES = 2**30  # no content may be longer: a hole in a file can have any size
KEPT_SECONDS = 1.0
KEPT_BYTES = 2**30
_BLOCK = 512
_ADLER_MODULUS = 65_521
MAX_PASSED_OVER = 2**17
_NAME_BYTES = 2**16  # of a long name, or of the settings of a member
_READ_AT_ONCE = 2**16
_REGULAR = (b"0", b"\0", b"7")
_ENDINGS = 256  # of the members of a file
_MOST_BY_KEY = 2**20  # samples whose keys are held
_PASSED_OVER = (
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b"6",
    b"g",
    b"K",
)  # links, devices, folders, defaults


class Member(NamedTuple):
    """A file within a tar file."""

    name: str
    offset: int  # of its content
    size: int  # in bytes


class _Window:
    """Reads short stretches in increasing order with few system calls."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._begin, self._content = descriptor, 0, b""

    def read(self, offset: int, count: int) -> bytes:
        at = offset - self._begin
        if not 0 <= at <= len(self._content) - count:
            self._begin, at = offset, 0
            self._content = os.pread(self._descriptor, max(count, _READ_AT_ONCE), offset)
        return self._content[at : at + count]


def members_of(path: Path) -> Iterator[Member]:
    """The files in a tar file, in its order.

    Raises:
        DataError: it is not a tar file, is damaged, ends within a member or a header, or has sparse members.
    """
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        window, offset, settings, passed_over = _Window(file.fileno()), 0, dict[str, str](), 0
        while offset < whole:
            header = window.read(offset, _BLOCK)
            if len(header) < _BLOCK:
                raise DataError(f"{path} ends within the header of a member, at byte {whole:,}; fetch the file again")
            if not header.strip(b"\0"):
                return
            size, kind = _size(header, path, offset), header[156:157]
            if kind in _REGULAR and "size" in settings:
                size = _number(settings["size"], path, offset)
            begin, offset = offset + _BLOCK, offset + _BLOCK + -(-size // _BLOCK) * _BLOCK
            if begin + size > whole:
                raise DataError(
                    f"{path} is truncated: a member that begins at byte {begin:,} has {size:,} bytes, and the file "
                    f"ends at {whole:,}; fetch it again"
                )
            if kind in (b"L", b"x"):
                if size > _NAME_BYTES:
                    raise DataError(f"{path}: a name at byte {begin:,} has {size:,} bytes; at most {_NAME_BYTES:,} do")
                settings |= _settings(window.read(begin, size), kind, path, begin)
                continue
            if kind in _REGULAR:
                if any(name.startswith("GNU.sparse") for name in settings):
                    raise DataError(f"{path}: the member at byte {begin:,} is sparse; write it without --sparse")
                yield Member(settings.get("path") or _name(header), begin, size)
            elif kind in _PASSED_OVER:
                passed_over += 1
                if passed_over > MAX_PASSED_OVER:
                    raise DataError(
                        f"{path} has more than {MAX_PASSED_OVER:,} links, folders and devices, of which none is read; "
                        "write the files alone"
                    )
            elif kind == b"S":
                raise DataError(f"{path}: the member at byte {begin:,} is sparse; write it without --sparse")
            else:
                raise DataError(f"{path}: the member at byte {begin:,} is of the unknown type {kind!r}")
            settings = settings if kind == b"K" else {}
        raise DataError(
            f"{path} is truncated: behind its last member the two blocks of zeros are missing that end a tar file; "
            "fetch it again, or if it is whole, end it by 'truncate -s +1024 FILE'"
        )


def _size(header: bytes, path: Path, offset: int) -> int:
    """The size in a header, whose sum is checked."""
    # The lower half of Adler's sum is one more than that of the bytes, by a modulus; `sum` takes ten times as long.
    total = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32
    digits = header[148:156].strip(b" \0")
    if digits.strip(b"01234567") or not digits or (int(digits, 8) - total) % _ADLER_MODULUS:
        what = "is not a tar file" if offset == 0 else f"is damaged at byte {offset:,}"
        raise DataError(f"{path} {what}: a header does not have the sum that it promises")
    field = header[124:136]
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0xFF << 88)
    octal = field.strip(b" \0") or b"0"
    if octal.strip(b"01234567"):
        raise DataError(f"{path} is damaged at byte {offset:,}: the size {octal!r} is not an octal number")
    return int(octal, 8)


def _number(text: str, path: Path, offset: int) -> int:
    if not text.isdecimal() or len(text) > 20:
        raise DataError(f"{path}: a member at byte {offset:,} has the size {text[:30]!r}; expected a number of bytes")
    return int(text)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    before = header[345:500].split(b"\0", 1)[0] if header[257:262] == b"ustar" and header[263:265] == b"00" else b""
    return (before + b"/" + name if before else name).decode("utf-8", "replace")


def _settings(content: bytes, kind: bytes, path: Path, offset: int) -> dict[str, str]:
    if kind == b"L":
        return {"path": content.rstrip(b"\0").decode("utf-8", "replace")}
    found: dict[str, str] = {}
    while content.strip(b"\0"):
        digits, _, _ = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        name, equal, value = content[len(digits) + 1 : length].partition(b"=")
        if not equal or not value.endswith(b"\n"):
            raise DataError(f"{path} is damaged: the settings of a member at byte {offset:,} cannot be read")
        found[name.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "replace")
        content = content[length:]
    return found


def name_before(path: Path, offset: int) -> str:
    """The name in the header before a content; of a long one its end or its beginning alone."""
    with path.open("rb") as file:
        return _name(os.pread(file.fileno(), _BLOCK, offset - _BLOCK))


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
    """

    path: Path
    endings: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)


def index_of(path: Path) -> ShardIndex:
    """Read the headers of a tar file, or what was kept of an earlier time, as long as its size and time are the same.

    Indices whose making took more than `KEPT_SECONDS` are kept in `$XDG_CACHE_HOME/descend/tar` (`~/.cache`), up to
    `KEPT_BYTES` in all, those used last.

    Raises:
        DataError: the file is damaged, a sample has two members with the same ending, or one is too long.
    """
    state = path.stat()
    name = hashlib.sha256(f"{path.resolve()}\n{state.st_size}\n{state.st_mtime_ns}".encode()).hexdigest()[:32]
    home = Path(os.environ.get("HOME") or tempfile.gettempdir())  # a container may have no home
    kept = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "descend" / "tar" / f"{name}.npz"
    if (found := _loaded(path, kept, state.st_size)) is not None:
        return found
    begin = time.monotonic()
    made = _made(path)
    if time.monotonic() - begin > KEPT_SECONDS:
        with contextlib.suppress(OSError):  # a folder that cannot be written costs time alone
            _keep(made, kept)
    return made


def _loaded(path: Path, kept: Path, size: int) -> ShardIndex | None:
    """The index in a file; None if there is none that can be used."""
    try:
        with np.load(kept, allow_pickle=False) as archive:
            endings = tuple(json.loads(archive["endings"].tobytes()))
            offsets, sizes = archive["offsets"], archive["sizes"]
        os.utime(kept)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None
    fits = offsets.shape == sizes.shape == (len(offsets), len(endings)) and offsets.dtype == sizes.dtype == np.int64
    if not fits or (offsets.size and ((sizes < 0) | (offsets < -1) | (offsets + sizes > size)).any()):
        return None
    return ShardIndex(path, endings, offsets, sizes)


def _keep(index: ShardIndex, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=kept.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        endings = np.frombuffer(json.dumps(index.endings).encode(), np.uint8)
        np.savez(file, endings=endings, offsets=index.offsets, sizes=index.sizes)
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


def _indexed(path: Path, by_key: bool) -> ShardIndex:
    """The samples: consecutive members with the same key, or all those of a file with it as far as they differ."""
    columns: dict[str, tuple[array[int], array[int]]] = {}
    rows: dict[str, int] = {}
    count, current, row = 0, None, 0
    for member in members_of(path):
        key, ending = key_and_ending(member.name)
        if not ending or not key.rpartition("/")[2]:
            continue  # a README, a hidden file
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise DataError(
                f"{path}: sample {count if key != current else count - 1} has a member {shown(member.name)}, a name "
                "that leads out of the folder into which the file is unpacked; write it with names like '0001.jpg'"
            )
        if member.size > MEMBER_BYTES:
            raise DataError(f"{path}: '{member.name}' has {member.size:,} bytes; at most {MEMBER_BYTES:,} are read")
        offsets, sizes = columns.setdefault(ending, (array("q"), array("q")))
        if len(columns) > _ENDINGS:
            raise DataError(
                f"{path} has members with more than {_ENDINGS} endings, such as .{ending}; write them alike"
            )
        if key != current:
            current, row = key, rows.get(key, count) if by_key else count
            if row < len(offsets) and offsets[row] >= 0:
                row = count
            count = max(count, row + 1)
            if by_key:
                rows[key] = row
        elif row < len(offsets) and offsets[row] >= 0:
            raise DataError(f"{path}: two members of sample {row} are called '{member.name}'")
        missing = row + 1 - len(offsets)
        offsets.extend([-1] * missing)
        sizes.extend([0] * missing)
        offsets[row], sizes[row] = member.offset, member.size
    shape = (count, len(columns))
    found = (np.full(shape, -1, np.int64), np.zeros(shape, np.int64))
    for place, column in enumerate(columns.values()):
        for whole, some in zip(found, column, strict=True):
            whole[: len(some), place] = some
    return ShardIndex(path, tuple(columns), *found)
