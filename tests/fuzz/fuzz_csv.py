"""Mutated tables of text: each is read, or refused with an error of ours, within memory.

    python tests/fuzz/fuzz_csv.py --count 20000 --seed 0

Tables of numbers, classes, missing values and quoted text have other cells, rows, separators, encodings or bytes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import descend.data
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

CELLS = (
    *("0", "1", "-2.5", "1e308", "1e400", "nan", "inf", "-", "", " ", "true", "NULL", "2020-01-01", "12:30", "0x1f"),
    *("9" * 400, '"', '"a', 'a"b"', '"a\nb"', "a\tb", "\0", "\x1b[2J", "\u202e", "é", "=1+1", "x" * 3000, "9" * 19),
)
HEADS = ("a", "b", "kind", "", "a", "\x1b[31m", "../x", "with space", "1", "x" * 3000, "é", '"q,q"')
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_csv_"))


def table(draw: random.Random) -> bytes:
    """A table, mostly with mutations."""
    separator = draw.choice((",", ",", ",", ";", "\t", "|"))
    width, count = draw.randint(1, 5), draw.choice((0, 1, 3, 8, 40))
    head = [draw.choice(HEADS) if draw.random() < 0.2 else f"c{i}" for i in range(width)]
    rows = [[f"{draw.random():.3f}" if i else draw.choice(("up", "down")) for i in range(width)] for _ in range(count)]
    for _ in range(draw.choice((0, 0, 1, 1, 3))):
        if not rows:
            break
        row = draw.choice(rows)
        match draw.randrange(4):
            case 0:
                row.append(draw.choice(CELLS))
            case 1:
                row[-1:] = []
            case _:
                row[draw.randrange(len(row))] = draw.choice(CELLS) if row else ""
        rows = [row for row in rows if row]
    end = draw.choice(("\n", "\n", "\r\n", "\r"))
    content = end.join(separator.join(row) for row in ([head] if draw.random() < 0.9 else []) + rows)
    encoded = content.encode(draw.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")), "replace")
    return other_bytes(encoded, draw) if draw.random() < 0.4 else encoded


def attempt(draw: random.Random) -> None:
    """Read the table, at times with a target, columns, rows that may be bad, or two files; then some samples."""
    paths = [_FOLDER / name for name in ("t.csv", "u.tsv")]
    for path in paths:
        path.write_bytes(table(draw))
    options: dict[str, Any] = {}
    if draw.random() < 0.4:
        options["target"] = draw.choice(("c0", "c1", "kind", "c9", ""))
    if draw.random() < 0.2:
        options["skip_bad"] = draw.choice((0, 1, 3))
    if draw.random() < 0.2:
        options["columns"] = draw.choice((["c0", "c1"], {"x": ["c1", "c2"]}, ["c7"], []))
    if draw.random() < 0.2:
        options["separator"] = draw.choice((",", ";", "\t", "", "ab", "\n"))
    if draw.random() < 0.1:
        options["header"] = draw.choice((True, False))
    source: Any = [str(path) for path in paths] if draw.random() < 0.1 else str(paths[0])
    reader = descend.data.read(source, **options)
    if len(reader):
        read = reader.read(np.array([0, len(reader) - 1]))
        assert all(array.shape == (2, *reader.fields[name].shape) for name, array in read.items())


if __name__ == "__main__":
    main(attempt, __doc__ or "")
