"""Names of weights, layers and models as parts of files' names; and what of the things with a name is a file."""

from __future__ import annotations

import errno
import re
import stat
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["escape", "no_directory", "regular_file", "unescape"]


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


def no_directory(path: Path) -> str | None:
    """What stands in the place of a directory, as the end of a sentence; None where it is one.

    There may be nothing: "there is no such directory".
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return "there is no such directory"
    if stat.S_ISDIR(mode):
        return None
    return f"it is {_KINDS.get(stat.S_IFMT(mode), 'a file')}, and a directory was expected"
