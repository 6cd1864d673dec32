"""The public names with their signatures, as a file: python -m tools.public_names [--write]

`tests/public_names.txt` holds a line for each name that `descend` and its rooms list, with parameters and defaults.
A change of it is a change that users meet: edit the code, write the file again and say it in the changelog.

Exit codes: 0 the file is what the code gives, 1 it differs.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "tests" / "public_names.txt"
ROOMS = (
    *("", ".callbacks", ".data", ".errors", ".experiment", ".graph", ".launch", ".lbann", ".lower"),
    *(".onnx", ".optim", ".runtime", ".study", ".train", ".view", ".zoo"),
)


def shown(value: Any) -> str:
    """The signature of a function or class, or the kind of another value."""
    if not callable(value):
        return ": module" if isinstance(value, ModuleType) else f": {type(value).__name__}"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some classes written in C have none
        return "(...)"
    bare = [_bare(parameter) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


class _Other:
    """A default that is no plain value."""

    def __repr__(self) -> str:
        return "..."


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not inspect.Parameter.empty and not _is_plain(default):
        default = _Other()
    return parameter.replace(annotation=inspect.Parameter.empty, default=default)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def public_names() -> list[str]:
    """A line for each public name, sorted within its room."""
    lines: list[str] = []
    for room in ROOMS:
        name = f"descend{room}"
        module = importlib.import_module(name)
        names = getattr(module, "__all__", dir(module))
        lines += [f"{name}.{each}{shown(getattr(module, each))}" for each in sorted(names) if not each.startswith("_")]
    return lines


def differences() -> list[str]:
    """Lines that the file lacks (+) and lines that it has beyond the code (-)."""
    kept = FILE.read_text().splitlines() if FILE.exists() else []
    changed = difflib.unified_diff(kept, public_names(), lineterm="", n=0)
    return [line for line in changed if line[:2] not in ("--", "++", "@@")]


def main() -> int:
    """Compare, or write the file."""
    if "--write" in sys.argv[1:]:
        FILE.write_text("\n".join(public_names()) + "\n")
        return 0
    changed = differences()
    sys.stdout.write("".join(f"{line}\n" for line in changed))
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
