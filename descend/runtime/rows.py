"""The rows of a run: one for each epoch and each evaluation, as lines of JSON in `metrics.jsonl`.

A checkpoint does not repeat them. It holds a position, how many there were and a checksum of these (`RowList`), so
its size and the time of a save do not depend on how long a run has lasted.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from descend.files import bounded_lines, has_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["RESTART", "ROWS", "RowList", "are_readable", "is_row", "read_rows"]

ROWS = "metrics.jsonl"
RESTART = "restart"  # the mode of a row of metrics.jsonl that marks one; it is no row of the history

_ROW = {"mode": str, "epoch": int, "step": int}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl` that can be read; none where there is no such file."""
    rows: list[Any] = []
    for line in bounded_lines(path) if has_file(path) else ():
        try:
            rows.append(json.loads(line.decode(errors="replace")))
        except (ValueError, RecursionError):  # a line that a killed process was writing, or an edited one
            continue
    return [row for row in rows if is_row(row)]


def is_row(row: Any) -> bool:
    """Whether a value has the form of a row that a run writes."""
    return isinstance(row, dict) and _ROW.items() <= {key: type(value) for key, value in row.items()}.items()


def are_readable(path: Path) -> bool:
    """Whether each whole line of a `metrics.jsonl` is a row; a last one without its end is a killed process's."""
    try:
        lines = sum(line.endswith(b"\n") for line in bounded_lines(path))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return len(read_rows(path)) >= lines


class RowList(list[dict[str, Any]]):
    """Rows with checksums of their beginnings: each costs as much as the rows since the last one.

    Lengths of time are no part of them, so that equal runs write equal checkpoints. Rows are added at the end, and
    dropped by `cut` alone.
    """

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(rows)
        self._chain = [hashlib.sha256().digest()]

    def cut(self, kept: int) -> None:
        """Keep only the first so many rows."""
        del self[kept:]
        del self._chain[kept + 1 :]

    def position(self, count: int) -> dict[str, Any]:
        """The part of a checkpoint about the first `count` rows."""
        for row in self[len(self._chain) - 1 : count]:
            kept = {name: value for name, value in row.items() if name != "seconds"}
            self._chain.append(hashlib.sha256(self._chain[-1] + json.dumps(kept, sort_keys=True).encode()).digest())
        return {"rows": count, "sha256": self._chain[count].hex()}

    def at(self, position: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The rows that were there at a position of a checkpoint; None if they are others.

        Raises:
            KeyError, TypeError, ValueError: it is no position.
        """
        count, digest = position["rows"], position["sha256"]
        if type(count) is not int or count < 0 or not isinstance(digest, str):
            raise ValueError(f"a position among rows must be a number >= 0 and a checksum, got {str(position)[:100]}")
        if count > len(self) or self.position(count)["sha256"] != digest:
            return None
        return self[:count]
