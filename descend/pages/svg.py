"""Writes SVG: one document, with every text and attribute escaped.

Text comes from files and users: control characters are written as escapes (`descend.terminal.display.printable`), and
what XML gives a meaning (`<`, `>`, `&`, quotes) as entities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NAMESPACE", "attribute", "document", "text"]

NAMESPACE = "http://www.w3.org/2000/svg"  # of `xmlns`, which a file of its own needs and an SVG within HTML does not


def text(content: str) -> str:
    """Any string as the content of an element."""
    return escape(printable(content))


def attribute(value: object) -> str:
    """Any value as that of an attribute, with the quotes around it."""
    return quoteattr(printable(str(value)))


def document(attributes: Mapping[str, object], parts: Iterable[str], separator: str = "") -> str:
    """The `svg` element.

    Args:
        attributes: Of the element, in the order in which they are written; their values are escaped.
        parts: Elements within, as text that is SVG already.
        separator: Stands between the parts, such as a newline.
    """
    head = "".join(f" {name}={attribute(value)}" for name, value in attributes.items())
    return separator.join([f"<svg{head}>", *parts, "</svg>"])
