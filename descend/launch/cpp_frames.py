"""Leaves the C++ frames that torch writes to stderr out of what a launcher shows.

A rank that loses another one, or the ranks' key-value store, gets a warning of torch with 10 to 80 lines such as

    Exception raised from recvBytes at .../c10d/Utils.hpp:784 (most recent call first):
    frame #0: c10::Error::Error(...) + 0x9d (0x7f173e979b8d in .../libc10.so)

beside the one line that says what happened. Torch writes them past Python, so only the process that started the ranks
can leave them out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FILE", "FrameFilter", "copy_without_frames"]

FILE = "torch.log"  # of the lines that were left out, in a run directory
_FRAME = re.compile(
    r"(\[\w+\]:\s*)?"
    r"(frame #\d+: |Exception raised from .*\(most recent call first\):|<omitting python frames>"
    r"|C\+\+ CapturedTraceback:|#\d+ .* from .*:\d+$)"
)


class FrameFilter:
    """Says of one line after the other whether it is shown: no frame, and no empty line behind frames."""

    def __init__(self) -> None:
        self._behind = False

    def shows(self, line: str) -> bool:
        """Whether to show the next line."""
        frame = _FRAME.match(line) is not None or (self._behind and not line.strip())
        self._behind = frame
        return not frame


def copy_without_frames(lines: Iterable[str], shown: TextIO, folder: Path | None) -> None:
    """Show all lines but frames, as they come.

    Args:
        lines: What the ranks print.
        shown: Where it goes.
        folder: Where the frames go, each behind the line that they explain, if the folder is there when they come.
    """
    choose, last = FrameFilter(), ""
    for line in lines:
        if choose.shows(line):
            shown.write(line)
            shown.flush()
            last = line
        elif folder is not None and folder.is_dir():
            with (folder / FILE).open("a", encoding="utf-8") as kept:
                kept.write(last + line)
            last = ""
