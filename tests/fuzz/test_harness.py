"""What the harness of the fuzzing scripts finds: hangs, foreign errors, crashes, unprintable messages."""

import os
import signal

from descend.errors import StorageError
from tests.fuzz.harness import run, run_in_processes


def test_answers_are_counted_and_foreign_errors_are_findings():
    def attempt(draw):
        kind = draw.randrange(3)
        if kind == 0:
            raise StorageError("damaged")
        if kind == 1:
            raise KeyError("lost")

    report = run(attempt, 60, seed=1)
    assert report.accepted + report.refused + report.failed == 60
    assert min(report.accepted, report.refused, report.failed) > 5
    (place,) = report.findings
    assert place.endswith("KeyError")


def test_a_hang_is_a_finding_even_where_exceptions_are_caught():
    def attempt(draw):
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    assert list(run(attempt, 1, seed=0, seconds=0.05).findings) == ["hang 0"]


def test_a_message_that_a_terminal_would_obey_is_a_finding():
    class Raw(StorageError):  # messages of our errors escape such characters by themselves
        def __str__(self):
            return "file \x1b[2J"

    def attempt(draw):
        raise Raw("file")

    (place,) = run(attempt, 2, seed=0).findings
    assert place == "message Raw"


def test_a_crash_is_a_finding_and_the_inputs_around_it_are_counted():
    def attempt(draw):
        if draw.randrange(4) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    report = run_in_processes(attempt, 6, seed=0)
    assert report.accepted + report.failed == 6
    assert report.failed == len(report.findings) > 0
    assert all("with -9" in what for what in report.findings.values())
