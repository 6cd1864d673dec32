"""What an examination found, as a table."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from enum import Enum

__all__ = ["CheckFinding", "CheckOutcome", "Report", "Verdict", "deviation", "fail", "not_applicable", "ok"]

_WIDTHS = (26, 44, 66)  # of the columns check, expected and seen


class Verdict(Enum):
    """What became of one check."""

    OK = "ok"
    FAIL = "FAIL"
    DEVIATION = "deviation"  # known, named, and harmless once known
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class CheckOutcome:
    """What a check saw."""

    verdict: Verdict
    seen: str


def ok(seen: str) -> CheckOutcome:
    """As expected."""
    return CheckOutcome(Verdict.OK, seen)


def fail(seen: str) -> CheckOutcome:
    """Not as expected."""
    return CheckOutcome(Verdict.FAIL, seen)


def deviation(seen: str) -> CheckOutcome:
    """Another form that is in use."""
    return CheckOutcome(Verdict.DEVIATION, seen)


def not_applicable(seen: str) -> CheckOutcome:
    """The question does not arise for this optimizer."""
    return CheckOutcome(Verdict.NOT_APPLICABLE, seen)


@dataclass(frozen=True)
class CheckFinding:
    """One line of the table."""

    check: str
    expected: str
    seen: str
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """All findings about one optimizer; as text a table with a line of counts below.

    Attributes:
        title: Name of the optimizer, with the arguments it was built with.
        findings: In the order of the checks.
    """

    title: str
    findings: tuple[CheckFinding, ...]

    @property
    def failures(self) -> tuple[CheckFinding, ...]:
        """The findings that are failures."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAIL)

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __getitem__(self, check: str) -> CheckFinding:
        return next(finding for finding in self.findings if finding.check == check)

    def __str__(self) -> str:
        head = _line(("check", "expected", "seen"), "verdict")
        rows = [line for f in self.findings for line in _line((f.check, f.expected, f.seen), f.verdict.value)]
        return "\n".join([*head, *rows, "", f"{self.title}: {self.counts}"])

    @property
    def counts(self) -> str:
        """`24 ok, 1 deviation, 2 FAIL, 1 not applicable`."""
        found = Counter(finding.verdict for finding in self.findings)
        return ", ".join(f"{found[verdict]} {verdict.value}" for verdict in Verdict if found[verdict])

    @property
    def line(self) -> str:
        """The report in one line, for a survey."""
        failed = ", ".join(finding.check for finding in self.failures)
        if len(self.findings) == 1 and self.passed:
            return f"{self.title}: {self.findings[0].seen}"
        return f"{self.title}: {self.counts}" + (f" ({failed})" if failed else "")


def _line(texts: tuple[str, str, str], verdict: str) -> list[str]:
    """A row of the table; long texts take several lines."""
    cells = [textwrap.wrap(text, width) or [""] for text, width in zip(texts, _WIDTHS, strict=True)]
    height = max(map(len, cells))
    lines: list[str] = []
    for i in range(height):
        parts = [(cell[i] if i < len(cell) else "").ljust(w) for cell, w in zip(cells, _WIDTHS, strict=True)]
        lines.append("  ".join([*parts, verdict if i == 0 else ""]).rstrip())
    return lines
