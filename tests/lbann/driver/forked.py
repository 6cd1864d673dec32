"""Runs LBANN's driver in a process of its own for each of many programs: forks of one that has imported what they need.

    python -m tests.lbann.driver.forked < jobs

A job is a line of JSON with a folder and arguments. The answer is a line with its exit code; what it printed is in the
files `out.log` and `err.log` of its folder.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.lbann.driver.programs import Ended, experiment, write

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 120  # of one program


def run_all(jobs: Iterable[tuple[Path, list[str]]]) -> list[Ended]:
    """How each program ended: the driver with these arguments in this folder."""
    jobs = list(jobs)
    lines = "".join(json.dumps([str(folder), arguments]) + "\n" for folder, arguments in jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.lbann.driver.forked"]
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes = [int(line) for line in done.stdout.split()]
    assert len(codes) == len(jobs), done.stderr
    return [
        Ended(code, (folder / "out.log").read_text(), (folder / "err.log").read_text())
        for code, (folder, _) in zip(codes, jobs, strict=True)
    ]


def _drive(folder: str, arguments: list[str]) -> int:
    """The exit code of the driver in a folder, with its streams in two files there."""
    from descend.lbann.driver import main as driver

    os.chdir(folder)
    for name, place in (("out.log", 1), ("err.log", 2)):
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(file, place)
        os.close(file)
    sys.argv = ["lbann", *arguments]
    code = 1
    try:
        driver.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _fork(folder: str, arguments: list[str]) -> int:
    """The exit code of the driver in a process of its own; -N where signal N has ended it."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    signal.alarm(LIMIT_SECONDS)
    sys.path[0] = folder
    code = 1
    try:
        code = _drive(folder, arguments)
    finally:
        os._exit(code)
    raise AssertionError  # never reached


def _warm_up() -> None:
    """Run one program here, so that no fork imports, reads or compiles what all of them need."""
    streams = [os.dup(place) for place in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), experiment())
        assert _drive(folder, ["--prototext=experiment.prototext"]) == 0
        os.chdir(ROOT)
    for stream, place in zip(streams, (1, 2), strict=True):
        os.dup2(stream, place)


if __name__ == "__main__":
    _warm_up()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.write(f"{_fork(*json.loads(line))}\n")
        sys.stdout.flush()
