"""Names of weights, layers and models as parts of files' names; and what of the things with a name is a file."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

__all__ = [
    "MAX_LINE",
    "bounded_lines",
    "bounded_text",
    "escape",
    "has_file",
    "has_folder",
    "no_directory",
    "regular_file",
    "unescape",
]

MAX_TEXT = 64_000_000  # bytes of a file that is read as a whole; those of ours have a hundredth of it
MAX_LINE = 16_000_000  # bytes of a line; those of ours have a hundredth of it


def escape(name: str) -> str:
    """A name as it is written in a file and in a file's name: `..%2Fx` for `../x`, so that no name is taken for a path.

    `__metadata__`, which means something else in a file of tensors, is `%5F_metadata__`.
    """
    return re.sub(r"[%/\\\x00-\x1f]|^_(?=_metadata__$)|^\.(?=\.?$)", lambda found: f"%{ord(found.group()):02X}", name)


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return unquote(name)


_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def regular_file(path: Path) -> Path:
    """The same path, unless opening it could block for ever, or reading it have no end.

    Raises:
        OSError: it is a pipe, a socket or a device, or a link to one; or there is nothing.
    """
    if kind := _KINDS.get(stat.S_IFMT(path.stat().st_mode)):
        raise OSError(errno.EINVAL, f"it is {kind}, and a file was expected", str(path))
    return path


def bounded_text(path: Path, at_most: int = MAX_TEXT) -> str:
    """The text in a file of ours, which by now may be anything.

    Raises:
        OSError: it cannot be read, is no file, or is larger than any of ours.
        UnicodeDecodeError: it is not in UTF-8.
    """
    with regular_file(path).open("rb") as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"it has more than {at_most:,} bytes", str(path))
    return content.decode()


def bounded_lines(path: Path, begin: int = 0, at_most: int = MAX_LINE) -> Iterator[bytes]:
    """The lines of a file with their ends, in pieces of at most so many bytes, so that no memory is filled.

    Args:
        path: The file.
        begin: Where to begin, in bytes.
        at_most: Of a line; what is more of it is left out.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    with regular_file(path).open("rb") as file:
        file.seek(begin)
        while line := file.readline(at_most):
            yield line
            if not line.endswith(b"\n"):
                _pass_line(file)


def _pass_line(file: BufferedReader) -> None:
    """Go on to the next line."""
    while block := file.read(1 << 20):
        if (end := block.find(b"\n")) >= 0:
            file.seek(end + 1 - len(block), os.SEEK_CUR)
            return


def has_file(path: Path) -> bool:
    """Whether there is a file, as far as this user may see; `Path.is_file` fails in a folder of others."""
    try:
        return path.is_file()
    except OSError:
        return False


def has_folder(path: Path) -> bool:
    """Whether there is a folder, as far as this user may see; `Path.is_dir` fails in a folder of others."""
    try:
        return path.is_dir()
    except OSError:
        return False


def no_directory(path: Path) -> str | None:
    """What stands in the place of a directory, as the end of a sentence; None where it is one.

    There may be nothing: "there is no such directory".
    """
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return "this user may not look there"
    except (OSError, ValueError):
        return "there is no such directory"
    if stat.S_ISDIR(mode):
        return None
    return f"it is {_KINDS.get(stat.S_IFMT(mode), 'a file')}, and a directory was expected"
