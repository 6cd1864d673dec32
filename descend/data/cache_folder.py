"""Finds the folder of a cache, into which other users cannot have put content that would be believed."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from descend.private_folder import cache_root

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
    """Whether a folder exists and is of this user, and no other one may write into it."""
    try:
        state = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):  # a system without owners in these terms
        return True
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_private(folder: Path) -> bool:
    """Make a folder, and those above it that are missing, for this user alone; whether it is private then.

    Raises:
        OSError: it cannot be made.
    """
    for missing in [one for one in (folder, *folder.parents) if not one.exists()][::-1]:
        missing.mkdir(mode=0o700, exist_ok=True)
    return is_private(folder)
