"""What pages are made of: tables and figures, numbered where they are put together."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from descend.pages.chart import Chart

__all__ = ["DeferredFigure", "Drawing", "Figure", "Links", "Section", "Table", "as_csv", "as_latex", "neutral"]


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads.

    Attributes:
        name: Its title, and its name in CSV files.
        heads: Of the columns.
        rows: As text.
        note: Remarks on it, and the records that it was computed from.
    """

    name: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def title(self) -> str:
        """The name as a title."""
        return self.name[:1].upper() + self.name[1:]


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        title: What it shows.
        chart: The series and axes.
        caption: How to read it, and the records it came from.
    """

    title: str
    chart: Chart
    caption: str = ""


@dataclass(frozen=True)
class DeferredFigure:
    """A figure of a page that is served, made when it is asked for.

    Attributes:
        title: What it shows.
        version: Text that changes with what it shows.
        make: Makes it.
    """

    title: str
    version: str
    make: Callable[[], Figure]


@dataclass(frozen=True)
class Drawing:
    """A drawing that is SVG already, such as a graph of layers.

    Attributes:
        label: What it shows.
        svg: The drawing, with its text escaped.
    """

    label: str
    svg: str


@dataclass(frozen=True)
class Links:
    """Links to other pages.

    Attributes:
        label: What they lead to.
        places: Address and text of each.
    """

    label: str
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its head.
        parts: Sentences, tables, figures and drawings.
        kind: "verdict" and "text" are shown in their own ways.
    """

    title: str
    parts: tuple[Any, ...]
    kind: str = ""


def as_csv(made: Iterable[Table]) -> str:
    """Tables as CSV, one below the other."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for table in made:
        writer.writerow(map(neutral, table.heads))
        writer.writerows(map(neutral, row) for row in table.rows)
    return text.getvalue()


def neutral(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: an apostrophe stands before =, +, - and @.

    Control characters are escapes. Numbers stay as they are. Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
    """
    cell = printable(cell)
    if cell == "-" or not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return f"'{cell}"
    return cell


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "‖": r"$\Vert$",
    "²": r"$^2$",
    "Σ": r"$\Sigma$",
    "−": r"$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "→": r"$\rightarrow$",
}


def as_latex(table: Table, label: str) -> str:
    r"""A table for a paper, with the rules of the package `booktabs`.

    Args:
        table: The table.
        label: For `\ref`.
    """

    def text(cell: str) -> str:
        return "".join(_LATEX.get(one, one) for one in printable(cell))

    def line(cells: Iterable[str]) -> str:
        return "  " + " & ".join(map(text, cells)) + r" \\"

    columns = "".join("r" if _is_numbers(table, column) else "l" for column in range(len(table.heads)))
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{text(table.title)}. {text(table.note)}}}".replace(". }", ".}"),
            rf"  \label{{{label}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"  \toprule",
            line(table.heads),
            r"  \midrule",
            *map(line, table.rows),
            r"  \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _is_numbers(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] not in ("", "-")]
    return bool(cells) and all(cell.replace(",", "").replace(".", "").lstrip("+-").isdigit() for cell in cells)
