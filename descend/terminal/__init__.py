"""Lines and tables on a terminal: drawn by rich on a terminal, and plain text where a pipe or a file takes the output.

Nothing that is printed during a run may stop it: `emit` writes to a stream that may be closed, broken or full, and a
`TolerantStream` is such a stream for others to write to.

Colour, width and characters are rich's business: `NO_COLOR`, `COLUMNS`, `TERM=dumb` and encodings without line-drawing
characters have the effect that they have elsewhere. Rich is imported for a terminal alone; it costs 0.1 s.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None

__all__ = [
    "Bar",
    "TextTable",
    "TolerantStream",
    "aligned",
    "emit",
    "hold_standard_streams",
    "is_terminal",
    "is_tty",
    "write",
]

_GAP = 2  # spaces between columns
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class TextTable:
    """Cells under heads.

    Attributes:
        rows: The heads, then the rows, each with as many cells. The second and further lines of a cell are remarks.
        right: Heads of the columns that are aligned at the right.
    """

    rows: Sequence[Sequence[str]]
    right: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bar:
    """How much is done.

    Attributes:
        done: Parts that are.
        total: All parts.
    """

    done: int
    total: int


def is_tty(stream: IO[str] | None) -> bool:
    """Whether it is a terminal; one that is closed, or missing as in a process without output, is none."""
    try:
        return stream is not None and stream.isatty()
    except (ValueError, OSError):
        return False


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether it is a terminal that can move its cursor."""
    return is_tty(stream) and os.environ.get("TERM", "") not in ("", "dumb")


def emit(text: str, stream: IO[str] | None) -> bool:
    """Write text at once. Where that cannot be done the text is lost, and nothing else happens.

    Args:
        text: With the newline at its end.
        stream: Such as `sys.stdout`, which may be closed, a pipe without a reader, or a file on a full disk. Letters
            that its encoding does not have are written as escapes.

    Returns:
        Whether it was written.
    """
    if stream is None:
        return False
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):  # ValueError: the stream is closed
        _drop_buffer(stream)
        return False
    return True


def _drop_buffer(stream: IO[str]) -> None:
    """Forget what a stream holds back, which Python would write at its end, and end with an error of its own."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        with Path(os.devnull).open("wb") as nowhere:
            try:
                before = os.dup(descriptor)
            except OSError:  # closed: from now on its number belongs to no other file either
                os.dup2(nowhere.fileno(), descriptor)
                stream.flush()
                return
            try:
                if _is_for_writing(descriptor):  # else its number belongs to another file by now
                    os.dup2(nowhere.fileno(), descriptor)
                    stream.flush()
                    os.dup2(before, descriptor)
            finally:
                os.close(before)


def _is_for_writing(descriptor: int) -> bool:
    if fcntl is None:
        return True
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) and not flags & getattr(os, "O_PATH", 0)


def hold_standard_streams() -> None:
    """Give the numbers of standard streams that were closed to the null device, before a file of ours gets them.

    What is printed would be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


class TolerantStream:
    """A stream that loses what cannot be written, for libraries that draw on it.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """See `emit`."""
        emit(text, self._stream)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """See `is_tty`."""
        return is_tty(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def aligned(table: TextTable) -> list[str]:
    """The lines of a table in plain text."""
    widths = [max(map(len, column)) for column in zip(*table.rows, strict=True)]
    right = [head in table.right for head in table.rows[0]]
    lines = [
        (" " * _GAP).join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        for row in table.rows
    ]
    return [line.rstrip() for line in lines]


def write(plain: str, parts: Iterable[str | Bar | TextTable], stream: IO[str] | None = None) -> None:
    """Write `parts` to a terminal, and `plain`, which says the same, to anything else.

    Args:
        plain: Lines without a newline at their end.
        parts: Lines, bars and tables.
        stream: Standard output by default.
    """
    to: IO[str] = stream or sys.stdout
    if not is_terminal(to):
        to.write(printable(plain, keep="\n\t") + "\n")
        return
    from rich.console import Console

    console = Console(file=to, highlight=False, markup=False, emoji=False, soft_wrap=False)
    for part in parts:
        console.print(_drawn(part, console))


def _drawn(part: str | Bar | TextTable, console: Console) -> RenderableType:
    if isinstance(part, Bar):
        return _bar(part, console.width)
    if isinstance(part, str):
        return _text(part, keep="\n\t")
    safe = TextTable([[printable(cell, keep="\n") for cell in row] for row in part.rows], part.right)
    if widths := _widths(safe, console.width):
        return _table(safe, widths)
    common, rest = _split_common(safe)
    widths = _widths(rest, console.width)
    drawn = _table(rest, widths) if widths else _records(rest)
    if not common:
        return drawn
    from rich.console import Group

    return Group(_text(f"in all rows: {common}", "dim"), drawn)


def _text(text: str, style: str = "", keep: str = "") -> Text:
    from rich.text import Text

    return Text(printable(text, keep=keep), style, overflow="fold")


def _bar(bar: Bar, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    total = max(bar.total, 1)
    drawn = Table.grid(padding=(0, 1))
    drawn.add_row(ProgressBar(total, bar.done, width=min(width - 6, 60)), f"{bar.done / total:.0%}")
    return drawn


def _widths(table: TextTable, width: int) -> list[int]:
    """The widths of the columns of a table that is at most so wide; none where words of cells would be broken."""
    from rich.cells import cell_len

    columns = list(zip(*table.rows, strict=True))
    least = [max(cell_len(word) for cell in column for word in _SPACES.split(cell)) for column in columns]
    widths = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    room = width - _GAP * len(columns)
    if sum(least) > room:
        return []
    while sum(widths) > room:  # the widest first, so that a short cell such as a shape stays on one line
        place = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: (widths[at], at))
        widths[place] -= 1
    return widths


def _split_common(table: TextTable) -> tuple[str, TextTable]:
    """What all rows of a table have in common, and the table without it."""
    heads, *rows = table.rows
    columns = list(zip(*rows, strict=True))
    differ = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if len(rows) < 2 or not differ:
        return "", table
    same = [f"{heads[at]} {column[0]}" for at, column in enumerate(columns) if at not in differ and column[0]]
    return "; ".join(same), TextTable([[row[at] for at in differ] for row in table.rows], table.right)


def _table(table: TextTable, widths: Sequence[int]) -> RenderableType:
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    heads, *rows = table.rows
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        justify = "right" if head in table.right else "left"
        drawn.add_column(_text(head), style="" if number else "cyan", justify=justify, width=width)
    for row in rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(text: str) -> Text:
    first, _, rest = text.partition("\n")
    cell = _text(first)
    return cell.append(_text(f"\n{rest}", "dim", keep="\n")) if rest else cell


def _records(table: TextTable) -> RenderableType:
    """A block for each row, for a terminal too narrow for columns: its first cell, and under it those with content."""
    from rich.console import Group
    from rich.padding import Padding

    heads, *rows = table.rows
    blocks: list[Any] = []
    for row in rows:
        blocks.append(_text(f"{heads[0]} {row[0]}", "cyan"))
        said = _text("")
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell:
                said.append("; " if said else "").append(_text(f"{head} ", "dim")).append(_cell(cell))
        blocks.append(Padding(said, (0, 0, 0, _GAP)))
    return Group(*blocks)
