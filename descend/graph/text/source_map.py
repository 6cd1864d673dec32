"""Where each value of a text stands, and the message that was read from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Parsed", "SourceMap", "TextPosition"]

_STEP = re.compile(r"([^.\[\]]+)(?:\[(\d+)\])?")


class TextPosition:
    """Where a message begins, and where each of its fields does, in the order of the text.

    Attributes:
        offset: Index into the text of the field name that opened the message.
        parts: Pairs of a field's name and its offset, or its Place for a message. A list costs half of what a
            dictionary would.
    """

    __slots__ = ("offset", "parts")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.parts: list[tuple[str, int | TextPosition]] = []

    def by_field(self) -> dict[str, list[int | TextPosition]]:
        """The parts by field name; an entry for each time the field is given."""
        found: dict[str, list[int | TextPosition]] = {}
        for name, part in self.parts:
            found.setdefault(name, []).append(part)
        return found


@dataclass(frozen=True)
class SourceMap:
    """A text and its name, for saying where something stands."""

    file: str
    text: str = field(repr=False)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def at(self, offset: int) -> str:
        """file:line:column, both counted from 1."""
        line = bisect_right(self._line_starts, offset)
        return f"{self.file}:{line}:{offset - self._line_starts[line - 1] + 1}"


@dataclass(frozen=True)
class Parsed:
    """A message that was read, with the place of each of its values.

    Attributes:
        message: The protobuf message.
        source: The text; a binary form has none, so its places are the file's name alone.
        place: Where the values stand, or None for a binary form.
    """

    message: Message
    source: SourceMap
    place: TextPosition | None

    def where(self, path: str = "") -> str:
        """The place of a value, such as `where("model.layer[3].name")`, or of what encloses it."""
        place: int | TextPosition | None = self.place
        if place is None:
            return self.source.file
        for name, index in _STEP.findall(path):
            if not isinstance(place, TextPosition):
                break
            # A list in brackets is one part however many entries it has.
            parts = place.by_field().get(name)
            if parts is None:
                break
            place = parts[min(int(index or 0), len(parts) - 1)]
        return self.source.at(place.offset if isinstance(place, TextPosition) else place)
