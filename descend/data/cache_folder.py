"""Finds the folder of a cache, into which other users cannot have put content that would be believed."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from descend.files.private_folder import PrivateFolder, cache_root

__all__ = ["cache_folder", "is_private", "make_private"]


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
