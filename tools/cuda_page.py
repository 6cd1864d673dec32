"""Runs the checks and the benchmarks that need a GPU and writes `docs/speed_cuda.md`: `make cuda`, ten minutes.

    python tools/cuda_page.py [--page FILE]

What fails stands on the page; the exit status is 0 if nothing did, 1 if something did, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
CHECK_SECONDS, BENCHMARK_SECONDS = 330, 240  # together less than ten minutes
BENCHMARK = ("--device", "cuda", "--rounds", "9", "--seconds", "1", "--models", "resnet50", "thousand_of_64")


def _run(command: list[str], seconds: float, **more: str) -> tuple[int, str]:
    """A command's exit status and output; 124 and what it had said where it took longer."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", **more}
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


def _page(figures: list[tuple[str, str]], outcomes: list[tuple[str, str]], benchmark: str, notes: list[str]) -> str:
    device = next((value for name, value in figures if name == "device"), "an unnamed device")
    lines = ["---", "orphan: true", "---", "", f"# Speed on {device}", ""]
    lines += ["`make cuda` has written this page. Times are medians or means of many calls in a row.", ""]
    lines += ["## Checks", "", *_counted(outcomes), *notes, "", "## Figures", ""]
    lines += [_cut(f"- {name}: {value}") for name, value in figures]
    lines += ["", "## Optimizer steps", "", "```text", "python benchmarks/optimizer_step.py \\"]
    lines += [f"    {' '.join(BENCHMARK)}", "", *map(_cut, benchmark.strip().splitlines()), "```", ""]
    return "\n".join(lines)


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
        report, lines = Path(folder) / "checks.xml", Path(folder) / "figures.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "tests/cuda", f"--junitxml={report}"]
        code, said = _run(command, CHECK_SECONDS, DESCEND_FIGURES=str(lines))
        print(said)  # noqa: T201
        outcomes = _outcomes(report)
        text = lines.read_text(encoding="utf-8") if lines.exists() else ""
        figures = [(str(name), str(value)) for name, value in map(json.loads, text.splitlines())]
    notes = [] if code in (0, 1) else [f"- pytest ended with {code}: {_cut(said.strip().splitlines()[-1])}"]
    failed, benchmark = _run([sys.executable, "benchmarks/optimizer_step.py", *BENCHMARK], BENCHMARK_SECONDS)
    page.write_text(_page(figures, outcomes, benchmark, notes), encoding="utf-8")
    print(f"wrote {page}")  # noqa: T201
    return 1 if code or failed else 0


if __name__ == "__main__":
    sys.exit(main())
