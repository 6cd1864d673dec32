"""Draws the README's two pictures from records of `examples/studies`: python docs/make_pictures.py

A test compares them with the records.
"""

from __future__ import annotations

from pathlib import Path

from descend.pages.chart import Chart, vega_lite
from descend.pages.draw import draw
from descend.study import read_directory
from descend.study.report import figures

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "drawings"
STUDIES = ROOT / "examples" / "studies"


def alone(chart: Chart) -> str:
    """A figure of a report as a file of its own, with a background."""
    (picture,) = draw([{**vega_lite(chart), "background": "#ffffff"}])
    return picture.replace("currentColor", "#222222") + "\n"


def pictures() -> dict[str, str]:
    """Names of the files with what they hold."""
    scaling = read_directory(STUDIES / "batch_size" / "scaling")
    lars = read_directory(STUDIES / "nesterov_lars" / "confirmatory")
    return {
        "batch_size.svg": alone(figures.scaling(scaling)),
        "nesterov_lars.svg": alone(figures.rates(lars, lars.groups[0])),
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
