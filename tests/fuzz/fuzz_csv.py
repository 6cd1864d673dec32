"""Tables of text: each is read with the values that are in it, or refused with an error of ours, within memory.

    python tests/fuzz/fuzz_csv.py --count 20000 --seed 0

Tables of numbers, classes, missing values and quoted text have other cells, rows, separators, quotes, encodings or
bytes. Where the cells are known, as Python's csv module writes them, what is read is compared with them: all rows,
integers and fractions as Python reads them, texts and names of classes as they are. A cell may be refused, but never be
another one.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import descend.data
from descend.data.tables.cells import MISSING
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

CELLS = (
    *("0", "1", "-2.5", "1e308", "1e400", "nan", "inf", "-", "", " ", "true", "NULL", "2020-01-01", "12:30", "0x1f"),
    *("9" * 400, '"', '"a', 'a"b"', '"a\nb"', "a\tb", "\0", "\x1b[2J", "\u202e", "é", "=1+1", "x" * 3000, "9" * 19),
)
HEADS = ("a", "b", "kind", "", "a", "\x1b[31m", "../x", "with space", "1", "x" * 3000, "é", '"q,q"')
ODD = (
    *(
        "missing",
        "1,5",
        "1 234",
        "$5",
        "12.5 USD",
        "ERR",
        "1e",
        "0x",
        "#DIV/0!",
        "+7",
        "007",
        "1_000",
        "0x10",
        "1.",
        ".5",
    ),
    *("9007199254740993", "9223372036854775809", "1e-320", "5\n6", 'say "hi"', "a,b", "\\N", "NA", "?", "", "yes", "é"),
)
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_csv_"))
_FORMS = {
    "fraction": lambda draw: repr(round(draw.uniform(-50, 50), draw.randint(1, 6))),
    "integer": lambda draw: str(draw.randint(-300, 300)),
    "long": lambda draw: str(2**53 + draw.randint(-2, 3)),
    "class": lambda draw: draw.choice(("up", "down", "left")),
    "number class": lambda draw: str(draw.randint(0, 12)),
    "text": lambda draw: draw.choice(("", "a", "b c", 'q"q', "x,y;z", "two\nlines", "ä")) + str(draw.randint(0, 99)),
    "code": lambda draw: draw.choice(("A1", "7", "12b", "C", "88")),
}


def table(draw: random.Random) -> bytes:
    """A table of any cells, mostly with mutations."""
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


def known_table(draw: random.Random) -> tuple[list[str] | None, list[list[str]]]:
    """The names of a table, if it has them, and its cells; some cells are odd."""
    width, count = draw.randint(1, 5), draw.choice((2, 3, 8, 40, 150))
    forms = [draw.choice(list(_FORMS)) for _ in range(width)]
    rows = [[_FORMS[form](draw) for form in forms] for _ in range(count)]
    for _ in range(draw.choice((0, 0, 1, 1, 4))):
        draw.choice(rows[1:])[draw.randrange(width)] = draw.choice(ODD)
    names = [f"c{i}" for i in range(width)]
    match draw.randrange(6):
        case 0:
            return None, rows
        case 1:
            return [str(i) for i in range(width)], rows
        case 2:
            return [str(2019 + i) for i in range(width)], rows
        case 3:
            return ["", *(str(i) for i in range(width))], [[str(i), *row] for i, row in enumerate(rows)]
        case _:
            return names, rows


def compare(draw: random.Random) -> None:
    """Write a table of known cells, read it, and compare what is read with them."""
    names, rows = known_table(draw)
    options: dict[str, Any] = {}
    how: dict[str, Any] = {"delimiter": draw.choice((",", ",", ";", "\t", "|"))}
    how["quoting"] = draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC))
    how["lineterminator"] = draw.choice(("\n", "\r\n"))
    if draw.random() < 0.15:
        options["quote"] = how["quotechar"] = "'"
    if draw.random() < 0.15:
        how |= {"escapechar": "\\", "doublequote": False}
        options["escape"] = "\\"
    file = io.StringIO()
    csv.writer(file, **how).writerows(([names] if names else []) + rows)
    content = file.getvalue().encode()
    cut = content.rstrip(b"\r\n") if draw.random() < 0.2 else content
    path = _FOLDER / "known.csv"
    path.write_bytes(cut)
    # Without names a first row of texts may be names, and of one column of integers nothing tells which it is.
    unclear = not any(map(_is_number, rows[0])) if names is None else len(names) == 1 and names[0].isdecimal()
    if unclear or draw.random() < 0.3:
        options["header"] = names is not None
    # With other separators within its cells a first row does not say which one is between them.
    if len(rows[0]) == 1 or set(",;|\t").intersection("".join(names or rows[0])):
        options["separator"] = how["delimiter"]
    columns = [str(i) for i in range(len(rows[0]))] if names is None else names
    if draw.random() < 0.4:
        options["target"] = draw.choice([name for name in columns if name])
    if draw.random() < 0.2:
        options["text"] = [draw.choice([name for name in columns if name])]
    reader = descend.data.read(str(path), **options)
    assert len(reader) == len(rows), f"{len(reader)} samples of {len(rows)} rows"
    found = reader.read(np.arange(len(reader)))
    for name, values in found.items():
        column = [row[columns.index(name)] for row in rows]
        classes = reader.classes.get(name)
        for cell, value in zip(column, values.tolist(), strict=True):
            is_text = name in options.get("text", ())
            assert _is_same(cell, classes[value] if classes else value, is_text), (name, cell, value)


def _is_same(cell: str, value: Any, is_text: bool) -> bool:
    """Whether a value is what a cell says; `is_text` where it must be the cell itself."""
    if isinstance(value, str):
        return value == cell or (value == "" and cell == "\\N") or (value == "" and cell in MISSING and not is_text)
    if isinstance(value, bool):
        return cell.lower() in (("true", "1") if value else ("false", "0"))
    if isinstance(value, int):
        return int(cell, 16 if "x" in cell else 10) == value
    if isinstance(value, float) and np.isnan(value):
        return cell in MISSING
    text = cell.strip()
    if isinstance(value, float) and "x" in text:
        return value == int(text, 16)
    if isinstance(value, float):
        return value in {float(one) for one in (text, text.replace(",", ""), text.replace(",", ".")) if _is_number(one)}
    return True  # times


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def attempt(draw: random.Random) -> None:
    """Read a table, at times with a target, columns, rows that may be bad, or two files; then some samples."""
    if draw.random() < 0.5:
        compare(draw)
        return
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
    if draw.random() < 0.1:
        options["text"] = draw.choice((["c0"], ["c1", "c2"], "c0", ["c9"]))
    if draw.random() < 0.1:
        options["missing"] = draw.choice((["up"], ["0.5", "x"], []))
    if draw.random() < 0.1:
        options["quote"] = draw.choice(("", "'", '"', "ab"))
    if draw.random() < 0.1:
        options["escape"] = draw.choice(("\\", "^", '"', ""))
    source: Any = [str(path) for path in paths] if draw.random() < 0.1 else str(paths[0])
    reader = descend.data.read(source, **options)
    if len(reader):
        read = reader.read(np.array([0, len(reader) - 1]))
        assert all(array.shape == (2, *reader.fields[name].shape) for name, array in read.items())


if __name__ == "__main__":
    main(attempt, __doc__ or "")
