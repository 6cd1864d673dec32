"""Mutated study files: each is read, checked for fairness and written again, or refused with an error of ours.

    python tests/fuzz/fuzz_study_file.py --count 20000 --seed 0

The example studies are changed by bytes, values, names, lines, tables and nesting. No workload is imported.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from descend.study.design import lint, read_study
from descend.study.design.study import make_study
from descend.study.design.toml import to_toml
from descend.study.running.plan import pending
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "studies").rglob("*.toml"))]
importlib.import_module("descend.optim")  # as checking does, before anything is timed
_WORDS = """
    0 1 -1 0.5 1e-3 1e400 -0.0 nan inf -inf 999999999999999999999 true 1979-05-27 07:32:00 [] [[]] {} [0] [1,2] [1e-3,1]
    [1,1e-3] [0,1] [nan,1] [1,"a"] "" "x" "SGD" "Adam" "cosine" "lr" "digits.py:task" "../x.py:t" "\\u0000" "\\u202e"
    "\\u001b[2J" {log=[1e-3,1]} {log=[0,1]} {linear=[0,1]} {choice=["a","b"]} {integer=[1,5]} {log={log=1}}
    {kind="cosine"} {kind="step",steps=[1]} {lr=1,lr2=2}
"""
VALUES = _WORDS.split()
NAMES = (
    "seed",
    "trials",
    "searches",
    "steps",
    "lr",
    "momentum",
    "space",
    "fixed",
    "schedule",
    "target",
    "arms",
    '"a b"',
)
MOST_TRIALS = 2_000  # that are listed: a study may want any number of them


def mutated(draw: random.Random) -> bytes:
    """A study file with a few mutations."""
    text = draw.choice(EXAMPLES)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        text = draw.choice(MUTATIONS)(text, draw)
    content = text.encode()
    return other_bytes(content, draw) if draw.random() < 0.15 else content


def _replaced(pattern: str, text: str, new: str, draw: random.Random) -> str:
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start()] + new + text[one.end() :]


def _value(text: str, draw: random.Random) -> str:
    return _replaced(r"(?<== )[^\n=]+?(?=$|,| \})", text, draw.choice(VALUES), draw)


def _part_of_a_value(text: str, draw: random.Random) -> str:
    return _replaced(r"\b[\d.e-]+\b|\"[^\"\n]*\"", text, draw.choice(VALUES), draw)


def _name(text: str, draw: random.Random) -> str:
    names = re.findall(r"^\w+(?= =)", text, re.MULTILINE) or ["x"]
    return _replaced(r"\b\w+(?= = )", text, draw.choice((*names, *NAMES)), draw)


def _line(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[other])
        case 2:
            lines.insert(place, f"{draw.choice(NAMES)} = {draw.choice(VALUES)}")
        case _:
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines)


def _table(text: str, draw: random.Random) -> str:
    head = draw.choice(("arms", "arms.x", "arms.adam.space", "target", "schedule", 'arms."a\\u001b"', "x.y.z"))
    return f"{text}\n[{head}]\n{draw.choice(NAMES)} = {draw.choice(VALUES)}\n"


def _nest(text: str, draw: random.Random) -> str:
    depth = draw.choice((3, 50, 5000))
    left, right = draw.choice((("[", "]"), ("{a=", "}")))
    return _replaced(r"(?<== )[^\n=]+$", text, left * depth + "1" + right * depth, draw)


MUTATIONS = (_value, _value, _part_of_a_value, _part_of_a_value, _name, _line, _table, _nest)

_FILE = Path(tempfile.mkdtemp(prefix="fuzz_study_file_")) / "study.toml"


def attempt(draw: random.Random) -> None:
    """Read a mutated study, check it, write it as text and read that, and list its trials if they are few."""
    _FILE.write_bytes(mutated(draw))
    study = read_study(_FILE)
    for remark in lint(study):
        str(remark)
    assert make_study(tomllib.loads(to_toml(study))) == study
    if study.trials * study.searches * len(study.arms) * len(study.batch_sizes) <= MOST_TRIALS:
        pending(study, {})


if __name__ == "__main__":
    main(attempt, __doc__ or "")
