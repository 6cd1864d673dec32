"""Runs a function over many hostile inputs and reports what it raised, how long it took and how much memory.

An input passes if the function returns or raises a `DescendError` in time. Everything else is a finding: a hang,
another exception, a crash of the process, or more than 1 GB of memory. Inputs are drawn from (seed, number), so a
finding can be repeated alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import DescendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINE = 2_000  # characters of a line of an error
MAX_BYTES = 10**9
_PACKAGE = Path(__file__).resolve().parents[2] / "descend"
_CHUNK = 1_000  # inputs of one process


class HangError(BaseException):
    """An input took more processor time than it may; no handler of `Exception` keeps it."""


@dataclass
class Report:
    """What came of all inputs.

    Attributes:
        accepted: How many were answered without an error.
        refused: How many were answered with an error of ours.
        malformed: How many of these were only found because an importer failed on them.
        findings: For each place that raised another exception, the number of the first input and what was raised.
        slowest: Seconds of processor time and number of the slowest input.
        peak_bytes: The largest memory that the process had, minus what it had before.
        failed: How many were answered in another way.
    """

    accepted: int = 0
    refused: int = 0
    malformed: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    peak_bytes: int = 0
    failed: int = 0

    def add(self, other: Report) -> None:
        """Put the report of other inputs to this one."""
        self.accepted += other.accepted
        self.refused += other.refused
        self.malformed += other.malformed
        self.findings = {**other.findings, **self.findings}
        self.failed += other.failed
        self.slowest = max(self.slowest, other.slowest)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    def __str__(self) -> str:
        lines = [
            f"{self.accepted + self.refused + self.failed} inputs: {self.accepted} accepted, {self.refused} refused, "
            f"{self.failed} failed with {len(self.findings)} different findings",
            f"slowest: {self.slowest[0]:.2f} s (input {self.slowest[1]})",
            f"memory grew by {self.peak_bytes / 1e6:.0f} MB",
            *(f"  found as malformed {count} times: {place}" for place, count in self.malformed.most_common(40)),
            *(f"  FINDING {place}: {what}" for place, what in self.findings.items()),
        ]
        return "\n".join(lines)


def run(
    attempt: Callable[[random.Random], object],
    count: int,
    seed: int,
    *,
    seconds: float = 5.0,
    begin: int = 0,
    current: Any = None,
) -> Report:
    """Call `attempt` with a generator for each input.

    Args:
        attempt: Makes an input and reads it.
        count: How many inputs.
        seed: Of all of them.
        seconds: Processor time that an input may take; so a busy machine makes no findings.
        begin: The number of the first input.
        current: A shared integer that is set to the number of each input before it is made.
    """
    report, before = Report(), _peak()
    for number in range(begin, begin + count):
        if current is not None:
            current.value = number
        started = time.process_time()
        try:
            with _within(seconds):
                attempt(random.Random(f"{seed} {number}"))
            report.accepted += 1
        except DescendError as error:
            report.refused += 1
            _look_at(error, number, report)
        except HangError:
            report.failed += 1
            report.findings[f"hang {number}"] = f"input {number} took longer than {seconds} s"
        except Exception as error:
            report.failed += 1
            place = f"{_place(error)} {type(error).__name__}"
            report.findings.setdefault(place, f"input {number}: {str(error)[:200]}")
        report.slowest = max(report.slowest, (time.process_time() - started, number))
    report.peak_bytes = _peak() - before
    if report.peak_bytes > MAX_BYTES:
        report.findings["memory"] = f"inputs {begin} to {begin + count - 1}: {report.peak_bytes:,} bytes"
    return report


def run_in_processes(attempt: Callable[[random.Random], object], count: int, seed: int, *, begin: int = 0) -> Report:
    """As `run`, in processes of their own, so that one that crashes is a finding and not the end."""
    report, end = Report(), begin + count
    while begin < end:
        some = min(_CHUNK, end - begin)
        done, crash = _in_a_process(attempt, some, seed, begin)
        if done is None:
            number, code = crash
            report.findings[f"crash {number}"] = f"input {number} ended the process with {code}"
            report.failed += 1
            if number > begin:  # those before it again, since their report was lost
                report.add(_in_a_process(attempt, number - begin, seed, begin)[0] or Report())
            begin = number + 1
        else:
            report.add(done)
            begin += some
    return report


def _in_a_process(
    attempt: Callable[[random.Random], object], count: int, seed: int, begin: int
) -> tuple[Report | None, tuple[int, int | None]]:
    """The report, or None where the process has crashed; and the input that it was at, with its exit code."""
    context = multiprocessing.get_context("fork")
    current, (ours, theirs) = context.Value("q", begin), context.Pipe(duplex=False)

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:  # of whatever an input leaves behind
            tempfile.tempdir = folder
            theirs.send(run(attempt, count, seed, begin=begin, current=current))

    process = context.Process(target=work)
    process.start()
    theirs.close()
    try:
        report = ours.recv()
    except EOFError:
        report = None
    process.join()
    return report, (current.value, process.exitcode)


def main(attempt: Callable[[random.Random], object], description: str) -> None:
    """The command line of a fuzzing script; ends with 1 where something was found."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=20_000, help="inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=int, default=0, help="number of the first input, to repeat a finding alone")
    options = parser.parse_args()
    report = run_in_processes(attempt, options.count, options.seed, begin=options.begin)
    sys.stdout.write(f"{report}\n")
    sys.exit(bool(report.findings))


def _place(error: Exception) -> str:
    """The last line of the package that an error came through, and where it was raised if that is elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _PACKAGE in Path(frame.filename).parents]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*own[-1:], frames[-1])]
    return " ".join(dict.fromkeys(places))


def _look_at(error: DescendError, number: int, report: Report) -> None:
    """Count the errors that a guard made of others, and find lines that are too long or not printable."""
    for problem in error.problems:
        _, found, what = problem.partition("is malformed")
        if found:
            report.malformed[what[what.rfind("(") :][:80] if "(" in what else what[:80]] += 1
    for line in str(error).split("\n"):
        if len(line) > MAX_LINE or not line.replace("\t", "").isprintable():
            report.findings.setdefault(f"message {type(error).__name__}", f"input {number}: {line[:200]!r}")


def _peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
