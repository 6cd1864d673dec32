"""Damaged study directories: each is read and reported, or refused with an error of ours, in seconds and within memory.

    python tests/fuzz/fuzz_records.py --count 20000 --seed 0

Of a study that has come to its end, one to three files are changed: study.json, the lines of records with and without
their checksums, and claims. Then the status, the comparison with its table, the report, or what is left to
run are asked for.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from descend.study.comparing import read_directory
from descend.study.design import Arm, Study, log
from descend.study.progress import status_of
from descend.study.running.plan import pending
from descend.study.running.trial import Record, Trial
from descend.study.running.trial_store import StudyDirectory
from tests.fuzz.harness import main
from tests.fuzz.mutations import mutate_file, other_bytes, other_json_text

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_records_"))
BASE = FOLDER / "base"
ARMS = {"sgd": Arm("SGD", {"lr": log(1e-3, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-4, 0.1)})}


def _study() -> Study:
    return Study(
        workload="t.py:t",
        batch_sizes=(32,),
        steps=(100,),
        arms=ARMS,
        trials=4,
        shortlist=2,
        confirmation_seeds=2,
        searches=2,
        target={"value": 0.5},
    )


def _record(trial: Trial) -> Record:
    value = (hash_of(trial.id) % 97) / 97
    status = "diverged" if value < 0.05 else "done"
    scores = {
        split: {"accuracy": [0.1, 0.1 + value / 2, 0.2 + value / 2], "objective": [2.0, 1.0, 1 - value]}
        for split in ("train", "validation")
    }
    return Record(trial, status, (0, 50, 100), scores, seconds=1.5)


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum((place + 1) * ord(letter) for place, letter in enumerate(text))


def _base() -> Path:
    if not BASE.exists():
        study, records = _study(), {}
        with StudyDirectory(BASE, study) as directory:
            while trials := pending(study, records):
                directory.claim(trials, len(trials))
                directory.record(*map(_record, trials))
                records = directory.records()
            directory.claim(list(pending(study, {}))[:1], 1)
    return BASE


def _lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().splitlines()
    for _ in range(draw.choice((1, 1, 2))):
        place = draw.randrange(len(lines))
        line = lines[place]
        match draw.randrange(8):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, lines[draw.randrange(len(lines))])
            case 2:
                lines[place] = other_bytes(line.encode(), draw).decode(errors="replace")
            case _:  # without its checksum, as hands write it
                plain = re.sub(r',"crc32":"\w*"\}$', "}", line)
                try:
                    json.loads(plain)
                except ValueError:  # an earlier mutation
                    continue
                lines[place] = other_json_text(plain, draw).decode(errors="replace").replace("\n", " ")
        if not lines:
            break
    end = b"" if draw.random() < 0.1 else b"\n"
    return "\n".join(lines).encode("utf-8", "surrogatepass") + end


def _compared(directory: Path) -> None:
    result = read_directory(directory)
    shown = [result.verdict, result.table, *map(str, result.remarks), str(result.costs), str(result.scaling)]
    for line in "\n".join(shown).split("\n"):
        assert line.isprintable(), f"not printable: {line[:200]!r}"


def _reported(directory: Path) -> None:
    read_directory(directory).report(directory / "report")


def _continued(directory: Path) -> None:
    with StudyDirectory(directory, _study()) as ledger:
        trials = pending(_study(), ledger.records())
        ledger.claim(trials, 2)


USES: tuple[Callable[[Path], object], ...] = (_compared, _compared, _compared, status_of, _continued, _reported)


def attempt(draw: random.Random) -> None:
    """Damage a copy of the study directory, and use it."""
    directory = FOLDER / "study"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(_base(), directory)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    weighted = [path for path in files for _ in range(8 if path.suffix in (".json", ".jsonl") else 1)]
    for path in {draw.choice(weighted) for _ in range(draw.choice((1, 1, 1, 2, 3)))}:
        mutate_file(path, draw, {".jsonl": _lines})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw.choice(USES)(directory)


if __name__ == "__main__":
    _base()
    main(attempt, __doc__ or "")
