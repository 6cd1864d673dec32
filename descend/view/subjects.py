"""What is viewed: runs and studies, each with its page, and a list that compares the runs."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError, DescendError
from descend.files import has_file, no_directory
from descend.pages.chart import Line
from descend.pages.html import Live, number, page
from descend.pages.parts import DeferredFigure, Links, Section, Table
from descend.pages.run.metrics import MAX_POINTS
from descend.pages.run.read import RunReader, is_run_directory, short, stamp
from descend.pages.run.sections import quantity_figure
from descend.pages.run.write import plan_of, run_page
from descend.terminal.display import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from descend.pages.parts import Figure
    from descend.pages.run.read import RunGlance

__all__ = ["Subject", "home_page", "home_stamp", "subjects"]

_MAX_SUBJECTS = 200
_SAID = 300  # characters of a reason in the list
_MAX_COMPARED = 12  # quantities that are drawn for all runs
_AT_ONCE = 1_000_000  # bytes of new rows that the list of all waits for; what is more is read in the background
_MAX_POINTS = 6_000  # of a figure of all runs
_MARKED = 12  # runs, up to which points have marks


@dataclass(frozen=True)
class Subject:
    """A run or a study.

    Attributes:
        folder: Its directory.
        is_study: Which of the two.
        name: On pages.
        reader: Of a run: keeps what was read.
    """

    folder: Path
    is_study: bool
    name: str
    reader: RunReader = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", RunReader(self.folder))

    @property
    def stamp(self) -> str:
        """Changes whenever something was written."""
        if not self.is_study:
            return stamp(self.folder)
        files = [self.folder / "study.json", *sorted((self.folder / "records").glob("*"))]
        files += sorted((self.folder / "follow_ups").glob("*"))
        found = [file.stat() for file in files if has_file(file)]
        return "-".join(f"{one.st_size:x}.{one.st_mtime_ns:x}" for one in found)

    def page(self, live: Live) -> str:
        """Its page; an error in its files is a page, too, since they may be repaired later, or half written."""
        try:
            if not self.is_study:
                return run_page(self.reader.read(), plan_of(self.folder), live=live)
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
        inside, what = _inside(folder)
        known = {one.resolve(): kind for one in inside if (kind := _kind(one)) is not None}
        if not known:
            problems.append(f"{folder}: {what}; name the directory of a run, of a study, or one that holds these")
        found |= known
    if len(found) > _MAX_SUBJECTS:
        problems.append(f"{len(found)} runs and studies were found, and at most {_MAX_SUBJECTS} are shown at once")
    if problems:
        raise ConfigurationError(problems)
    names = _names(list(found))
    return [Subject(folder, kind, name) for (folder, kind), name in zip(found.items(), names, strict=True)]


def _inside(folder: Path) -> tuple[list[Path], str]:
    """The directory itself if it is one of a run or study, else those in it; and what to say if none of them is."""
    if (what := no_directory(folder)) is not None:
        return [], what
    if _kind(folder) is not None:
        return [folder], ""
    try:
        return sorted(folder.iterdir()), "no run and no study is in it"
    except OSError as error:
        return [], f"it cannot be read: {error.strerror or error}"


def _kind(folder: Path) -> bool | None:
    """Whether a directory is that of a study; None for neither."""
    if has_file(folder / "study.json"):
        return True
    return False if is_run_directory(folder) else None


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as make them differ."""
    for parts in range(1, max((len(folder.parts) for folder in folders), default=1) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def home_stamp(shown: Sequence[Subject]) -> str:
    """Changes whenever something was written, or a run was read to its end."""
    whole = sum(one.reader.is_whole for one in shown if not one.is_study)
    return "|".join([str(whole), *(one.stamp for one in shown)])


def home_page(shown: Sequence[Subject], live: Live) -> str:
    """The list of all, with the runs side by side.

    Of runs whose rows take longer to read, it has what their first and last rows say, while the others are read in the
    background.
    """
    runs = {one.name: one.reader for one in shown if not one.is_study}
    late = [reader for reader in runs.values() if not reader.advance_if_near(_AT_ONCE // len(runs))]
    _BACKGROUND.read(late)
    glances = {name: reader.glance() for name, reader in runs.items()}
    links = Links("Runs and studies", tuple((f"item/{place}/", _said(one, glances)) for place, one in enumerate(shown)))
    parts: list[Section] = [Section("Pages", (links,))]
    if runs:
        parts.append(Section("Runs side by side", (_last_values(glances), *_compared(runs, glances))))
    made, reason = number(parts, live=live)
    return page("Runs and studies", made, reason=reason, live=live)


class _RunLoader:
    """A thread that reads the rows of runs while there are some."""

    def __init__(self) -> None:
        self._waiting: deque[RunReader] = deque()
        self._lock = threading.Lock()
        self._is_running = False

    def read(self, readers: Iterable[RunReader]) -> None:
        """Read all rows of these runs, soon."""
        with self._lock:
            self._waiting += [one for one in readers if one not in self._waiting]
            if self._waiting and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="descend view: reads runs", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                reader = self._waiting[0]
            while not reader.advance():
                pass
            with self._lock:
                self._waiting.popleft()


_BACKGROUND = _RunLoader()


def _said(one: Subject, glances: Mapping[str, RunGlance]) -> str:
    if one.is_study:
        return f"{one.name}: study{_damage_of_study(one.folder)}"
    run = glances[one.name]
    count = len(run.problems)
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    damage = f"; damaged, and in part left out: {shortened(run.problems[0], _SAID)}{more}" if count else ""
    return f"{one.name}: run, {run.status}, {run.step:,} updates{damage}"


def _damage_of_study(folder: Path) -> str:
    from descend.study.running.study_file import StudyFile

    try:
        StudyFile(folder).read()
    except DescendError as error:
        return f"; damaged: {shortened(str(error), _SAID)}"
    return ""


def _quantities(glances: Mapping[str, RunGlance]) -> list[str]:
    return list(dict.fromkeys(name for run in glances.values() for name in run.quantities))


def _last_values(glances: Mapping[str, RunGlance]) -> Table:
    names = [name for name in _quantities(glances) if not name.startswith("learning_rate")][:_MAX_COMPARED]
    rows = [
        (
            name,
            run.status,
            f"{run.step:,}",
            run.facts.settings.get("optimizer.rule", "").partition("(")[0],
            run.facts.settings.get("batch_size", ""),
            *(short(run.last[one][1]) if one in run.last else "" for one in names),
        )
        for name, run in glances.items()
    ]
    heads = ("run", "status", "updates", "rule", "batch size", *names)
    unread = sum(not run.is_whole for run in glances.values())
    note = "Of validation samples where there are any, else of training samples."
    if unread:
        note += f" {unread:,} of {len(glances):,} runs are still being read: these numbers are of their last rows."
    return Table("last values", heads, tuple(rows), note)


def _compared(runs: Mapping[str, RunReader], glances: Mapping[str, RunGlance]) -> Iterable[DeferredFigure | str]:
    every = _quantities(glances)
    read = sum(run.is_whole for run in glances.values())
    if read < len(glances):
        yield f"{read:,} of {len(glances):,} runs are read so far; charts follow when all are."
        return
    for name in every[:_MAX_COMPARED]:
        having = {run: runs[run] for run, glance in glances.items() if name in glance.last}
        if having:
            title = quantity_figure(name, []).title
            version = "\n".join(f"{run}\t{glances[run].versions[name]}" for run in having)
            caption = _caption(name, glances)
            yield DeferredFigure(title, version, partial(_figure_of_all, name, having, caption))
    if len(every) > _MAX_COMPARED:
        yield f"Not drawn, for lack of room: {shortened(', '.join(every[_MAX_COMPARED:]))}."


def _caption(quantity: str, glances: Mapping[str, RunGlance]) -> str:
    having = [name for name, run in glances.items() if quantity in run.last]
    modes = sorted({glances[name].last[quantity][0] for name in having})
    alone = f" Recorded by {having[0]} alone." if len(having) == 1 < len(glances) else ""
    return f"Of {' and '.join(modes)} samples.{alone}"


def _figure_of_all(quantity: str, runs: Mapping[str, RunReader], caption: str) -> Figure:
    most = max(20, min(MAX_POINTS, _MAX_POINTS // len(runs)))
    found = {name: reader.points(quantity, most) for name, reader in runs.items()}
    lines = [
        Line(name, tuple(points), marked=len(points) <= 40 and len(runs) <= _MARKED)
        for name, points in found.items()
        if points
    ]
    return quantity_figure(quantity, lines, caption)
