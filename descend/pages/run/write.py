"""Writes the page of a run."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import DescendError
from descend.pages.html import number, page
from descend.pages.run.read import read_run
from descend.pages.run.sections import sections
from descend.runtime.run_directory import write_beside

if TYPE_CHECKING:
    import os

    from descend.graph import Plan
    from descend.pages.html import Live
    from descend.pages.run.read import RunRecord
    from descend.runtime.run_directory import RunDirectory

__all__ = ["plan_of", "run_page", "write_after_run", "write_run_page"]

NAME = "report.html"
DRAWN_FROM = 10.0  # seconds of training: drawing takes one or two, which a shorter run should not wait for
_PATIENCE = 30.0  # seconds that the end of a run waits for drawings


def write_run_page(run_dir: str | os.PathLike[str], *, charts: bool = True) -> Path:
    """Write `report.html` into a run directory, from the files that are there.

    Args:
        run_dir: Of a run that has ended, was killed, or is under way.
        charts: Whether figures are drawn, which takes about two seconds.

    Returns:
        The page.

    Raises:
        ConfigurationError: it is not the directory of a run.
        StorageError: the page cannot be written.
    """
    run = read_run(Path(run_dir))
    target = run.folder / NAME
    write_beside(target, run_page(run, plan_of(run.folder), charts=charts))
    return target


def plan_of(folder: Path) -> Plan | None:
    """The graph of a run of layers; None for another, and where its text or its data are no longer as they were."""
    text = folder / "experiment.prototext"
    try:
        return _plan(text, text.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=16)
def _plan(text: Path, _modified: int) -> Plan | None:
    from descend.experiment import check_experiment, load

    try:
        return check_experiment(load(text)).plan
    except (DescendError, OSError):
        return None


def run_page(
    run: RunRecord, plan: Plan | None = None, *, charts: bool = True, seconds: float = 120.0, live: Live | None = None
) -> str:
    """The text of the page.

    Args:
        run: What was read.
        plan: The checked graph, of a run of layers.
        charts: Whether figures are drawn.
        seconds: The longest time that drawing may take.
        live: Of a page that is served.
    """
    made, reason = number(sections(run, plan), charts=charts, seconds=seconds, live=live)
    name = run.folder.resolve().name
    if not charts:
        reason = (
            f"Charts are not drawn at the end of a run of less than {DRAWN_FROM:g} s: `descend report {name}` does."
        )
    return page(name, made, subtitle=f"Run, {run.status}", reason=reason, live=live)


def write_after_run(files: RunDirectory, plan: Plan | None = None) -> None:
    """The page at the end of a run, whatever end that was; what goes wrong with it is only logged."""
    try:
        run = read_run(files.path)
        charts = run.seconds >= DRAWN_FROM
        files.write_text(NAME, run_page(run, plan, charts=charts, seconds=_PATIENCE))
    except Exception as error:  # the run itself is well, and its files say everything that the page would
        files.log(f"{NAME} could not be written: {type(error).__name__}: {error}; try descend report {files.path}")
