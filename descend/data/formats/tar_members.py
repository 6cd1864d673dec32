"""Where the members of a tar file are: one pass over its headers, without the contents.

    bytes 0 to 99       name                    345 to 499   what goes before the name, and a slash ("ustar")
    bytes 124 to 135    size, octal digits; or a big-endian number where the first bit is set
    bytes 148 to 155    sum of the bytes of the header, these eight being spaces, in octal digits
    byte 156            type: "0", "7" or a zero byte for a file; "1" and "2" for a hard and a symbolic link to the name
                        at bytes 157 to 256; "L" and "K" for a long name of the next member, or of what it is a link to;
                        "x" for settings of the next member ("LENGTH NAME=VALUE" lines), of which `path`, `linkpath` and
                        `size` matter, "g" for those of all

The content of a member follows its header and is filled up to a multiple of 512 bytes. A link has the content of the
member that it leads to, which may be a link, and stand anywhere in the file; one that leads to none, or out of the
file, is an error. Blocks of zeros end an archive; what follows them is another archive, as `cat` joins them, or an
error.

Nothing is ever extracted, so names lead nowhere. Python's `tarfile` reads names and settings of any length that
a header promises into memory; here both are bounded.

Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html ("ustar Interchange Format", "pax Extended
Header"); the long names are GNU's, https://www.gnu.org/software/tar/manual/html_node/Standard.html
"""

from __future__ import annotations

import errno
import os
import posixpath
import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from descend.arguments import shown
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Member", "members_of", "name_before", "targets_of"]

MAX_PASSED_OVER = 2**17
_BLOCK = 512
_ADLER_MODULUS = 65_521
_NAME_BYTES = 2**16  # of a long name, or of the settings of a member
_READ_AT_ONCE = 2**16
_ZEROS_AT_ONCE, _MAX_ZEROS = 2**20, 2**30
_ABOUT_MEMBERS = (b"L", b"K", b"x", b"g")
_REGULAR = (b"0", b"\0", b"7")
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_PASSED_OVER = {b"3": "device", b"4": "device", b"5": "folder", b"6": "device"}
_MOST_LINKS_IN_A_ROW = 40  # as Linux follows
_LONGEST_PATH, _DEEPEST_PATH = 4096, 256  # of what a link leads to; Linux has the first limit
_LINK_BYTES = 2**26  # of the names of links, which are held
_DEREFERENCE = "write contents in place of links (tar --dereference --hard-dereference)"


class Member(NamedTuple):
    """A file within a tar file, or a link to one."""

    name: str
    offset: int  # of its content
    size: int  # in bytes
    target: str = ""  # the name that a link leads to
    kind: str = "file"  # or "hard link", "symbolic link", "folder", "device"


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
    """The members of a tar file, in its order; of several archives in one file what is in all of them.

    Raises:
        DataError: it is not a tar file, is damaged, ends within a member or a header, or has sparse members.
    """
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        window, offset, passed_over, held, ended = _Window(file.fileno()), 0, 0, 0, False
        settings, defaults = dict[str, str](), dict[str, str]()
        while offset < whole:
            header = window.read(offset, _BLOCK)
            if not header.strip(b"\0"):
                offset, ended = _behind_zeros(path, file.fileno(), offset + len(header), whole), True
                continue
            if len(header) < _BLOCK:
                raise DataError(f"{path} ends within the header of a member, at byte {whole:,}; fetch the file again")
            size, kind = _size(header, path, offset, ended), header[156:157]
            ended = False
            if kind in (_HARD_LINK, _SYMBOLIC_LINK) or kind in _PASSED_OVER:
                size = 0  # whatever the header says of what they lead to
            elif kind in _REGULAR and "size" in settings:
                size = _number(settings["size"], path, offset)
            begin, offset = offset + _BLOCK, offset + _BLOCK + -(-size // _BLOCK) * _BLOCK
            if begin + size > whole:
                raise DataError(
                    f"{path} is truncated: a member that begins at byte {begin:,} has {size:,} bytes, and the file "
                    f"ends at {whole:,}; fetch it again"
                )
            if kind in _ABOUT_MEMBERS:
                if size > _NAME_BYTES:
                    raise DataError(f"{path}: a name at byte {begin:,} has {size:,} bytes; at most {_NAME_BYTES:,} do")
                found = _settings(window.read(begin, size), kind, path, begin)
                if kind == b"g":
                    defaults |= _harmless(found, path, begin)
                else:
                    settings |= found
                continue
            if kind not in _REGULAR:
                passed_over += 1
                if passed_over > MAX_PASSED_OVER:
                    raise DataError(
                        f"{path} has more than {MAX_PASSED_OVER:,} links, folders and devices; write the files alone, "
                        "and contents in place of links (tar --dereference --hard-dereference)"
                    )
            member = _member(header, kind, begin, size, settings, path)
            held += len(member.name) + len(member.target) if member.target else 0
            if held > _LINK_BYTES:
                raise DataError(f"{path} has links whose names have more than {_LINK_BYTES:,} bytes; {_DEREFERENCE}")
            yield member
            settings = {}
        if not ended:
            raise DataError(
                f"{path} is truncated: behind its last member the two blocks of zeros are missing that end a tar file; "
                "fetch it again, or if it is whole, end it by 'truncate -s +1024 FILE'"
            )


def _behind_zeros(path: Path, descriptor: int, offset: int, whole: int) -> int:
    """The first block that has other bytes than zeros; the end of the file if there is none."""
    begin, read = offset, 0
    while offset < whole:
        try:
            offset = max(offset, os.lseek(descriptor, offset, os.SEEK_DATA) // _BLOCK * _BLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                break
        content = os.pread(descriptor, _ZEROS_AT_ONCE, offset)
        if not content:
            break
        read += len(content)
        if read > _MAX_ZEROS:
            raise DataError(
                f"{path} has more than {_MAX_ZEROS:,} zeros behind the end of an archive: cut them off by "
                f"'truncate -s {begin} FILE'"
            )
        if content.count(0) < len(content):
            return offset + (len(content) - len(content.lstrip(b"\0"))) // _BLOCK * _BLOCK
        offset += len(content)
    return whole


def _member(header: bytes, kind: bytes, begin: int, size: int, settings: Mapping[str, str], path: Path) -> Member:
    name = settings.get("path") or _name(header)
    if kind in _REGULAR:
        if any(one.startswith("GNU.sparse") for one in settings):
            raise DataError(f"{path}: the member at byte {begin:,} is sparse; write it without --sparse")
        return Member(name, begin, size)
    if kind in (_HARD_LINK, _SYMBOLIC_LINK):
        target = settings.get("linkpath") or header[157:257].split(b"\0", 1)[0].decode("utf-8", "replace")
        return Member(name, begin, 0, target, "hard link" if kind == _HARD_LINK else "symbolic link")
    if kind in _PASSED_OVER:
        return Member(name, begin, 0, kind=_PASSED_OVER[kind])
    if kind == b"S":
        raise DataError(f"{path}: the member at byte {begin:,} is sparse; write it without --sparse")
    raise DataError(f"{path}: the member at byte {begin:,} is of the unknown type {kind!r}")


def _size(header: bytes, path: Path, offset: int, ended: bool) -> int:
    """The size in a header, whose sum is checked."""
    # The lower half of Adler's sum is one more than that of the bytes, by a modulus; `sum` takes ten times as long.
    total = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32
    digits = header[148:156].strip(b" \0")
    if digits.strip(b"01234567") or not digits or (int(digits, 8) - total) % _ADLER_MODULUS:
        if ended:
            raise DataError(
                f"{path} has bytes behind its end, at byte {offset:,}, that are no archive: fetch it again, or if they "
                f"mean nothing, cut them off by 'truncate -s {offset} FILE'"
            )
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
    if kind in (b"L", b"K"):
        name = content.split(b"\0", 1)[0].decode("utf-8", "replace")
        return {"path" if kind == b"L" else "linkpath": name}
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


def _harmless(defaults: Mapping[str, str], path: Path, offset: int) -> Mapping[str, str]:
    """Settings of all members, of which none may say where or what these are."""
    for name in defaults:
        if name in ("path", "linkpath", "size") or name.startswith("GNU.sparse"):
            raise DataError(
                f"{path}: a global header at byte {offset:,} sets '{name}' of all members; write it for each"
            )
    return defaults


def name_before(path: Path, offset: int) -> str:
    """The name in the header before a content; of a long one its end or its beginning alone."""
    with path.open("rb") as file:
        return _name(os.pread(file.fileno(), _BLOCK, offset - _BLOCK))


def targets_of(path: Path, links: Sequence[Member]) -> list[Member]:
    """The files that links of a tar file lead to, as they do where it is unpacked.

    A hard link leads to the last member of that name before it, or the first one behind it; a symbolic link to the last
    one of the file. Either may be a link. Names of folders that are symbolic links are followed as well.

    Raises:
        DataError: one leads out of the file, to nothing, to a folder, or in a circle.
    """
    by_name: dict[str, list[Member]] = {}
    for one in members_of(path):
        if one.target:
            by_name.setdefault(_normal(one.name), []).append(one)
    names = {link: _leads_to(path, link, by_name) for link in links}
    waiting = list(names.values())
    while waiting:  # what links lead to that are of no sample, but that others lead to
        for one in by_name.get(waiting.pop(), ()):
            if one not in names:
                names[one] = _leads_to(path, one, by_name)
                waiting.append(names[one])
    wanted = set(names.values())
    for one in members_of(path):
        if one.kind == "file" and (name := _normal(one.name)) in wanted:
            by_name.setdefault(name, []).append(one)
    for some in by_name.values():
        some.sort(key=lambda one: one.offset)
    ends: dict[int, Member] = {}
    return [_end_of(path, link, names, by_name, ends) for link in links]


def _end_of(
    path: Path,
    link: Member,
    names: Mapping[Member, str],
    by_name: Mapping[str, Sequence[Member]],
    ends: dict[int, Member],
) -> Member:
    """The file at the end of a chain of links; `ends` has those that are known, by the places of links."""
    passed: dict[int, None] = {}
    at = link
    while at.target and at.offset not in ends:
        if at.offset in passed:
            raise DataError(f"{path}: '{link.name}' is a {link.kind} that leads in a circle of links; {_DEREFERENCE}")
        passed[at.offset] = None
        found = by_name.get(names[at], ())
        place = bisect_left(found, at.offset, key=lambda one: one.offset)  # of the first that is not before it
        others = [one for one in found[place : place + 2] if one.offset != at.offset]
        if at.kind == "symbolic link" and found:
            at = found[-1]
        elif place or others:
            at = found[place - 1] if place else others[0]
        else:
            raise DataError(
                f"{path}: '{link.name}' is a {link.kind} to {shown(link.target)}, and the file has no member "
                f"{shown(names[at])} with a content; {_DEREFERENCE}"
            )
    end = ends.get(at.offset, at)
    ends.update(dict.fromkeys(passed, end))
    return end


def _leads_to(path: Path, link: Member, links: Mapping[str, Sequence[Member]]) -> str:
    """The name that a link leads to, where folders on the way that are symbolic links have been followed."""
    name = _next_name(path, link)
    for _ in range(_MOST_LINKS_IN_A_ROW):
        parts = name.split("/")
        steps = ("/".join(parts[:count]) for count in range(1, len(parts)))
        step = next((one for one in steps if one in links and links[one][-1].kind == "symbolic link"), None)
        if step is None:
            return name
        name = _within(path, link, _next_name(path, links[step][-1]) + name[len(step) :])
    raise DataError(f"{path}: '{link.name}' is a {link.kind} that leads in a circle of links; {_DEREFERENCE}")


def _next_name(path: Path, link: Member) -> str:
    folder = posixpath.dirname(link.name) if link.kind == "symbolic link" else ""
    return _within(path, link, posixpath.join(folder, link.target))


def _within(path: Path, link: Member, name: str) -> str:
    if len(name) > _LONGEST_PATH or name.count("/") > _DEEPEST_PATH:
        raise DataError(f"{path}: {shown(link.name)} is a {link.kind} to a name that no file can have; {_DEREFERENCE}")
    normal = _normal(name)
    if normal.startswith(("/", "../")) or normal == "..":
        raise DataError(
            f"{path}: '{link.name}' is a {link.kind} to {shown(link.target)}, which leads out of the file; "
            f"{_DEREFERENCE}"
        )
    return normal


def _normal(name: str) -> str:
    return posixpath.normpath(name) if name else name
