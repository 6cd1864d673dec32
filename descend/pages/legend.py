"""The legend of a drawn chart as buttons of a page, by which a reader singles out series.

Vega's SVG is a picture; its groups are named after the layers of the specification, and each layer has one series. So
a button needs to know the numbers of its layers, and the script of the page fades the groups of the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LegendEntry", "split_legend"]

_SVG = "http://www.w3.org/2000/svg"
_G = f"{{{_SVG}}}g"
_ROOM = 4  # pixels under the axis
_LINE = re.compile(r"M-[\d.]+,0L[\d.]+,0")
ET.register_namespace("", _SVG)


@dataclass(frozen=True)
class LegendEntry:
    """One series in a legend.

    Attributes:
        name: Of the series.
        symbol: An SVG of its line or mark.
        layers: Numbers of the layers of the specification that draw it.
    """

    name: str
    symbol: str
    layers: tuple[int, ...]


def split_legend(svg: str, spec: Mapping[str, Any]) -> tuple[str, tuple[LegendEntry, ...]]:
    """A drawing without its legend, and the legend's entries; the drawing as it is where it has fewer than two.

    Args:
        svg: Drawn by `descend.pages.draw`, or "".
        spec: Its specification, of `descend.pages.chart`.
    """
    names = spec["encoding"]["color"]["scale"]["domain"]
    if "role-legend" not in svg or len(names) < 2:
        return svg, ()
    root = ET.fromstring(svg)
    parents = {child: parent for parent in root.iter() for child in parent}
    legend = next(one for one in root.iter(_G) if "role-legend" in one.get("class", "").split())
    symbols = [one[0] for one in legend.iter(_G) if "role-legend-symbol" in one.get("class", "")]
    if len(symbols) != len(names):  # a long legend that Vega has cut
        return svg, ()
    layers: dict[str, list[int]] = {name: [] for name in names}
    for number, layer in enumerate(spec["layer"]):
        layers[layer["data"]["values"][0]["series"]].append(number)
    top, at = 0.0, legend[0]
    while at is not root:
        top, at = top + _shifted_down(at), parents[at]
    parents[legend].remove(legend)
    _cut(root, top)
    entries = (LegendEntry(name, _symbol(one), tuple(layers[name])) for name, one in zip(names, symbols, strict=True))
    return ET.tostring(root, encoding="unicode"), tuple(entries)


def _shifted_down(group: ET.Element) -> float:
    found = re.match(r"translate\([-\d.]+,([-\d.]+)\)", group.get("transform", ""))
    return float(found.group(1)) if found else 0.0


def _cut(root: ET.Element, height: float) -> None:
    """End the picture at a height."""
    left, top, width, _ = root.get("viewBox", "").split()
    shown = f"{height - _ROOM / 2:g}"
    root.set("viewBox", f"{left} {top} {width} {shown}")
    root.set("height", shown)


def _symbol(path: ET.Element) -> str:
    attributes = {name: value for name, value in path.attrib.items() if name != "transform"}
    if _LINE.fullmatch(attributes["d"]):  # long enough to show its dashes
        attributes["d"] = "M-13,0L13,0"
    size = {"class": "swatch", "viewBox": "-13 -7 26 14", "width": "26", "height": "14", "aria-hidden": "true"}
    drawing = ET.Element(f"{{{_SVG}}}svg", size)
    ET.SubElement(drawing, path.tag, attributes)
    return ET.tostring(drawing, encoding="unicode")
