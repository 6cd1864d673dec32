"""A cache folder that this user alone can write: for code, and for what is believed as if this process had made it.

    cache_root       the user's folder of caches: DESCEND_CACHE_DIR, else XDG_CACHE_HOME/descend, else ~/.cache/descend
    PrivateFolder    one folder of it, checked when it is opened and held by a descriptor from then on

Others could exchange a folder above it, a link on the way, or the file between the check and its use. So the way is
walked component by component from `/`, each opened relative to the one before: a directory must belong to this user or
to the system's administrator, and no other user may write it, unless it is sticky (as `/tmp`) and the entry is not
theirs. A link is followed where such an entry is one. The last component belongs to this user alone. What is read are
the bytes of one opened descriptor, with a SHA-256 checksum at their end; these bytes are used, and no path again.

Where the system has neither owners nor calls relative to a descriptor (Windows), the folder is used by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PrivateFolder", "cache_root", "load_library"]

_CHECKED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_MOST_LINKS = 40  # as Linux follows
_SEAL = hashlib.sha256().digest_size
_LARGEST = 2**28  # bytes of a file; far above any kernel or trace


def cache_root() -> Path:
    """The folder of this user's caches, which may not exist yet.

    Raises:
        OSError: no variable names one and the user has no home; the message says what to set.
    """
    if own := os.environ.get("DESCEND_CACHE_DIR"):
        return Path(own).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # its specification: a relative one is ignored
        return base / "descend"
    home = os.environ.get("HOME") or (os.environ.get("USERPROFILE") if os.name == "nt" else None)
    if not home or not Path(home).is_dir():  # a container may have none, and none is made
        what = f"HOME ({home}) does not exist" if home else "HOME is not set"
        raise FileNotFoundError(errno.ENOENT, f"{what}; DESCEND_CACHE_DIR may name a folder for caches")
    return Path(home).absolute() / ".cache" / "descend"


class PrivateFolder:
    """A folder that no other user can write.

    Args:
        path: The folder. Names of files in it have no slash.
        make: Make it, with mode 0700, where it does not exist.

    Attributes:
        path: The same.

    Raises:
        OSError: it cannot be made or read, or another user could write it or exchange it; the message says where.
    """

    def __init__(self, path: Path, make: bool = True) -> None:
        self.path = path
        self._descriptor: int | None = None
        if not _CHECKED:
            if make:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        self._descriptor = _walk(path, make)
        try:
            found = os.fstat(self._descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise _foreign(path)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor; the object is used no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none, or one that was damaged, which is removed.

        Raises:
            OSError: it cannot be read, is no regular file, or another user may have written it.
        """
        try:
            file = self._open(name, _FILE)
        except FileNotFoundError:
            return None
        with file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                raise OSError(errno.EINVAL, "it is not a file of this cache", str(self.path / name))
            if _CHECKED and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
                raise _foreign(self.path / name)
            data = file.read(_LARGEST + 1)
        content, seal = data[:-_SEAL], data[-_SEAL:]
        if hashlib.sha256(content).digest() != seal:
            self.remove(name)
            return None
        return content

    def has(self, name: str) -> bool:
        """Whether there is a file of this name; its content is not looked at."""
        try:
            os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically.

        Raises:
            OSError: it cannot be written; what was there is unchanged.
        """
        beside = f".{name}.{os.getpid()}.part"
        self.remove(beside)
        try:
            with self._open(beside, _NEW) as file:
                file.write(content + hashlib.sha256(content).digest())
            own = self._descriptor
            os.replace(self._at(beside), self._at(name), src_dir_fd=own, dst_dir_fd=own)
        except OSError:
            self.remove(beside)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, where that can be done."""
        with contextlib.suppress(OSError):
            os.unlink(self._at(name), dir_fd=self._descriptor)

    def _at(self, name: str) -> str:
        """The path of a file in calls that are relative to the descriptor, if there is one."""
        return name if self._descriptor is not None else str(self.path / name)

    def _open(self, name: str, flags: int) -> IO[bytes]:
        descriptor = os.open(self._at(name), flags, 0o600, dir_fd=self._descriptor)
        return os.fdopen(descriptor, "rb" if flags == _FILE else "wb")


def _walk(path: Path, make: bool) -> int:
    """A descriptor of a directory that no other user could have put there."""
    names = [*reversed(path.absolute().parts[1:])]
    here, place, name, links = os.open("/", _FOLDER), Path("/"), "", 0
    try:
        while names:
            _require_ours(here, place)
            name = names.pop()
            found = _entry(here, name, make)
            if found.st_uid not in (0, os.geteuid()):
                raise _foreign(place / name)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = Path(os.readlink(name, dir_fd=here))
                names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if not target.is_absolute():
                    continue
                name, place = "/", Path("/")
            deeper = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here, place = deeper, place / name
    except BaseException as error:
        os.close(here)
        if isinstance(error, OSError) and not error.filename2 and error.filename in (None, name):
            error.filename = str(place / name)
        raise
    return here


def _entry(folder: int, name: str, make: bool) -> os.stat_result:
    """The status of a name in a directory; on request a new directory where nothing has."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process of this user was faster
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _require_ours(folder: int, place: Path) -> None:
    """Refuse a directory on the way whose entries another user could exchange.

    Group 0 may write: its members are the administrator, who can exchange anything, and in containers that run under a
    number of their own (as OpenShift's) the one user that there is, whose home is given to that group.
    """
    found = os.fstat(folder)
    others = 0o002 if found.st_gid == 0 or _is_alone(found.st_gid) else 0o022
    exchanged = found.st_mode & others and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()) or exchanged:
        raise _foreign(place)


def _is_alone(group: int) -> bool:
    """Whether a group is the private one of this user, as many systems make one for each."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _foreign(place: Path) -> OSError:
    return PermissionError(errno.EPERM, "another user may have written or can exchange it", str(place))


_loads = itertools.count(1)


def load_library(content: bytes, kind: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Load a shared library from memory: from an anonymous file, or from a private copy where there are none.

    Args:
        content: The library.
        kind: What loads a path, such as `ctypes.PyDLL`.

    Raises:
        OSError: it is no library of this machine, or the system forbids to execute it.
    """
    with contextlib.suppress(OSError, AttributeError), _anonymous_file(content) as file:
        # The loader gives back an earlier library of the same path, and descriptors are used again.
        return kind(f"/proc/self/fd/{'./' * next(_loads)}{file.fileno()}")
    # There are no such files here, or they must not be executed.
    with tempfile.TemporaryDirectory(prefix="descend-kernel-", ignore_cleanup_errors=True) as folder:
        PrivateFolder(Path(folder), make=False).close()
        copy = Path(folder, f"{hashlib.sha256(content).hexdigest()}.so")
        copy.write_bytes(content)
        return kind(str(copy))


def _anonymous_file(content: bytes) -> IO[bytes]:
    file = os.fdopen(os.memfd_create("descend-kernel", os.MFD_CLOEXEC), "wb")
    file.write(content)
    file.flush()
    return file
