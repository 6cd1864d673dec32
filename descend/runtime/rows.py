"""The rows of a run: one for each epoch and each evaluation, as lines of JSON in `metrics.jsonl`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_row", "read_rows"]

_ROW = {"mode": str, "epoch": int, "step": int}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl` that can be read; none where there is no such file."""
    rows: list[Any] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):  # a line that a killed process was writing, or an edited one
            continue
    return [row for row in rows if is_row(row)]


def is_row(row: Any) -> bool:
    """Whether a value has the form of a row that a run writes."""
    return isinstance(row, dict) and _ROW.items() <= {key: type(value) for key, value in row.items()}.items()
