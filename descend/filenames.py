"""Names of weights, layers and models as parts of files' names."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["escape", "unescape"]


def escape(name: str) -> str:
    """A name as it is written in a file and in a file's name: `..%2Fx` for `../x`, so that no name is taken for a path.

    `__metadata__`, which means something else in a file of tensors, is `%5F_metadata__`.
    """
    return re.sub(r"[%/\\\x00-\x1f]|^_(?=_metadata__$)|^\.(?=\.?$)", lambda found: f"%{ord(found.group()):02X}", name)


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return unquote(name)
