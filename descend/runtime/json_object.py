"""Reads a JSON file of ours whose content may be anything: damaged, edited, gigantic, or of another program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.errors import StorageError
from descend.files import regular_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CheckedFields", "read_json", "without_repeats"]

MAX_BYTES = 16_000_000  # of a file; Python's objects take some ten times as much memory
MAX_DEPTH = 100  # of objects and lists in each other; deeper ones end in errors wherever they are walked through


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: there is none.
        StorageError: it cannot be read, is larger or nested deeper than a file of ours, has a name twice in one
            object, or is no JSON in UTF-8.
    """
    try:
        with regular_file(path).open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"it has more than {max_bytes:,} bytes")
        found = json.loads(content.decode(), object_pairs_hook=without_repeats)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise StorageError(f"{path} is damaged: {why}") from error
    if _is_deeper(found, MAX_DEPTH):
        raise StorageError(f"{path} is damaged: it is nested more than {MAX_DEPTH} deep")
    return found


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `object_pairs_hook`.

    Raises:
        ValueError: it has a name twice, of which Python alone would drop one unsaid.
    """
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"{shown(twice)} stands twice in one object")
    return made


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        inner = [one for one in level if isinstance(one, (dict, list))]
        if not inner:
            return False
        level = [each for one in inner for each in (one.values() if isinstance(one, dict) else one)]
    return True


class CheckedFields:
    """Takes the fields of an object out of a file, each of a kind; others are left out, with a sentence for each.

    Args:
        found: What the file has, an object or anything else.
        where: Name of the object in sentences, such as "run.json".
        problems: Gets the sentences.
    """

    def __init__(self, found: Any, where: str, problems: list[str]) -> None:
        self._where, self._problems = where, problems
        self._fields: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        if not isinstance(found, dict):
            problems.append(f"{where} must be an object, got {shown(found)}")

    def take(self, name: str, fits: Callable[[Any], bool], what: str, default: Any = None) -> Any:
        """The value of a field; the default where it is missing, null, or of another kind, which is said."""
        value = self._fields.get(name)
        if value is None:
            return default
        if fits(value):
            return value
        self._problems.append(f"{self._where}: {name} must be {what}, got {shown(value)}")
        return default

    def inner(self, name: str) -> CheckedFields:
        """The fields of an object in this one; none where it is missing or null."""
        value = self._fields.get(name)
        return CheckedFields({} if value is None else value, f"{self._where}: {name}", self._problems)
