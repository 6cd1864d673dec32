"""Runs the checks and the benchmarks that need a GPU and writes `docs/speed_cuda.md`: `make cuda`, ten minutes.

    python tools/cuda_page.py [--page FILE]

What fails stands on the page; the exit status is 0 if nothing did, 1 if something did, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
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
    (150, ("--ignore=tests/cuda/test_agreement.py", "tests/cuda")),
)
BENCHMARKS = {
    "Optimizer steps": (
        200,
        "optimizer_step.py --device cuda --rounds 9 --seconds 1 --minutes 2 --models resnet50 thousand_of_64",
    ),
    "Training steps, evaluation and inference": (
        90,
        "train_step.py --device cuda --rounds 5 --what training evaluation inference",
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


def _page(
    figures: list[tuple[str, str]], outcomes: list[tuple[str, str]], benchmarks: dict[str, str], notes: list[str]
) -> str:
    device = next((value for name, value in figures if name == "device"), "an unnamed device")
    lines = ["---", "orphan: true", "---", "", f"# Speed on {device}", ""]
    lines += ["`make cuda` has written this page. Times are medians or means of many calls in a row.", ""]
    lines += ["## Checks", "", *_counted(outcomes), *notes, "", "## Figures", ""]
    lines += [_cut(f"- {name}: {value}") for name, value in figures]
    for title, said in benchmarks.items():
        command = textwrap.wrap(f"python benchmarks/{BENCHMARKS[title][1]}", COLUMNS - 6, break_on_hyphens=False)
        lines += ["", f"## {title}", "", "```text", " \\\n    ".join(command), ""]
        lines += [*map(_cut, said.strip().splitlines()), "```"]
    return "\n".join([*lines, ""])


def main() -> int:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "speed_cuda.md")
    page: Path = parser.parse_args().page
    code, said = _run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], 120)
    if code or said.split()[-1:] != ["True"]:
        print("make cuda needs a GPU and torch's build for CUDA; torch sees no GPU here", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "figures.jsonl"
        outcomes: list[tuple[str, str]] = []
        notes: list[str] = []
        code = 0
        for i, (seconds, options) in enumerate(CHECKS):
            report = Path(folder) / f"{i}.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-m", "", *options, f"--junitxml={report}"]
            status, said = _run(command, seconds, DESCEND_FIGURES=str(lines))
            print(said)  # noqa: T201
            outcomes += _outcomes(report)
            if status not in (0, 1):
                notes.append(f"- {options[-1]}: pytest ended with {status}: {_cut(said.strip().splitlines()[-1])}")
            code = code or status
        text = lines.read_text(encoding="utf-8") if lines.exists() else ""
        figures = [(str(name), str(value)) for name, value in map(json.loads, text.splitlines())]
    said_of: dict[str, str] = {}
    for title, (seconds, command) in BENCHMARKS.items():
        script, *options = command.split()
        failed, said_of[title] = _run([sys.executable, f"benchmarks/{script}", *options], seconds)
        code = code or failed
        page.write_text(_page(figures, outcomes, said_of, notes), encoding="utf-8")  # what there is, if time runs out
    print(f"wrote {page}")  # noqa: T201
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
