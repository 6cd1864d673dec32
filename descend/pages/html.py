"""Pages as one HTML file that asks nobody for anything: their style, their script, and how figures are numbered."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from descend.display import printable
from descend.pages.chart import vega_lite
from descend.pages.draw import drawn_or_nothing
from descend.pages.parts import Figure, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Numbered", "number", "page", "text_with_code"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Numbered:
    """A table or a figure with its number on the page.

    Attributes:
        part: The table or figure.
        number: From 1 up; tables and figures are counted apart.
        spec: Of a figure: its Vega-Lite specification.
        svg: Of a figure: the drawing; "" where it was not drawn.
    """

    part: Table | Figure
    number: int
    spec: dict[str, Any] | None = None
    svg: str = ""

    @property
    def kind(self) -> str:
        """What it is, as its title begins."""
        return "Table" if isinstance(self.part, Table) else "Figure"

    @property
    def stem(self) -> str:
        """The name of its files."""
        name = self.part.name if isinstance(self.part, Table) else self.part.title
        words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
        return f"{self.kind.lower()}-{self.number:02d}-{words}".rstrip("-")


def number(parts: Iterable[Any], *, charts: bool = True) -> tuple[list[Any], str]:
    """The parts of a page with tables and figures numbered, and why figures were not drawn, or "".

    Args:
        parts: Tables and figures; everything else stays as it is. Figures that would show nothing are left out.
        charts: Whether figures are drawn.
    """
    found: list[Any] = []
    counts = {Table: 0, Figure: 0}
    kept = [part for part in parts if not (isinstance(part, Figure) and part.chart.is_empty)]
    figures = [part for part in kept if isinstance(part, Figure)]
    specs = [{"title": None, "description": printable(part.title), **vega_lite(part.chart)} for part in figures]
    drawn, reason = [""] * len(specs), ""
    if charts and figures:
        drawn, reason = drawn_or_nothing(specs, [part.title for part in figures])
    ready = iter(zip(specs, drawn, strict=True))
    for part in kept:
        if not isinstance(part, (Table, Figure)):
            found.append(part)
            continue
        counts[type(part)] += 1
        spec, svg = next(ready) if isinstance(part, Figure) else (None, "")
        found.append(Numbered(part, counts[type(part)], spec, svg))
    return found, reason


def page(template: Path, **values: Any) -> str:
    """The text of a page.

    Args:
        template: A file that extends `page.html.jinja`.
        values: What it shows; every text is escaped.
    """
    folders = [str(template.parent), str(_HERE)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = text_with_code
    environment.filters["drawing"] = Markup  # of SVG that was drawn here, whose text is escaped
    environment.filters["json"] = lambda value: Markup(json.dumps(value).replace("<", "\\u003c"))
    for name, file in (("style", "page.css"), ("script", "page.js")):
        values[name] = Markup((_HERE / file).read_text(encoding="utf-8"))
    return printable(environment.get_template(template.name).render(**values), keep="\n\t")


def text_with_code(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text)))  # escaped before
