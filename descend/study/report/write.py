"""The report: an HTML file that opens offline, tables as Markdown, CSV and LaTeX, figures as Vega-Lite and SVG.

    report.html            everything, with the figures in it
    report.md              sentences and tables
    report.csv             every trial
    report.tables.csv      all other tables, a cell a line
    report.parts/          table-NN-NAME.csv and .tex; figure-NN-NAME.vl.json, the specification with its data, and .svg

Nothing in it depends on when, where or by how many processes a study ran: no times, no paths, rows in the order of the
study. Seconds stand in the records and are shown by `descend study status`, and here only where they are asked for.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

from descend.errors import StorageError
from descend.pages.html import Live, Numbered, number, page
from descend.pages.parts import Table, as_csv, as_latex, neutral
from descend.runtime.run_directory import write_beside
from descend.study.report import tables
from descend.study.report.sections import sections
from descend.terminal.display import printable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from descend.pages.parts import Section
    from descend.study.results import Comparison

__all__ = ["report_page", "write"]

_PART = re.compile(r"(table|figure)-\d\d+-?[a-z0-9-]*\.(csv|tex|vl\.json|svg)")


def write(comparison: Comparison, path: str | os.PathLike[str], *, seconds: bool = False) -> Path:
    """Write a report; see `Comparison.report`."""
    target = Path(path)
    if target.suffix != ".html":
        target = target / "report.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the directory {target.parent}: {error.strerror}") from error
    made = sections(comparison, seconds=seconds)
    shown, reason = number(made)
    name = comparison.study.name
    write_beside(target, page(name, shown, ranked=comparison.ranked, reason=reason))
    write_beside(target.with_suffix(".md"), printable(_markdown(name, shown), keep="\n"))
    write_beside(target.with_suffix(".csv"), as_csv([tables.trials(comparison)]))
    others = [part for section in made for part in section.parts if isinstance(part, Table) and part.name != "trials"]
    write_beside(target.with_suffix(".tables.csv"), _long(others))
    _write_parts(
        target.with_suffix(".parts"),
        [part for section in shown for part in section.parts if isinstance(part, Numbered)],
    )
    return target


def report_page(comparison: Comparison, live: Live) -> str:
    """The text of `report.html`, to be served."""
    shown, reason = number(sections(comparison), live=live)
    return page(comparison.study.name, shown, ranked=comparison.ranked, reason=reason, live=live)


def _write_parts(folder: Path, parts: Sequence[Numbered]) -> None:
    """A file or two for each table and figure; those of an earlier report that are no part of this one are removed."""
    files: dict[str, str] = {}
    for one in parts:
        if isinstance(one.part, Table):
            files[f"{one.stem}.csv"] = as_csv([one.part])
            files[f"{one.stem}.tex"] = as_latex(one.part, f"tab:{one.stem.removeprefix('table-')}")
        else:
            files[f"{one.stem}.vl.json"] = json.dumps(one.spec, indent=1) + "\n"
            if one.svg:
                files[f"{one.stem}.svg"] = one.svg + "\n"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the directory {folder}: {error.strerror}") from error
    for name, text in files.items():
        write_beside(folder / name, text)
    for old in folder.iterdir():
        if old.name not in files and _PART.fullmatch(old.name):
            old.unlink()


def _markdown(name: str, made: Sequence[Section]) -> str:
    lines = [f"# {printable(name)}", ""]
    for section in made:
        shown = [part for part in section.parts if isinstance(part, str) or _is_short(part)]
        if section.kind == "text" or not shown:
            continue
        lines += [f"## {section.title}", ""]
        for part in shown:
            lines += [*([part] if isinstance(part, str) else _rows(cast("Numbered", part))), ""]
    return "\n".join(lines).rstrip() + "\n"


def _is_short(part: object) -> bool:
    """A table other than that of the trials, which stand in the CSV file alone."""
    return isinstance(part, Numbered) and isinstance(part.part, Table) and part.part.name != "trials"


def _rows(numbered: Numbered) -> Iterator[str]:
    table = numbered.part
    if not isinstance(table, Table):
        return

    def cells(row: Iterable[str]) -> str:
        return f"| {' | '.join(printable(cell).replace('|', '/') for cell in row)} |"

    yield f"**Table {numbered.number}. {table.title}**"
    yield ""
    yield cells(table.heads)
    yield f"|{'---|' * len(table.heads)}"
    yield from map(cells, table.rows)
    if table.note:
        yield ""
        yield table.note


def _long(made: Iterable[Table]) -> str:
    """Several tables in one, a cell a line: table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("table", "row", "column", "value"))
    for table in made:
        for place, row in enumerate(table.rows):
            cells = zip(table.heads, row, strict=True)
            writer.writerows((neutral(table.name), place, neutral(head), neutral(cell)) for head, cell in cells)
    return text.getvalue()
