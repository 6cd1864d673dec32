"""What can be said of a workload's text without running any code of it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from descend.errors import nearest

__all__ = ["FORMS", "RecordedWorkload", "check_form", "missing"]

FORMS = "file.py:function, module:function, FILE.prototext or zoo:NAME"


class RecordedWorkload(str):
    """The name of a workload that was a Python object, such as `__main__:<lambda>`: enough to read a study, and not to
    go on with it.
    """

    __slots__ = ()


def check_form(text: str) -> list[str]:
    """What is wrong with the form of a workload's text."""
    place, _, name = text.rpartition(":")
    if text.endswith(".prototext") or (place == "zoo" and name):
        return []
    found = Path(place).stem if place.endswith(".py") else all(part.isidentifier() for part in place.split("."))
    if name.isidentifier() and found and Path(place).name != ".py":
        return []
    return [f"workload '{text}' must be of the form {FORMS}"]


def missing(text: str) -> str | None:
    """What a workload of good form names and is not there, seen from the working directory; None if all is.

    A file is read and not run, so what its code makes up is taken to be missing.
    """
    if text.endswith(".prototext"):
        return None if Path(text).is_file() else f"there is no file {text}, seen from {Path.cwd()}"
    place, _, name = text.rpartition(":")
    if place == "zoo":
        return None
    if not place.endswith(".py"):
        top = place.partition(".")[0]
        return None if importlib.util.find_spec(top) else f"there is no module '{top}'"
    if not Path(place).is_file():
        return f"there is no file {place}, seen from {Path.cwd()}"
    try:
        body = ast.parse(Path(place).read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as error:
        return f"{place} is not Python: {error}"
    found = [name for statement in body for name in _names(statement)]
    return None if name in found or "*" in found else f"{place} has no '{name}'{nearest(name, found)}"


def _names(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module gives."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
