"""What is viewed: runs and studies, each with its page, and a list that compares the runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError, DescendError
from descend.experiment.run_page.read import is_run_directory, read_run, stamp
from descend.experiment.run_page.sections import quantity_figure, short
from descend.experiment.run_page.write import plan_of, run_page
from descend.filenames import no_directory
from descend.pages.chart import Line
from descend.pages.html import Live, number, page
from descend.pages.parts import Links, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from descend.experiment.run_page.read import RunRecord

__all__ = ["Subject", "home_page", "subjects"]

_MAX_SUBJECTS = 200
_MAX_COMPARED = 12  # quantities that are drawn for all runs
_TIMES = ("samples", "seconds")


@dataclass(frozen=True)
class Subject:
    """A run or a study.

    Attributes:
        folder: Its directory.
        is_study: Which of the two.
        name: On pages.
    """

    folder: Path
    is_study: bool
    name: str

    @property
    def stamp(self) -> str:
        """Changes whenever something was written."""
        if not self.is_study:
            return stamp(self.folder)
        files = [self.folder / "study.json", *sorted((self.folder / "records").glob("*"))]
        files += sorted((self.folder / "follow_ups").glob("*"))
        found = [file.stat() for file in files if file.is_file()]
        return "-".join(f"{one.st_size:x}.{one.st_mtime_ns:x}" for one in found)

    def page(self, live: Live) -> str:
        """Its page; an error in its files is a page, too, since they may be repaired later, or half written."""
        try:
            if not self.is_study:
                return run_page(read_run(self.folder), plan_of(self.folder), live=live)
            from descend.study.comparing import read_directory
            from descend.study.report.write import report_page

            return report_page(read_directory(self.folder), live)
        except DescendError as error:
            return page(self.name, [], reason=f"{self.folder} cannot be shown: {error}", live=live)


def subjects(folders: Iterable[Path]) -> list[Subject]:
    """The runs and studies in these directories; a directory that is neither stands for those in it.

    Raises:
        ConfigurationError: there are none in one of them, or more than 200 in all.
    """
    found: dict[Path, bool] = {}
    problems: list[str] = []
    for folder in folders:
        inside = [folder, *sorted(folder.iterdir())] if no_directory(folder) is None else []
        own = inside[:1] if inside and _kind(folder) is not None else inside[1:]
        known = {one.resolve(): kind for one in own if (kind := _kind(one)) is not None}
        if not known:
            what = no_directory(folder) or "no run and no study is in it"
            problems.append(f"{folder}: {what}; name the directory of a run, of a study, or one that holds these")
        found |= known
    if len(found) > _MAX_SUBJECTS:
        problems.append(f"{len(found)} runs and studies were found, and at most {_MAX_SUBJECTS} are shown at once")
    if problems:
        raise ConfigurationError(problems)
    names = _names(list(found))
    return [Subject(folder, kind, name) for (folder, kind), name in zip(found.items(), names, strict=True)]


def _kind(folder: Path) -> bool | None:
    """Whether a directory is that of a study; None for neither."""
    if (folder / "study.json").is_file():
        return True
    return False if is_run_directory(folder) else None


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as make them differ."""
    for parts in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def home_page(shown: Sequence[Subject], live: Live) -> str:
    """The list of all, with the runs side by side."""
    runs: dict[str, RunRecord] = {}
    for one in shown:
        if not one.is_study:
            try:
                runs[one.name] = read_run(one.folder)
            except DescendError:  # its own page says what is wrong
                continue
    links = Links("Runs and studies", tuple((f"item/{place}/", _said(one, runs)) for place, one in enumerate(shown)))
    parts: list[Section] = [Section("Pages", (links,))]
    if runs:
        parts.append(Section("Runs side by side", (_last_values(runs), *_compared(runs))))
    made, reason = number(parts)
    return page("Runs and studies", made, reason=reason, live=live)


def _said(one: Subject, runs: dict[str, RunRecord]) -> str:
    if one.is_study:
        return f"{one.name}: study"
    run = runs.get(one.name)
    return f"{one.name}: run, {run.status}, {run.step:,} updates" if run else f"{one.name}: run"


def _mode(run: RunRecord, quantity: str) -> str | None:
    """The mode by which runs are compared: validation where it was measured."""
    return next((mode for mode in ("validation", "train", "test") if run.series(quantity, mode)), None)


def _quantities(runs: dict[str, RunRecord]) -> list[str]:
    names = dict.fromkeys(name for run in runs.values() for name in run.quantities)
    return [name for name in names if name not in _TIMES]


def _last_values(runs: dict[str, RunRecord]) -> Table:
    names = [name for name in _quantities(runs) if not name.startswith("learning_rate")][:_MAX_COMPARED]
    rows = [
        (
            name,
            run.status,
            f"{run.step:,}",
            short(run.facts.get("settings", {}).get("optimizer.rule", "")).partition("(")[0],
            short(run.facts.get("settings", {}).get("batch_size")),
            *(short(points[-1][1]) if (points := run.series(one, _mode(run, one))) else "" for one in names),
        )
        for name, run in runs.items()
    ]
    heads = ("run", "status", "updates", "rule", "batch size", *names)
    return Table(
        "last values", heads, tuple(rows), "Of validation samples where there are any, else of training samples."
    )


def _compared(runs: dict[str, RunRecord]) -> Iterable[object]:
    for name in _quantities(runs)[:_MAX_COMPARED]:
        lines = [
            Line(run, tuple(points[:: -(-len(points) // 300)]), marked=len(points) <= 40)
            for run, record in runs.items()
            if (points := record.series(name, _mode(record, name)))
        ]
        modes = sorted({mode for record in runs.values() if (mode := _mode(record, name))})
        alone = f" Recorded by {lines[0].name} alone." if len(lines) == 1 < len(runs) else ""
        yield quantity_figure(name, lines, f"Of {' and '.join(modes)} samples.{alone}" if modes else "")
