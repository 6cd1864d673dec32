"""Hashes of the code that a workload is written in: its own file, and every file beside it that is imported from there.

Imports are read from the text, so nothing runs and what is found does not depend on what else is loaded. Installed
packages are left out: their versions stand in study.json.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["code_hashes"]

_INSTALLED = ("site-packages", "dist-packages")


def code_hashes(workload: Any) -> dict[str, str]:
    """`{"code": ...}` for the file of a workload, and `{"code.helper": ...}` for what it imports; empty without a file.

    Args:
        workload: As a study has it: a text, a Task, or a function that returns one.
    """
    file = _of_text(workload) if isinstance(workload, str) else _of_object(getattr(workload, "model", workload))
    if file is None or not file.is_file():
        return {}
    own = file.suffix == ".py" and not any(part in _INSTALLED for part in file.parts)
    beside = _imported(file) if own else {}
    return {"code": _hash(file)} | {f"code.{name}": _hash(path) for name, path in sorted(beside.items())}


def _of_text(text: str) -> Path | None:
    place = text if text.endswith(".prototext") else text.rpartition(":")[0]
    if place.endswith((".py", ".prototext")):
        return Path(place)
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError):  # a missing module is reported where it is opened
        return None
    return Path(found.origin) if found is not None and found.origin is not None else None


def _of_object(thing: Any) -> Path | None:
    while isinstance(thing, functools.partial):
        thing = thing.func
    try:
        return Path(inspect.getfile(thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)))
    except (TypeError, OSError):
        return None


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _imported(file: Path) -> dict[str, Path]:
    """Files by the names under which they are imported: from beside the file, from above its package or from here."""
    roots = [file.parent, _above(file), Path.cwd()]
    found: dict[str, Path] = {}
    left = [file]
    seen = {file.resolve()}
    while left:
        here = left.pop()
        for name, folders in _names(here, roots):
            path = next((path for folder in folders if (path := _file_of(folder, name)) is not None), None)
            if path is not None and path.resolve() not in seen:
                seen.add(path.resolve())
                found[name] = path
                left.append(path)
    return found


def _above(file: Path) -> Path:
    """The folder from which the package that a file belongs to is imported."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _names(file: Path, roots: list[Path]) -> Iterator[tuple[str, list[Path]]]:
    """What a file imports, with the folders to look in; a name comes with the packages that it lies in."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, folders = [alias.name for alias in node.names], roots
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            names = [prefix + alias.name for alias in node.names]
            folders = [file.parents[node.level - 1]] if 0 < node.level <= len(file.parents) else roots
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "descend" or folders is not roots:  # whose version stands in study.json
                yield from ((".".join(parts[:length]), folders) for length in range(1, len(parts) + 1))


def _file_of(folder: Path, name: str) -> Path | None:
    place = folder.joinpath(*name.split("."))
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
