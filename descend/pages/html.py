"""Pages as one self-contained HTML file: their style, their script, and how figures are numbered."""

from __future__ import annotations

import hashlib
import html
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from descend.pages.chart import vega_lite
from descend.pages.draw import MISSING, drawn_or_nothing, is_installed
from descend.pages.legend import LegendEntry, split_legend
from descend.pages.parts import DeferredFigure, Figure, Section, Table
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Live", "Numbered", "figure_body", "number", "page", "text_with_code"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Numbered:
    """A table or a figure with its number on the page.

    Attributes:
        part: The table or figure.
        number: From 1 up; tables and figures are counted apart.
        spec: Of a figure: its Vega-Lite specification.
        svg: Of a figure: the drawing; "" where it was not drawn.
        legend: Of a figure with several series: these, for buttons on a page.
        without_legend: The drawing without the legend, where the page has buttons in its place.
        source: Of a figure of a page that is served: the address of what stands under its title.
    """

    part: Table | Figure | DeferredFigure
    number: int
    spec: dict[str, Any] | None = None
    svg: str = ""
    legend: tuple[LegendEntry, ...] = ()
    without_legend: str = ""
    source: str = ""

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


def number(
    sections: Iterable[Section], *, charts: bool = True, seconds: float = 120.0, live: Live | None = None
) -> tuple[list[Section], str]:
    """Sections with their tables and figures numbered, and why figures were not drawn, or "".

    Args:
        sections: Of a page. Figures that would show nothing are left out.
        charts: Whether figures are drawn.
        seconds: The longest time that drawing may take.
        live: Of a page that is served; where it takes offers, figures are offered and drawn when they are asked for.
    """
    kept = [
        replace(section, parts=tuple(part for part in section.parts if not _is_empty(part))) for section in sections
    ]
    figures = [part for section in kept for part in section.parts if isinstance(part, (Figure, DeferredFigure))]
    if live is not None and live.offer is not None and charts:
        reason = "" if is_installed() or not figures else MISSING
        ready = iter([_offered(part, place, live, drawn=not reason) for place, part in enumerate(figures, 1)])
    else:
        made = [part.make() if isinstance(part, DeferredFigure) else part for part in figures]
        shown, reason = _drawn(made, charts=charts, seconds=seconds)
        ready = iter(shown)
    tables = iter(range(1, sum(len(section.parts) for section in kept) + 1))

    def numbered(part: Any) -> Any:
        if isinstance(part, (Figure, DeferredFigure)):
            return next(ready)
        return Numbered(part, next(tables)) if isinstance(part, Table) else part

    return [replace(section, parts=tuple(map(numbered, section.parts))) for section in kept], reason


def _drawn(figures: Sequence[Figure], *, charts: bool, seconds: float) -> tuple[list[Numbered], str]:
    """Figures with their drawings."""
    specs = [{"title": None, "description": printable(part.title), **vega_lite(part.chart)} for part in figures]
    drawn, reason = [""] * len(specs), ""
    if charts and figures:
        drawn, reason = drawn_or_nothing(specs, [part.title for part in figures], seconds)
    made: list[Numbered] = []
    for part, spec, svg in zip(figures, specs, drawn, strict=True):
        shown, legend = split_legend(svg, spec)
        made.append(Numbered(part, len(made) + 1, spec, svg, legend, shown))
    return made, reason


def _offered(part: Figure | DeferredFigure, place: int, live: Live, *, drawn: bool) -> Numbered:
    """A figure that a browser asks for."""
    if not drawn or live.offer is None:
        return Numbered(part, place)
    if isinstance(part, DeferredFigure):
        version, make = part.version, part.make
    else:
        version, make = repr(part), lambda: part
    name = hashlib.sha256(f"{part.title}\0{version}".encode(errors="replace")).hexdigest()[:24]
    live.offer(name, make)
    return Numbered(part, place, source=f"figure/{name}/{place}")


def figure_body(make: Callable[[], Figure], seconds: float = 120.0) -> Callable[[int], str]:
    """Draw a figure that was offered.

    Returns:
        From its number on a page to the HTML of what stands under its title.
    """
    figure = make()
    if figure.chart.is_empty:
        return lambda number: '<p class="notice">There is nothing to draw.</p>'
    (one,), reason = _drawn([figure], charts=True, seconds=seconds)
    one = replace(one, spec=None)  # which may take megabytes
    template = _environment().get_template("figure.html.jinja")
    return lambda number: printable(template.render(part=replace(one, number=number), why=reason), keep="\n\t")


def _is_empty(part: Any) -> bool:
    return isinstance(part, Figure) and part.chart.is_empty


@dataclass(frozen=True)
class Live:
    """What a page that is served needs to bring itself up to date.

    Attributes:
        stamp: Changes whenever there is something new.
        url: Where the stamp is asked for.
        home: Where the list of all pages is; "" for none.
        offer: Takes the name of a figure and a function that makes it, to be drawn when `figure/NAME/NUMBER` is asked
            for; None where figures are drawn with the page.
    """

    stamp: str
    url: str
    home: str = ""
    offer: Callable[[str, Callable[[], Figure]], object] | None = None


def page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    reason: str = "",
    ranked: bool = False,
    live: Live | None = None,
) -> str:
    """The text of a page.

    Args:
        title: Its title.
        sections: With tables and figures numbered.
        subtitle: Below the title.
        reason: Why figures were not drawn; shown above everything.
        ranked: Whether a verdict ranks.
        live: Of a page that is served.
    """
    own = {name: Markup((_HERE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js")}
    own["live_js"] = Markup((_HERE / "live.js").read_text(encoding="utf-8"))
    text = (
        _environment()
        .get_template("page.html.jinja")
        .render(title=title, sections=sections, subtitle=subtitle, reason=reason, ranked=ranked, live=live, **own)
    )
    return printable(text, keep="\n\t")


@cache
def _environment() -> jinja2.Environment:
    """Keeps the template, which takes longer to compile than a page to write."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(_HERE)), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = text_with_code
    environment.filters["drawing"] = Markup  # of SVG that was drawn here, whose text is escaped
    return environment


def text_with_code(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text)))  # escaped before
