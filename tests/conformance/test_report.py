"""The table of an examination."""

from __future__ import annotations

import torch

from descend.conformance import examine
from descend.conformance.report import CheckFinding, Report, Verdict


def report(*verdicts):
    return Report("Adam", tuple(CheckFinding(f"check {i}", "x", "y", v) for i, v in enumerate(verdicts)))


def test_only_failures_fail():
    assert report(Verdict.OK, Verdict.DEVIATION, Verdict.NOT_APPLICABLE).passed
    failed = report(Verdict.OK, Verdict.FAIL, Verdict.FAIL)
    assert not failed.passed
    assert [found.check for found in failed.failures] == ["check 1", "check 2"]


def test_counts_leave_out_what_did_not_occur():
    assert report(Verdict.OK, Verdict.FAIL, Verdict.OK).counts == "2 ok, 1 FAIL"
    assert report(Verdict.OK, Verdict.FAIL).line == "Adam: 1 ok, 1 FAIL (check 1)"
    assert report(Verdict.NOT_APPLICABLE).line == "Adam: y"  # an optimizer that was not examined


def test_a_long_text_takes_several_lines_of_its_column():
    found = CheckFinding("closure", "an expectation " * 5, "short", Verdict.OK)
    head, first, second, _, last = str(Report("Adam", (found,))).splitlines()
    assert head.split() == ["check", "expected", "seen", "verdict"]
    assert first.endswith("ok")
    assert first.index("short") == head.index("seen")
    assert (first[28:72].strip() + " " + second.strip()) == ("an expectation " * 5).strip()
    assert last == "Adam: 1 ok"


def test_the_table_ends_with_counts():
    lines = str(examine(torch.optim.SGD)).splitlines()
    assert lines[0].split() == ["check", "expected", "seen", "verdict"]
    assert lines[-1].startswith("SGD: 23 ok")
    assert max(map(len, lines)) < 170
