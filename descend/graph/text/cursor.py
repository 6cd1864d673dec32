"""A place in a text that moves on: spaces, separators, adjacent strings and lists of numbers."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["BLANK", "FLOAT", "SPACE", "STRING", "Cursor"]

# Possessive quantifiers (*+) keep these linear whatever the text is.
SPACE = r"(?:[ \t\r\n\f\v]|#[^\n]*)*+"
STRING = r'"(?:[^"\\\n]|\\.)*+"|' + r"'(?:[^'\\\n]|\\.)*+'"
_MORE_STRING = re.compile(rf"{SPACE}({STRING})")
_SEPARATOR = re.compile(rf"{SPACE}[,;]")
_LIST_END = re.compile(rf"{SPACE}\]")
_NUMBERS = re.compile(r"([-+0-9.eE, \t\r\n]++)\]")
BLANK = re.compile(SPACE)
FLOAT = re.compile(r"-?(?!0[0-9])(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?", re.ASCII)


class Cursor:
    """A text and the place that is read next.

    Attributes:
        text: The whole text.
        position: Index of the next character.
    """

    __slots__ = ("position", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def next_offset(self) -> int:
        """Where the next thing that is not space or comment begins."""
        blank = BLANK.match(self.text, self.position)
        return blank.end() if blank else self.position

    def separator(self) -> None:
        """Step over the comma or semicolon that may end a field."""
        separator = _SEPARATOR.match(self.text, self.position)
        if separator is not None:
            self.position = separator.end()

    def end_of_list(self) -> bool:
        """Step over the bracket that ends a list, and the separator behind it; False if there is none here."""
        end = _LIST_END.match(self.text, self.position)
        if end is not None:
            self.position = end.end()
            self.separator()
        return end is not None

    def joined(self, quoted: str) -> str:
        """The inside of a text in quotes and of those that follow it directly."""
        parts = [quoted[1:-1]]
        while (more := _MORE_STRING.match(self.text, self.position)) is not None:
            parts.append(more.group(1)[1:-1])
            self.position = more.end()
        return "".join(parts)

    def plain_numbers(self, values: Any) -> bool:
        """The quick way through a long list of numbers; anything unusual in it is left to the slow one."""
        numbers = _NUMBERS.match(self.text, self.position)
        if numbers is None:
            return False
        words = numbers.group(1).split(",")
        if not all(map(FLOAT.fullmatch, map(str.strip, words))):
            return False
        found = [float(word) for word in words]
        if not all(map(math.isfinite, found)):
            return False
        values.extend(found)
        self.position = numbers.end()
        self.separator()
        return True
