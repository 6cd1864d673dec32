"""The report: one HTML file that opens offline, and its tables as Markdown and CSV.

Nothing in it depends on when, where or by how many processes a study ran: no times, no paths, rows in the order of the
study. Seconds stand in the records and are shown by `descend study status`.
"""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from descend.display import printable
from descend.errors import StorageError
from descend.runtime.run_directory import write_beside
from descend.study.report import tables
from descend.study.report.sections import Section, sections
from descend.study.report.tables import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from descend.study.results import Comparison

__all__ = ["write"]

_TEMPLATES = Path(__file__).parent


def write(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write a report; see `Comparison.report`."""
    target = Path(path)
    if target.suffix != ".html":
        target = target / "report.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the directory {target.parent}: {error.strerror}") from error
    made = sections(comparison)
    write_beside(target, printable(_html(comparison, made), keep="\n\t"))
    write_beside(target.with_suffix(".md"), printable(_markdown(comparison.study.name, made), keep="\n"))
    write_beside(target.with_suffix(".csv"), _csv([tables.trials(comparison)]))
    others = [part for section in made for part in section.parts if isinstance(part, Table) and part.name != "trials"]
    write_beside(target.with_suffix(".tables.csv"), _long(others))
    return target


def _html(comparison: Comparison, made: Sequence[Section]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = _code
    page = environment.get_template("report.html.jinja")
    return page.render(name=comparison.study.name, ranked=comparison.ranked, sections=made)


def _code(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text)))  # escaped before


def _markdown(name: str, made: Sequence[Section]) -> str:
    lines = [f"# {printable(name)}", ""]
    for section in made:
        shown = [part for part in section.parts if isinstance(part, (str, Table)) and not _is_long(part)]
        if section.kind == "text" or not shown:
            continue
        lines += [f"## {section.title}", ""]
        for part in shown:
            lines += [*([part] if isinstance(part, str) else _rows(part)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _is_long(part: str | Table) -> bool:
    """The trials stand in the CSV file alone."""
    return isinstance(part, Table) and part.name == "trials"


def _rows(table: Table) -> Iterator[str]:
    def cells(row: Iterable[str]) -> str:
        return f"| {' | '.join(printable(cell).replace('|', '/') for cell in row)} |"

    yield f"**{table.name}**"
    yield ""
    yield cells(table.heads)
    yield f"|{'---|' * len(table.heads)}"
    yield from map(cells, table.rows)
    if table.note:
        yield ""
        yield table.note


def _csv(made: Iterable[Table]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for table in made:
        writer.writerow(map(_neutral, table.heads))
        writer.writerows(map(_neutral, row) for row in table.rows)
    return text.getvalue()


def _long(made: Iterable[Table]) -> str:
    """Several tables in one, a cell a line: table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("table", "row", "column", "value"))
    for table in made:
        for number, row in enumerate(table.rows):
            cells = zip(table.heads, row, strict=True)
            writer.writerows((_neutral(table.name), number, _neutral(head), _neutral(cell)) for head, cell in cells)
    return text.getvalue()


def _neutral(cell: str) -> str:
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
