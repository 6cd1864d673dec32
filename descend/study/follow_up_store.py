"""What was asked of a finished study, kept in its directory so that its report can show it.

follow_ups/KIND-WHAT.json    one file a question; asked again, the newer answer stands
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import DAMAGED_FILE, StorageError
from descend.filenames import regular_file
from descend.runtime.run_directory import write_beside

if TYPE_CHECKING:
    import os

__all__ = ["read_follow_ups", "save_follow_up"]

_FOLDER = "follow_ups"


def save_follow_up(directory: str | os.PathLike[str], found: dict[str, Any], what: str) -> None:
    """Write an answer.

    Args:
        directory: Of the study.
        found: The answer as plain values; `kind` is "swap", "minimize", "noise" or "sharpness".
        what: Says which question of its kind it was.
    """
    folder = Path(directory) / _FOLDER
    folder.mkdir(exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{found['kind']}-{what}")
    write_beside(folder / f"{name}.json", json.dumps(found, indent=2) + "\n")


def read_follow_ups(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All answers, in the order of their files.

    Raises:
        StorageError: a file is damaged, or none that `keep` wrote.
    """
    found: list[dict[str, Any]] = []
    for file in sorted((Path(directory) / _FOLDER).glob("*.json")):
        try:
            found.append(_checked(json.loads(regular_file(file).read_text(encoding="utf-8"))))
        except DAMAGED_FILE as error:
            raise StorageError(f"{file}: not an answer: {error}; remove it and ask again") from error
    return found


_SHAPES: dict[str, dict[str, type]] = {  # of each kind of answer, and of the rows of its list
    "swap": {"setting": str, "cells": list},
    "minimize": {"arm": str, "reference": str, "rule": str, "tried": int, "needed": dict, "taken_back": dict},
    "noise": {"arm": str, "parts": int, "part_size": int, "repeats": int, "points": list},
    "sharpness": {"arm": str, "points": list},
}
_ROWS = {  # of the lists of each kind
    "swap": {"cells": ("arm", "giver", "median", "interval", "change")},
    "noise": {"points": ("step", "scale", "interval", "said")},
    "sharpness": {"points": ("step", "sharpness", "sharpness_error", "hessian_smallest")},
}
_WITHOUT_SEEDS = ("noise", "sharpness")


def _checked(found: Any) -> dict[str, Any]:
    shape = {"command": str, **_SHAPES[found["kind"]]}
    shape |= {} if found["kind"] in _WITHOUT_SEEDS else {"seeds": int}
    for name, kind in shape.items():
        if not isinstance(found[name], kind):
            raise TypeError(f"{name} is {found[name]!r:.40}")
    for name, columns in _ROWS.get(found["kind"], {}).items():
        for row in found.get(name, []):
            _ = [row[column] for column in columns]
    return found
