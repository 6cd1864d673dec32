"""Seconds and memory of `descend view` over many long runs, beside a program that parses every row of all.

    python benchmarks/view.py                                 # 200 runs of 20,000 rows, 3 MB each
    python benchmarks/view.py --runs 20 --rows 2000

The runs are written to a temporary folder. Then `descend view` is started on it and asked as a browser asks: for the
list of all runs, for its stamp until all rows are read, for the list again, for one of its charts, and once more after
a row was added to one run. "naive" is a process that keeps every row as a dictionary. Memory is the resident size of
the process at that time; "from the start" counts from the start of the command.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

NAIVE = """
import json, pathlib, sys
files = sorted(pathlib.Path(sys.argv[1]).glob("*/metrics.jsonl"))
rows = [[json.loads(line) for line in path.open()] for path in files]
print(sum(map(len, rows)), flush=True)
sys.stdin.read()
"""


def make_runs(folder: Path, runs: int, rows: int) -> int:
    """Write the runs; returns their bytes."""
    size = 0
    facts = {"settings": {"batch_size": 32, "optimizer.rule": "SGD(momentum=0.9)"}, "end": {"exit_code": 0}}
    for number in range(runs):
        run = folder / f"run{number:03d}"
        run.mkdir()
        (run / "run.json").write_text(json.dumps(facts))
        with (run / "metrics.jsonl").open("w") as file:
            for epoch in range(1, rows // 2 + 1):
                size += file.write(f"{row('train', epoch, number)}\n{row('validation', epoch, number)}\n")
    return size


def row(mode: str, epoch: int, number: int) -> str:
    """A row of a run, of 165 bytes on average."""
    made = {"mode": mode, "epoch": epoch, "step": 100 * epoch, "objective": 2.302585 / (1 + epoch / (100 + number))}
    made |= {"accuracy": 0.1234567 + 0.8 * epoch / (epoch + 500), "samples": 3200, "seconds": 0.51234}
    return json.dumps(made | ({"learning_rate": 0.001 * (1 + number)} if mode == "train" else {}))


def resident(process: subprocess.Popen[str]) -> float:
    """Megabytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(found[1]) / 1000 if found else float("nan")


def fetched(url: str) -> tuple[float, str]:
    """Seconds until an answer was there, and its text."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=600) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def say(what: str, seconds: float, megabytes: float) -> None:
    """One line of the table."""
    sys.stdout.write(f"{what:<52} {seconds:8.2f} s  {megabytes:8.0f} MB\n")
    sys.stdout.flush()


def view(folder: Path) -> None:
    """Ask `descend view` as a browser does."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "descend", "view", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        url = found[0]
        say("view: address printed, from the start", time.perf_counter() - began, resident(process))
        say("view: the first list of all runs", fetched(url)[0], resident(process))
        began, text = time.perf_counter(), fetched(url)[1]
        while "are read so far" in text:
            time.sleep(1.0)
            text = fetched(url)[1]
        say("view: all rows read", time.perf_counter() - began, resident(process))
        say("view: the list again", fetched(url)[0], resident(process))
        (source, *_) = re.findall(r'data-source="([^"]+)"', text)
        say("view: one chart of all runs", fetched(url + source)[0], resident(process))
        with (folder / "run000" / "metrics.jsonl").open("a") as file:
            file.write(f"{row('train', 10**6, 0)}\n")
        seconds, fresh = fetched(url)
        say("view: the list after one more row", seconds, resident(process))
        old, new = (set(re.findall(r'data-source="([^"]+)"', one)) for one in (text, fresh))
        sys.stdout.write(f"charts of the list: {len(new)}, of which {len(new - old)} are others after that row\n")
        say("view: the page of one run", fetched(f"{url}item/0/")[0], resident(process))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def naive(folder: Path) -> None:
    """Parse every row of all runs."""
    began = time.perf_counter()
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", NAIVE, str(folder)], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    say("naive: every row of all runs parsed", time.perf_counter() - began, resident(process))
    process.communicate("")


def main() -> None:
    """Write the runs, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=20_000, help="of each run")
    parser.add_argument("--no-naive", action="store_true", help="leave the contender out, which may need gigabytes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        size = make_runs(Path(name), options.runs, options.rows)
        sys.stdout.write(f"{options.runs} runs of {options.rows:,} rows, {size / 1e6:,.0f} MB in all\n")
        view(Path(name))
        if not options.no_naive:
            naive(Path(name))


if __name__ == "__main__":
    main()
