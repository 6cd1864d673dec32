"""Equations written as plain text, as in the docstrings of the rules, set as MathML, which browsers draw by themselves.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ        v̂ = vₜ / (1 − β₂ᵗ)

A line is a row, and three spaces or more part its columns. Subscripts, superscripts, accents, roots, fractions and
brackets are set as such; words that are no symbols stay text. Only the standard library is used.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["is_equation", "mathml"]

_SUB = "₀₁₂₃₄₅₆₇₈₉₊₋ₐₑₕᵢₖₗₘₙₒₚᵣₛₜᵤₓ"
_SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵗʳᵀⁿᵏ⁻"
_CLOSING = {"(": ")", "[": "]", "‖": "‖", "|": "|", "⟨": "⟩"}
_ACCENTS = {"\u0302": "^", "\u0304": "¯", "\u0303": "~"}
_SYMBOLS = frozenset({"lr"})  # symbols of more than one letter

_TOKEN = re.compile(
    rf"(?P<gap>\s+)"
    rf"|(?P<number>\d+(?:\.\d+)?(?:e[-−]?\d+)?|½)"
    rf"|(?P<quoted>\"[^\"]*\"|`[^`]*`)"
    rf"|(?P<word>[A-Za-z]{{2,}}\d*(?:[_-][A-Za-z]+)*(?:'s)?)"
    rf"|(?P<letter>[^\W\d_{_SUB}{_SUPER}][\u0300-\u036f]?)"
    rf"|(?P<sub>[{_SUB}]+|_[A-Za-z]+)"
    rf"|(?P<super>[{_SUPER}]+|′)"
    rf"|(?P<other>.)"
)
_IS_EQUATION = re.compile(r"[=←]")
_MARKS = re.compile(rf"[{_SUB}{_SUPER}√‖Σβμλε]|\u0302")


def is_equation(text: str) -> bool:
    """Whether an indented block of a docstring is equations and no program."""
    return bool(_IS_EQUATION.search(text) and _MARKS.search(text))


def mathml(text: str) -> str:
    """A block of equations as one `<math>` element."""
    rows = []
    for line in textwrap.dedent(text).splitlines():
        if line.strip():
            cells = [_Parser(cell).row() for cell in re.split(r" {3,}", line.strip())]
            if line.startswith(" "):
                cells[0] = f"<mspace width='2em'/>{cells[0]}"
            rows.append("".join(f"<mtd style='text-align: left'>{cell}</mtd>" for cell in cells))
    body = "".join(f"<mtr>{row}</mtr>" for row in rows)
    return f'<math display="block"><mtable displaystyle="true">{body}</mtable></math>'


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


@dataclass(frozen=True)
class _Node:
    """A piece of MathML; `inner` is what stands between its brackets, `atom` whether it can be part of a fraction."""

    markup: str
    atom: bool = True
    inner: str | None = None

    @property
    def bare(self) -> str:
        """Without round brackets, which a fraction or a root makes superfluous."""
        return self.markup if self.inner is None else f"<mrow>{self.inner}</mrow>"


class _Parser:
    """Reads one cell from left to right."""

    def __init__(self, cell: str) -> None:
        self.tokens = [_Token(str(found.lastgroup), found.group()) for found in _TOKEN.finditer(cell)]
        self.at = 0

    def row(self) -> str:
        """The whole cell."""
        return "<mrow>" + "".join(node.markup for node in self._until(None)) + "</mrow>"

    def _kind(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].kind if 0 <= place < len(self.tokens) else ""

    def _text(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].text if 0 <= place < len(self.tokens) else ""

    def _until(self, closing: str | None) -> list[_Node]:
        nodes: list[_Node] = []
        while self.at < len(self.tokens) and (closing is None or self._text() != closing):
            if self._kind() == "gap":
                self.at += 1
                if nodes and nodes[-1].atom and self._text() not in "/":
                    nodes.append(_Node("<mspace width='0.25em'/>", atom=False))
            elif self._text() == "/" and nodes and nodes[-1].atom:
                self._fraction(nodes)
            else:
                nodes.append(self._scripted())
        return nodes

    def _fraction(self, nodes: list[_Node]) -> None:
        self.at += 1
        if self._kind() == "gap":
            self.at += 1
        below = self._scripted()
        above = nodes.pop()
        nodes.append(_Node(f"<mfrac>{above.bare}{below.bare}</mfrac>"))

    def _scripted(self) -> _Node:
        """An atom with what is written below and above it."""
        node = self._atom()
        if not node.atom:
            return node
        below = self._script("sub")
        above = self._script("super")
        if below and above:
            return _Node(f"<msubsup>{node.markup}{below}{above}</msubsup>")
        if below or above:
            tag = "msub" if below else "msup"
            return _Node(f"<{tag}>{node.markup}{below or above}</{tag}>")
        return node

    def _script(self, kind: str) -> str:
        """What stands below or above an atom, or nothing."""
        text = self._text()
        if self._kind() != kind and not (kind == "super" and text == "^"):
            return ""
        self.at += 1
        return self._scripted().bare if text == "^" else _script(text)

    def _atom(self) -> _Node:
        kind, text = self._kind(), self._text()
        self.at += 1
        if kind == "number":
            return _Node(f"<mn>{escape(text)}</mn>")
        if kind == "letter":
            return self._applied(self._prose_article(text))
        if kind == "word":
            if self._text() == "(" or text in _SYMBOLS or "_" in text:
                return self._applied(_Node(f"<mi mathvariant='normal'>{escape(text)}</mi>"))
            return _Node(_prose(text), atom=False)
        if kind == "quoted":
            return _Node(f"<mtext>{escape(text.strip('`'))}</mtext>", atom=False)
        if text == "√":
            return _Node(f"<msqrt>{self._scripted().bare}</msqrt>")
        if text in _CLOSING:
            return self._group(text)
        return _Node(f"<mo>{escape(text)}</mo>", atom=False)

    def _prose_article(self, text: str) -> _Node:
        """A letter as a symbol, but for the article in "mean over a row"."""
        between_words = self._kind(-3) == "word" == self._kind(1) and self._kind(0) == "gap"
        return _Node(_prose(text), atom=False) if text == "a" and between_words else _Node(_letter(text))

    def _applied(self, name: _Node) -> _Node:
        """A function with its arguments, which follow without a gap."""
        if self._text() != "(" or not self._closes("("):
            return name
        self.at += 1
        return _Node(f"<mrow>{name.markup}{self._group('(').markup}</mrow>")

    def _closes(self, opening: str) -> bool:
        return any(token.text == _CLOSING[opening] for token in self.tokens[self.at + 1 :])

    def _group(self, opening: str) -> _Node:
        closing = _CLOSING[opening]
        if all(token.text != closing for token in self.tokens[self.at :]):
            return _Node(f"<mo>{escape(opening)}</mo>", atom=False)
        inner = "".join(node.markup for node in self._until(closing))
        self.at += 1
        markup = f"<mrow><mo>{escape(opening)}</mo>{inner}<mo>{escape(closing)}</mo></mrow>"
        return _Node(markup, inner=inner if opening == "(" else None)


def _prose(text: str) -> str:
    return f"<mtext>&#160;{escape(text)}&#160;</mtext>"


def _letter(text: str) -> str:
    base, *marks = unicodedata.normalize("NFD", text)
    accent = next((_ACCENTS[mark] for mark in marks if mark in _ACCENTS), None)
    symbol = f"<mi>{escape(base)}</mi>"
    return f"<mover accent='true'>{symbol}<mo>{accent}</mo></mover>" if accent else f"<mi>{escape(text)}</mi>"


def _script(text: str) -> str:
    if text == "′":
        return "<mo>′</mo>"
    plain = text.removeprefix("_") if text.startswith("_") else unicodedata.normalize("NFKC", text)
    parts: Sequence[str] = [plain] if text.startswith("_") else re.findall(r"\d+|.", plain)
    tags = [("mn" if part.isdecimal() else "mi" if part.isalpha() else "mo", part) for part in parts]
    return "<mrow>" + "".join(f"<{tag}>{escape(part)}</{tag}>" for tag, part in tags) + "</mrow>"
