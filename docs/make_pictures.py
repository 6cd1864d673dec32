"""Draws the README's two pictures from records of `examples/studies`: python docs/make_pictures.py

A test compares them with the records.
"""

from __future__ import annotations

import re
from pathlib import Path

from descend.study import read_directory
from descend.study.report import figures

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "drawings"
STUDIES = ROOT / "examples" / "studies"


def alone(picture: str) -> str:
    """A figure of a report as a file of its own: with a background, and the namespace of SVG."""
    begun = picture.replace("<svg ", "<svg xmlns='http://www.w3.org/2000/svg' width='700' height='360' ", 1)
    return re.sub(r"(<svg[^>]*>)", r"\1<rect width='100%' height='100%' fill='#ffffff'/>", begun, count=1) + "\n"


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
