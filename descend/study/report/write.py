"""The report: one HTML file that opens offline, and its tables as Markdown and CSV.

Nothing in it depends on when, where or by how many processes a study ran: no times, no paths, rows in the order of the
study. Seconds stand in the records and are shown by `descend study status`.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from descend.runtime.run_directory import write_beside
from descend.study.report import figures

if TYPE_CHECKING:
    import os

    from descend.study.results import Comparison

__all__ = ["write"]

_TEMPLATES = Path(__file__).parent


def write(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write a report; see `Comparison.report`."""
    target = Path(path)
    if target.suffix != ".html":
        target = target / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_beside(target, _html(comparison))
    write_beside(target.with_suffix(".md"), _markdown(comparison))
    write_beside(target.with_suffix(".csv"), _csv(comparison))
    return target


def _html(comparison: Comparison) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.jinja").render(
        comparison=comparison,
        study=comparison.study,
        figures=figures,
        described=json.dumps(comparison.study.plain(), indent=2),
        rows=_trials(comparison),
        table=comparison.rows,
    )


def _trials(comparison: Comparison) -> list[dict[str, Any]]:
    """Every trial: its name, settings, end and scores."""
    study = comparison.study
    return [
        {
            "trial": name,
            "status": record.status if record.failed_at is None else f"{record.status} at update {record.failed_at}",
            "seed": record.trial.seed,
            "train": _short(record.final("train", study.metric)),
            "validation": _short(record.final("validation", study.metric)),
            "settings": ", ".join(
                f"{key}={_short(record.trial.configuration[key])}"
                for key in (study.arms[record.trial.arm].space if record.trial.arm in study.arms else ())
            ),
        }
        for name, record in comparison.records.items()
    ]


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _markdown(comparison: Comparison) -> str:
    heads, *rows = comparison.rows
    lines = [f"# {comparison.study.name}", "", *comparison.verdict.splitlines(), ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    lines += ["", "| arm | trials | updates | samples | how they ended |", "|---|---|---|---|---|"]
    for name, bill in comparison.costs.items():
        ended = ", ".join(f"{count} {status}" for status, count in bill.statuses.items())
        lines.append(f"| {name} | {bill.trials:,} | {bill.steps:,} | {bill.samples:,} | {ended} |")
    lines += ["", *(f"- {remark}" for remark in comparison.remarks)]
    return "\n".join(lines).rstrip() + "\n"


def _csv(comparison: Comparison) -> str:
    text = io.StringIO()
    rows = _trials(comparison)
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
