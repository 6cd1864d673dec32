"""Mutated prototexts: each is read, checked, tabled and drawn, or refused with an error of ours.

    python tests/fuzz/fuzz_prototext.py --count 20000 --seed 0

Valid experiments are changed by bytes, words, numbers, names, whole lines and blocks, and by nesting.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from descend.experiment import load
from descend.experiment.check import Checked
from descend.experiment.inspect.layer_table import layer_table
from descend.graph import CLASSES, check
from descend.pages.graph_svg import picture
from tests.fuzz.harness import main

if TYPE_CHECKING:
    import random

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.prototext"))]
FIELDS = {"samples": (1, 28, 28), "labels": (10,), "label": (10,), "x": (4,), "responses": (1,)}
NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "1e308",
    "nan",
    "-inf",
    "999999999999",
    "18446744073709551616",
    "0x7f",
    "017",
    "1.5",
    "-0",
)
NAMES = (
    "",
    "x",
    "conv1",
    "fc1",
    "..",
    "a b",
    r"\033[2J",
    r"\n",
    r"\u202e",
    r"\000",
    r"\377",
    '<b>&\\"',
    "é",
    "x" * 3000,
)
SIGNS = ("{", "}", "[", "]", "<", ">", ":", ",", '"', "'", "#", "//", "\\", "\0", "\x1b", "\ufeff", "\u2028")
KINDS = [message.removeprefix("Layer.") for message in CLASSES if message.startswith("Layer.")]


def mutated(draw: random.Random) -> bytes:
    """An experiment with a few mutations."""
    text = draw.choice(EXAMPLES)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        text = draw.choice(MUTATIONS)(text, draw)
    content = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.1 and content:
        data = bytearray(content)
        data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    return content


def _replaced(pattern: str, text: str, new: str, draw: random.Random) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start()] + new + text[one.end() :]


def _number(text: str, draw: random.Random) -> str:
    return _replaced(r"(?<=: )-?[\d.]+", text, draw.choice(NUMBERS), draw)


def _list(text: str, draw: random.Random) -> str:
    values = ", ".join(draw.choice(NUMBERS) for _ in range(draw.choice((0, 1, 2, 3, 5, 2000))))
    return _replaced(r"(?<=: )(?:-?[\d.]+|\[[^\]]*\])", text, f"[{values}]", draw)


def _name(text: str, draw: random.Random) -> str:
    return _replaced(r'"[^"\n]*"', text, f'"{draw.choice(NAMES)}"', draw)


def _exchange_names(text: str, draw: random.Random) -> str:
    names = re.findall(r'"[^"\n]*"', text) or ['""']
    return _replaced(r'"[^"\n]*"', text, draw.choice(names), draw)


def _sign(text: str, draw: random.Random) -> str:
    place = draw.randrange(len(text) + 1)
    return text[:place] + draw.choice(SIGNS) + text[place + draw.randrange(2) :]


def _field(text: str, draw: random.Random) -> str:
    words = re.findall(r"\b[a-z_]+(?=[:\s{])", text) or ["x"]
    return _replaced(r"\b[a-z_]+(?=:)", text, draw.choice(words), draw)


def _kind(text: str, draw: random.Random) -> str:
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", draw.choice(KINDS)).lower()
    return _replaced(
        r"\b(?:convolution|relu|pooling|fully_connected|softmax|cross_entropy|input)(?= *\{)", text, kind, draw
    )


def _line(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[other])
        case _:
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines)


def _block(text: str, draw: random.Random) -> str:
    """A block more, a block less, or a layer of any kind and any fields."""
    blocks = re.findall(r"  layer \{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}\n", text) or [""]
    one = draw.choice(blocks)
    match draw.randrange(3):
        case 0:
            return text.replace(one, "", 1) if one else text
        case 1:
            return text.replace(one, one * draw.choice((2, 50)), 1) if one else text
        case _:
            kind = CLASSES[f"Layer.{draw.choice(KINDS)}"]
            fields = " ".join(f"{name}: {draw.choice(NUMBERS)}" for name in getattr(kind, "own_fields", dict)())
            own = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
            return text.replace(one, one + f'layer {{ name: "new" parents: "images" {own} {{ {fields} }} }}\n', 1)


def _nest(text: str, draw: random.Random) -> str:
    depth = draw.choice((3, 99, 101, 5000))
    return _replaced(r"\n", text, "\nmodel { layer { " * depth + "} } " * draw.choice((0, depth)), draw)


MUTATIONS = (
    _number,
    _number,
    _list,
    _name,
    _exchange_names,
    _exchange_names,
    _sign,
    _field,
    _kind,
    _line,
    _block,
    _block,
    _nest,
)

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_prototext_"))


def attempt(draw: random.Random) -> None:
    """Read a mutated experiment, check its graph, print its table, and draw it; without its data."""
    path = _FOLDER / "e.prototext"
    path.write_bytes(mutated(draw))
    model = load(path).model
    plan = check(model, FIELDS)
    table = layer_table(Checked(plan, {}), batch_size=4)
    drawing = picture(plan)
    assert all(line.isprintable() for line in f"{table}\n{drawing}".split("\n"))


if __name__ == "__main__":
    main(attempt, __doc__ or "")
