"""Tables on a terminal: drawn by rich on a terminal, and plain text where a pipe or a file takes the output.

Colour, width and characters are rich's business: `NO_COLOR`, `COLUMNS`, `TERM=dumb` and encodings without line-drawing
characters have the effect that they have elsewhere. Rich is imported for a terminal alone; it costs 0.1 s.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from descend.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = ["Bar", "TextTable", "aligned", "is_terminal", "write"]

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


def is_terminal(stream: IO[str]) -> bool:
    """Whether it is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


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
