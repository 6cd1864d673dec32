"""Options of `read` as words of a command line: label=kind, length=128, columns=a,b, header=false."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from descend.arguments import shown
from descend.data.file_format import option_names
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["parsed_options"]

_LISTS = ("fields", "columns", "classes", "key", "target", "missing", "text")
_TEXTS = ("separator", "tokenizer", "label", "format", "role", "quote", "escape", "comment", "encoding", "colors")
_ESCAPES = {"\\t": "\t", "\\n": "\n"}


def parsed_options(words: Iterable[str]) -> dict[str, Any]:
    """The options that some words say: lists are separated by commas, or any value is JSON.

    Raises:
        ConfigurationError: a word is not NAME=VALUE, an option does not exist, or one comes twice.
    """
    known = ["fields", "role", "target", *option_names()]
    found: dict[str, Any] = {}
    for word in words:
        name, equal, text = word.partition("=")
        if not equal or not (text or name == "quote"):
            raise ConfigurationError(f"an option of the data must be NAME=VALUE, got {shown(word)}")
        if name not in known:
            raise ConfigurationError(
                f"the data have no option {shown(name)}{nearest(name, known)}; the options are {', '.join(known)}"
            )
        if name in found:
            raise ConfigurationError(f"the option '{name}' of the data is given twice")
        found[name] = _value(name, text)
    return found


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        for written, meant in _ESCAPES.items():
            text = text.replace(written, meant)
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text.split(",") if name in _LISTS else text
    return [text] if name in ("missing", "text") and not isinstance(value, list) else value
