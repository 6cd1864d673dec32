"""How far a study is: on the terminal after each trial, and of a directory."""

import dataclasses
import io
import sys

import pytest
from study_tasks import fabricated

from descend.study.design import Arm, Study, log
from descend.study.progress import StudyProgress, duration, status_of
from descend.study.running.trial_store import StudyDirectory

STUDY = Study(
    name="digits",
    workload="t.py:t",
    batch_sizes=(32,),
    steps=(10,),
    arms={"a": Arm("SGD", {"lr": log(0.1, 1)})},
    trials=2,
    searches=1,
    shortlist=1,
    confirmation_seeds=2,
)
RECORDS = list(fabricated(STUDY, lambda trial: "diverged" if trial.index == 1 else 0.5).values())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (float("nan"), "an unknown time"),
        (float("inf"), "an unknown time"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_line_after_the_first_and_the_last_trial_and_no_more_than_two_a_second(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = StudyProgress(STUDY)
    for number, record in enumerate(RECORDS):
        progress({one.trial.id: one for one in RECORDS[:number]}, record)
    lines = sys.stderr.getvalue().split("\r")[1:]
    assert len(lines) == 2
    assert lines[0].startswith("1 of 4 trials, ")
    assert lines[1].startswith("4 of 4 trials, 0 s left")
    assert lines[1].endswith("\n")


def test_nothing_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    StudyProgress(STUDY)({}, RECORDS[0])
    assert sys.stderr.getvalue() == ""


def test_the_status_of_a_directory(tmp_path):
    with StudyDirectory(tmp_path, STUDY) as directory:
        directory.record(*RECORDS[:3])
    assert str(status_of(tmp_path)).splitlines() == [
        "digits: 3 of 4 trials",
        "phases: 1 confirmation, 2 search",
        "ended: 1 diverged, 2 done",
        "took 1 s of one process; about 0 s left",
    ]
    with StudyDirectory(tmp_path, STUDY) as directory:
        directory.record(*RECORDS[3:])
    assert str(status_of(tmp_path)).splitlines()[-1].endswith("of one process")  # nothing is left


def test_what_does_not_count_is_reported(tmp_path):
    with StudyDirectory(tmp_path, STUDY) as directory:
        directory.record(RECORDS[0])
    (file,) = (tmp_path / "records").iterdir()
    whole = file.read_text()
    file.write_text(whole + RECORDS[1].line()[:50])
    assert f"{file}: the last line has no end" in str(status_of(tmp_path))
    stranger = dataclasses.replace(RECORDS[1], trial=dataclasses.replace(RECORDS[1].trial, arm="of another study"))
    file.write_text(f"{whole}{stranger.line()}\n")
    printed = str(status_of(tmp_path))
    assert "1 of 4 trials" in printed
    assert "1 more records are of trials that the study does not ask for" in printed
    assert "no end" not in printed
