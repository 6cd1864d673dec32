"""Damaged run and study directories: each is a page that says what it leaves out, or an error of ours.

    python tests/fuzz/fuzz_pages.py --count 20000 --seed 0

Of a run of one trainer, a run of a tournament, or a study, one to three files are changed: JSON by values of any type,
names, repeats and depth, rows line by line, and all of them by bytes and cuts. Runs go through `descend report`, the
list of all runs beside an undamaged one, and `descend lineage`; studies through `descend study show`, `status` and
`report`. Charts are made as specifications, and not drawn.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from safetensors.torch import save_file

import descend
from descend.errors import DescendError
from descend.pages import html, lineage_svg
from descend.pages.html import Live
from descend.pages.run.read import read_run
from descend.pages.run.write import run_page
from descend.study.comparing import read_directory
from descend.study.follow_up_store import save_follow_up
from descend.study.progress import status_of
from descend.study.report.write import report_page
from descend.view.subjects import home_page, subjects
from tests.fuzz.harness import main
from tests.fuzz.mutations import mutate_file, other_json_text

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

MEMORY = Path("/dev/shm")
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_pages_", dir=MEMORY if MEMORY.is_dir() else None))
ALL, BASES = FOLDER / "all", FOLDER / "bases"
LIVE = Live("1", "stamp")
EXTREME = (1e308, -1e308, 5e-324, 10**8, 2**53 + 1, 10**400, "\ud800", "x" * 10**6)


def _drawn(specs: Sequence[Mapping[str, Any]], labels: Sequence[str], seconds: float = 0) -> tuple[list[str], str]:
    """What drawing begins with: a specification must be JSON, without infinities."""
    for spec in specs:
        json.dumps(spec, allow_nan=False)
    return [""] * len(labels), ""


def _rows(offset: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, 4):
        at = {"epoch": epoch, "step": 4 * epoch}
        rows.append({"mode": "train", **at, "objective": 1 / epoch + offset, "accuracy": 0.5, "learning_rate": 0.1})
        rows[-1] |= {"samples": 40, "seconds": 0.5, "skipped_steps": 1}
        rows.append({"mode": "validation", **at, "objective": 2 / epoch, "samples": 10, "seconds": 0.1})
        rows.append({"mode": "train", **at, "gradient_norm": 0.1, "noise_scale": 10.0})
    return [*rows, {"mode": "restart", "epoch": 3, "step": 12, "time": "2026-01-01T00:00:00"}]


def _write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _make_run(folder: Path, trainers: int = 1) -> None:
    settings = {"batch_size": 10, "optimizer.rule": "SGD(momentum=0.9)", "precision": None, "samples": [40, 10]}
    end = {"exit_code": 4, "error": ["NaN in 'a'"], "reason": "x", "save_seconds": 0.1, "failed_saves": 1, "step": 12}
    facts: dict[str, Any] = {
        "descend": "1", "torch": "2", "python": "3", "platform": "Linux", "arithmetic": {"threads": 1}, "restarts": [],
        "command": ["train.py", "a b"], "random_seed": 0, "settings": settings, "end": end,
        "monitored": {"metric": "validation/objective", "direction": "min", "restored": False},
    }  # fmt: skip
    if trainers == 1:
        _write_rows(folder, _rows())
        checkpoint = folder / "checkpoints" / "step-12"
        checkpoint.mkdir(parents=True)
        save_file({"a": torch.zeros(2, 3), "b": torch.zeros(())}, checkpoint / "weights.safetensors")
    else:
        for number in range(trainers):
            _write_rows(folder / f"trainer{number}", _rows(number))
        facts["trainers"] = trainers
        rows = [
            {"round": 0, "trainer": number, "step": 4, "partner": 1 - number, "scores": {"objective": 1.0},
             "partner_scores": {"objective": 2.0}, "took": None if number else 1, "changed": {"lr": [0.1, 0.2]},
             "rates": [0.1]}
            for number in range(trainers)
        ]  # fmt: skip
        (folder / "tournament.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "log.txt").write_text("begins\nwarning: a\nwarning: a\n")


def _make_study(folder: Path) -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = {"train": (x[:40], x[:40, :2].argmax(1)), "validation": (x[40:], x[40:, :2].argmax(1))}
    loss = torch.nn.CrossEntropyLoss()
    given = {"batch_size": 10, "steps": 3, "trials": 2, "seeds": 6, "searches": 2, "shortlist": 1, "evaluations": 2}
    descend.compare(
        lambda: torch.nn.Linear(4, 2), loss, data, {"a": "SGD", "b": "Adam"}, **given, executor="one", target=0.5,
        directory=folder,
    )  # fmt: skip
    for file in (folder / "records").iterdir():  # without checksums, which few mutations would come through
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(f"{json.dumps({k: v for k, v in row.items() if k != 'crc32'})}\n" for row in rows))
    for answer in FOLLOW_UPS:
        save_follow_up(folder, dict(answer), "x")
    spent = {"space": {"lr": {"log": [0.1, 1]}}, "trials": 2, "steps": 6, "samples": 60, "median": 0.5}
    earlier = {"directory": "d", "name": "n", "unit": "accuracy", "data": "x", "arms": {"a": spent, "b": spent}}
    (folder / "lineage.json").write_text(json.dumps([earlier]))


_CELL = {"arm": "a", "giver": "b", "values": [0.5] * 6, "median": 0.5, "interval": [0.4, 0.6], "change": 0.1}
_POINT = {"step": 3, "scale": 10.0, "interval": [5.0, 20.0], "said": ""}
_SHARP = {"step": 3, "sharpness": 1.0, "sharpness_error": 0.1, "hessian_smallest": -0.1}
FOLLOW_UPS: tuple[dict[str, Any], ...] = (
    {"kind": "swap", "command": "c", "setting": "lr", "seeds": 6, "cells": [_CELL]},
    {"kind": "minimize", "command": "c", "seeds": 6, "arm": "a", "reference": "b", "rule": "x", "tried": 3,
     "needed": {"lr": [0.1, 0.2]}, "taken_back": {"momentum": [0.9, 0]}},
    {"kind": "noise", "command": "c", "arm": "a", "parts": 2, "part_size": 4, "repeats": 2, "points": [_POINT]},
    {"kind": "sharpness", "command": "c", "arm": "a", "points": [_SHARP]},
)  # fmt: skip


def _base(kind: str) -> Path:
    folder = BASES / kind
    if not folder.exists():
        {"run": _make_run, "tournament": lambda path: _make_run(path, 2), "study": _make_study}[kind](folder)
    return folder


def _lines(content: bytes, draw: random.Random) -> bytes:
    """Some lines changed as JSON, or one repeated, or the last one without its end."""
    lines = content.splitlines() or [b"{}"]
    for _ in range(draw.choice((1, 1, 2))):
        place = draw.randrange(len(lines))
        match draw.randrange(8):
            case 0:
                lines.insert(place, lines[place])
            case 1:
                lines[place] = lines[place][: draw.randrange(len(lines[place]) + 1)]
            case 2:
                lines[place] = _extreme(lines[place], draw)
            case _:
                lines[place] = _document(lines[place], draw)
    return b"\n".join(lines) + b"\n" * draw.choice((1, 1, 1, 0))


def _extreme(line: bytes, draw: random.Random) -> bytes:
    """One of its fields with a value at the end of what can be written, or named twice."""
    try:
        row = dict(json.loads(line))
        name = draw.choice(list(row))
    except (ValueError, TypeError, IndexError, RecursionError):  # an earlier mutation
        return line
    value = draw.choice(EXTREME)
    if draw.random() < 0.2:
        return line[:-1] + f", {json.dumps(name)}: 1}}".encode()
    sys.set_int_max_str_digits(0)
    text = json.dumps({**row, name: value}).encode()
    sys.set_int_max_str_digits(4300)
    return text


def _document(content: bytes, draw: random.Random) -> bytes:
    text = content.decode(errors="replace")
    try:
        return other_json_text(text, draw) if draw.random() < 0.85 else _extreme(content.strip(), draw)
    except ValueError:  # an earlier mutation has left no JSON
        return content


def _use_run(folder: Path, draw: random.Random) -> None:
    match draw.randrange(4):
        case 0 | 1:
            run_page(read_run(folder), charts=False)
        case 2:
            text = home_page(subjects([ALL]), LIVE)
            assert "whole: run, ended with exit code 4" in text  # the undamaged one is there, whatever the other is
        case _:
            lineage_svg.save(folder, FOLDER / "lineage.svg")


def _use_study(folder: Path, draw: random.Random) -> None:
    match draw.randrange(4):
        case 0:
            str(status_of(folder))
        case 1:
            result = read_directory(folder)
            str(result), [str(remark) for remark in result.remarks], result.rows
        case 2:
            report_page(read_directory(folder), LIVE)
        case _:
            home_page(subjects([ALL]), LIVE)


def attempt(draw: random.Random) -> None:
    """Damage a copy of a directory, and make its pages."""
    kind = draw.choice(("run", "run", "tournament", "study", "study"))
    folder = ALL / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    if not (ALL / "whole").exists():
        shutil.copytree(_base("run"), ALL / "whole")
    shutil.copytree(_base(kind), folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in draw.sample(files, draw.choice((1, 1, 1, 2, 3))):
        mutate_file(path, draw, {".jsonl": _lines, ".json": _document})
    with warnings.catch_warnings(), patch.object(html, "drawn_or_nothing", _drawn):
        warnings.simplefilter("ignore")
        (_use_study if kind == "study" else _use_run)(folder, draw)


if __name__ == "__main__":
    for each in ("run", "tournament", "study"):
        try:
            _base(each)
        except DescendError as error:
            sys.exit(str(error))
    main(attempt, __doc__ or "")
