"""Lines of a table of text that are no rows of it: comments, and Excel's first line `sep=;`.

A copy without them is parsed in place of the file. It is in UTF-8; bytes of such a file that are none stay as they are.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import weakref
from pathlib import Path

from descend.data.expansion import opened
from descend.data.paths import head

__all__ = ["TableCopy", "excel_separator"]

_EXCEL = re.compile(rb"(?:\xef\xbb\xbf)?sep=([^\r\n])\r?\n")
_AT_ONCE = 2**20  # characters


def excel_separator(path: Path) -> str | None:
    """The separator that the first line names as Excel writes it, in a file of UTF-8."""
    found = _EXCEL.match(head(path))
    return None if found is None else found[1].decode("latin-1")


class TableCopy:
    """A copy of a file without such lines; it is removed with this object.

    Args:
        path: Of the file.
        encoding: Of the file.
        comment: What lines begin with that are left out; None keeps all.
        quote: A line within a cell that is quoted by this is kept.

    Attributes:
        path: Of the copy.
    """

    def __init__(self, path: Path, encoding: str, comment: str | None, quote: str) -> None:
        handle, name = tempfile.mkstemp(prefix="descend-lines-", suffix=path.name.removesuffix(".gz")[-20:])
        self.path = Path(name)
        weakref.finalize(self, self.path.unlink, missing_ok=True)
        skipped = excel_separator(path) is not None
        is_utf8 = encoding.replace("_", "-").lower() in ("utf-8", "utf8")
        name, errors = ("utf-8-sig", "surrogateescape") if is_utf8 else (encoding, "replace")
        with (
            io.TextIOWrapper(opened(path), encoding=name, errors=errors, newline="") as file,
            os.fdopen(handle, "w", encoding="utf-8", errors=errors, newline="") as copy,
        ):
            begins, inside, left_out = True, False, skipped
            while part := file.readline(_AT_ONCE):
                if begins and not inside and not left_out:
                    left_out = comment is not None and part.startswith(comment)
                if not left_out:
                    copy.write(part)
                    inside ^= part.count(quote) % 2 == 1
                begins = part.endswith(("\n", "\r"))
                left_out = left_out and not begins
