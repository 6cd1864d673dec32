"""Runs the checks and the benchmarks that need a GPU and writes `docs/speed_cuda.md`: `make cuda`, ten minutes.

    python tools/cuda_page.py [--page FILE] [--only checks optimizers matrices small training]

Who has a GPU for less than that runs a part; the page keeps what it had of the others from the same kind of device.

What fails stands on the page; the exit status is 0 if nothing did, 1 if something did, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
PROCESSES = min(8, os.cpu_count() or 1)
# With the seconds that each may take, together less than ten minutes. What measures nothing runs in processes at once.
CHECKS = (
    (90, (*(("-n", str(PROCESSES)) if importlib.util.find_spec("xdist") else ()), "tests/cuda/test_agreement.py")),
    (180, ("--ignore=tests/cuda/test_agreement.py", "tests/cuda")),
)
BENCHMARKS = {
    "optimizers": (
        "Optimizer steps",
        150,
        "optimizer_step.py --device cuda --fast --rounds 9 --seconds 1 --minutes 1.5 --models resnet50",
    ),
    "matrices": (
        "Optimizer steps of matrices",
        40,
        "optimizer_step.py --device cuda --fast --rounds 9 --seconds 1 --minutes 1 --models matrices "
        "--rules Adafactor Muon SOAP",
    ),
    "small": (
        "Optimizer steps of many small tensors",
        40,
        "optimizer_step.py --device cuda --fast --rounds 9 --seconds 1 --minutes 1 --models thousand_of_64 "
        "--rules SGD AdamW LAMB",
    ),
    "training": (
        "Training steps, evaluation and inference",
        90,
        "train_step.py --device cuda --rounds 3 --what training evaluation inference",
    ),
}


def _run(command: list[str], seconds: float, **more: str) -> tuple[int, str]:
    """A command's exit status and output; 124 and what it had said where it took longer."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", **more}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return 124, f"{said}\nstopped after {seconds:g} seconds"
    return process.returncode, said


def _outcomes(path: Path) -> list[tuple[str, str]]:
    """Each check with "ok", "skipped" or the first line of what was wrong."""
    found: list[tuple[str, str]] = []
    for case in ElementTree.parse(path).iter("testcase") if path.exists() else ():
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            outcome = (problem.get("message") or "failed").splitlines()[0]
        else:
            outcome = "skipped" if case.find("skipped") is not None else "ok"
        found.append((case.get("name", "?").removeprefix("test_"), outcome))
    return found


def _counted(outcomes: list[tuple[str, str]]) -> list[str]:
    """A line a check; its cases are counted, and those that failed are named."""
    checks: dict[str, list[tuple[str, str]]] = {}
    for name, outcome in outcomes:
        checks.setdefault(name.partition("[")[0], []).append((name, outcome))
    lines: list[str] = []
    for check, cases in checks.items():
        good = sum(outcome == "ok" for _, outcome in cases)
        lines.append(f"- {check}: {good} of {len(cases)} ok")
        lines += [_cut(f"  - `{name}`: {outcome}") for name, outcome in cases if outcome != "ok"]
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def _sections(text: str) -> dict[str, str]:
    """The sections of a page by their titles, each with its heading, up to the next."""
    found = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {section[3 : section.index("\n")]: section for section in found if section.startswith("## ")}


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *lines, "", ""])


def _write(page: Path, device: str, sections: dict[str, str]) -> None:
    """The page, beside its place first, so that a stop leaves the one that was there."""
    head = ["---", "orphan: true", "---", "", f"# Speed on {device}", ""]
    head += ["`make cuda` has written this page. Times are medians or means of many calls in a row.", ""]
    titles = ["Checks", "Figures", *(title for title, _, _ in BENCHMARKS.values())]
    text = "\n".join([*head, ""]) + "".join(sections[title] for title in titles if title in sections)
    beside = page.with_name(f"{page.name}.new")
    beside.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    beside.replace(page)


def _check(folder: Path) -> tuple[int, dict[str, str]]:
    """What the tests of `tests/cuda` gave, and the figures that they noted."""
    lines = folder / "figures.jsonl"
    outcomes: list[tuple[str, str]] = []
    notes: list[str] = []
    code = 0
    for i, (seconds, options) in enumerate(CHECKS):
        report = folder / f"{i}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", *options, f"--junitxml={report}"]
        status, said = _run(command, seconds, DESCEND_FIGURES=str(lines))
        print(said)  # noqa: T201  # a command shows what it runs
        outcomes += _outcomes(report)
        if status not in (0, 1):
            notes.append(f"- {options[-1]}: pytest ended with {status}: {_cut(said.strip().splitlines()[-1])}")
        code = code or status
    text = lines.read_text(encoding="utf-8") if lines.exists() else ""
    figures = [_cut(f"- {name}: {value}") for name, value in map(json.loads, text.splitlines())]
    return code, {
        "Checks": _section("Checks", [*_counted(outcomes), *notes]),
        "Figures": _section("Figures", figures),
    }


def _benchmark(title: str, seconds: float, command: str) -> tuple[int, dict[str, str]]:
    """What a benchmark printed."""
    script, *options = command.split()
    code, said = _run([sys.executable, f"benchmarks/{script}", *options], seconds)
    print(said)  # noqa: T201  # a command shows what it runs
    shown = textwrap.wrap(f"python benchmarks/{command}", COLUMNS - 6, break_on_hyphens=False)
    lines = ["```text", " \\\n    ".join(shown), "", *map(_cut, said.strip().splitlines()), "```"]
    return code, {title: _section(title, lines)}


def main() -> int:
    """Run everything, or what is named, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "speed_cuda.md")
    parts = ["checks", *BENCHMARKS]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    given = parser.parse_args()
    page: Path = given.page
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    code, said = _run([sys.executable, "-c", asked], 120)
    device = said.strip().splitlines()[-1:]
    if code or not device or not device[0]:
        print("make cuda needs a GPU and torch's build for CUDA; torch sees no GPU here", file=sys.stderr)  # noqa: T201
        return 2
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    sections = _sections(before) if f"# Speed on {device[0]}\n" in before else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in given.only:
            failed, written = _check(Path(folder)) if part == "checks" else _benchmark(*BENCHMARKS[part])
            code = code or failed
            sections |= written
            _write(page, device[0], sections)  # what there is, if time runs out
    print(f"wrote {page}")  # noqa: T201
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
