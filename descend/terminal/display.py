"""Makes text from outside safe to print: names from files, field values, paths. This module imports nothing of ours.

Every name that a file or a user gave goes through `printable` before it reaches a terminal, an SVG, an HTML page, a log
or an error message. Messages of `DescendError` do so by themselves.
"""

from __future__ import annotations

__all__ = ["MAX_LINE", "printable", "shortened"]

MAX_LINE = 2_000  # characters of one line of an error message
_TAIL = 500  # of them at the end, where messages say what to do


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that a terminal or a page may obey written as an escape, such as `\x1b`.

    These are the characters of Unicode's categories "other" and "separator", but for the space: control characters
    (escape sequences of terminals begin with one), newlines and tabs, marks that change the direction of text, other
    characters of no width, lone surrogates, and code points that are not assigned. XML allows all that is left, so only
    `<`, `>`, `&` and quotes still need `xml.sax.saxutils.escape`.

    Args:
        text: Any text.
        keep: Characters that stay as they are, such as newlines of a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escaped(one) for one in text)


def shortened(line: str, limit: int = MAX_LINE) -> str:
    """The line, or its beginning and its end with the number of characters left out between them.

    Args:
        line: Any text.
        limit: The largest number of characters of the result; at least 100.
    """
    if len(line) <= limit:
        return line
    tail = min(_TAIL, limit // 4)
    note = f" ... ({len(line) - limit + 50:,} characters left out) ... "
    return line[: limit - tail - len(note)] + note + line[len(line) - tail :]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
