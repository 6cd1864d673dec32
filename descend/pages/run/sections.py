"""The page of a run as a list of sections, in the order in which a reader asks."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from descend.errors import DescendError
from descend.files import has_file
from descend.pages.chart import Axis, Chart, Line
from descend.pages.parts import Drawing, Figure, Section, Table
from descend.pages.run.read import short
from descend.terminal.display import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.graph import Plan
    from descend.pages.run.read import RunRecord

__all__ = ["quantity_figure", "sections"]

_MAX_FIGURES = 16  # of metrics
_MAX_WEIGHTS = 400  # rows of the table of weights
_MAX_WARNINGS = 200  # rows of the table of warnings
_MAX_PROBLEMS = 50  # sentences on what was left out
_NORMS = ("gradient_norm", "update_norm", "weight_norm")
_TITLES = {
    "objective": "Objective function",
    "learning_rate": "Learning rate",
    "gradient_norm": "Norm of the gradient, ‖g‖₂",
    "update_norm": "Norm of the update, ‖Δw‖₂",
    "weight_norm": "Norm of the weights, ‖w‖₂",
    "noise_scale": "Gradient noise scale, samples",
}


def sections(run: RunRecord, plan: Plan | None = None) -> list[Section]:
    """All sections of the page of a run.

    Args:
        run: What its files say.
        plan: The checked graph, of a run of layers; without it the weights of the newest checkpoint are listed.
    """
    found = [
        Section("Result", tuple(_result(run))),
        Section("Objective and metrics", tuple(_metrics(run))),
        Section("Learning rate and norms", tuple(_optimization(run))),
        Section("Time", tuple(_time(run))),
        Section("Warnings and errors", tuple(_warnings(run))),
        Section("Left out", tuple(_left_out(run))),
        Section("Model", tuple(_model(run, plan))),
        Section("Settings and environment", tuple(_environment(run))),
        Section("How to resume", tuple(_resuming(run))),
    ]
    if run.has_several:
        found.insert(3, Section("Lineage of the tournament", tuple(_lineage(run))))
    return [section for section in found if section.parts]


def _result(run: RunRecord) -> Iterator[str | Table]:
    reason = run.facts.reason
    yield f"{run.status[:1].upper() + run.status[1:]} after {run.step:,} updates{f': {reason}' if reason else ''}."
    if run.restarts:
        every = sum(one.restart_rows for one in run.metrics.values())
        more = f", the last {len(run.restarts)} of {every:,} times" if every > len(run.restarts) else ""
        yield f"It was continued after step {', '.join(f'{step:,}' for step in run.restarts)}{more}."
    last = {(trainer, mode): row for trainer, one in run.metrics.items() for mode, row in one.last.items()}
    names = [name for name in run.quantities if any(name in row for row in last.values()) and not _is_rate(name)]
    if last:
        rows = tuple(
            (
                *((str(trainer),) if run.has_several else ()),
                mode,
                f"{row['epoch']:,}",
                f"{row['step']:,}",
                *(short(row.get(name)) for name in names),
            )
            for (trainer, mode), row in last.items()
        )
        heads = (*(("trainer",) if run.has_several else ()), "mode", "epochs", "updates", *names)
        yield Table("last values", heads, rows)
    if (best := _best(run)) is not None:
        yield best


def _best(run: RunRecord) -> str | None:
    mode, name = run.facts.monitored
    points = run.series(name, mode)
    if not points:
        return None
    choose = max if run.facts.is_maximized else min
    step, value = choose(points, key=lambda point: point[1])
    return f"The best {mode} {name} was {short(value)}, after {step:,.0f} updates."


def _is_rate(name: str) -> bool:
    return name == "learning_rate" or name.startswith("learning_rate/")


def _metrics(run: RunRecord) -> Iterator[str | Figure]:
    names = [name for name in run.quantities if not _is_rate(name) and name not in _NORMS and name != "noise_scale"]
    for name in names[:_MAX_FIGURES]:
        yield _recorded(run, name, list(_lines(run, name)), "Rows of `metrics.jsonl`.")
    if len(names) > _MAX_FIGURES:
        yield f"Not drawn, for lack of room: {', '.join(names[_MAX_FIGURES:])}."


def _lines(run: RunRecord, name: str) -> Iterator[Line]:
    """A line for each mode, or of several trainers for each one, by its validation samples where it has these."""
    if run.has_several:
        modes = [mode for mode in ("validation", "train", "tournament", "test") if run.series(name, mode)]
        for trainer in run.trainers:
            yield _line(f"trainer {trainer}", run.series(name, modes[0], trainer) if modes else [])
        return
    every = dict.fromkeys(mode for one in run.metrics.values() for mode in one.modes)
    modes = [*run.modes, *(mode for mode in every if mode not in run.modes)]
    for number, mode in enumerate(modes):
        if points := run.series(name, mode):
            yield _line(mode, points, number)


def _line(name: str, points: Sequence[tuple[float, float]], colour: int | None = None) -> Line:
    return Line(name, tuple(points), marked=len(points) <= 40, colour=colour)


def _recorded(run: RunRecord, name: str, lines: list[Line], caption: str = "") -> Figure:
    """The figure of a quantity of a run; what of it has no place there is said."""
    count = run.undrawn(name)
    said = f" {count:,} values that are not finite, or too large, are not drawn." if count else ""
    return quantity_figure(name, lines, f"{caption}{said}".strip())


def quantity_figure(name: str, lines: list[Line], caption: str = "") -> Figure:
    """A quantity over the updates; on a logarithmic axis where it falls by orders of magnitude."""
    values = [value for line in lines for _, value in line.points if math.isfinite(value)]
    falls = any(word in name for word in ("objective", "loss", "norm", "perplexity", "noise"))
    log = falls and bool(values) and min(values) > 0 and max(values) > 30 * min(values)
    title = _TITLES.get(name, name.replace("_", " "))
    said = " The axis is logarithmic." if log else ""
    single = [Line("", line.points, marked=line.marked, colour=0) for line in lines] if len(lines) == 1 else lines
    only = f" Of {lines[0].name} samples." if len(lines) == 1 and lines[0].name in ("train", "validation") else ""
    drawn = Chart(tuple(single), Axis("updates"), Axis(title, log=log))
    return Figure(title[:1].upper() + title[1:], drawn, f"{caption}{only}{said}")


def _optimization(run: RunRecord) -> Iterator[str | Figure | Table]:
    rates = [name for name in run.quantities if _is_rate(name)]
    trainers = run.trainers if run.has_several else [None]
    lines = [
        _line(
            " ".join(filter(None, [name.partition("/")[2], "" if trainer is None else f"trainer {trainer}"])) or "all",
            run.series(name, "train", trainer),
        )
        for name in rates
        for trainer in trainers
    ]
    if lines:
        caption = "At the last update of each epoch"
        caption += "; a line a parameter group." if len(rates) > 1 else "."
        chart = Chart(
            tuple(lines if len(lines) > 1 else [Line("", lines[0].points, marked=lines[0].marked)]),
            Axis("updates"),
            Axis("learning rate"),
        )
        yield Figure("Learning rate", chart, caption)
    norms = [name for name in _NORMS if run.series(name)]
    for name in (*norms, *(["noise_scale"] if run.series("noise_scale") else [])):
        lines = [_line(f"trainer {t}" if t is not None else "", run.series(name, None, t)) for t in trainers]
        yield _recorded(run, name, lines)
    if not norms:
        yield (
            "Norms of gradients, updates and weights were not recorded: pass `callbacks=[descend.GradientNorm(), "
            "descend.UpdateNorm(), descend.WeightNorm()]`."
        )
    skipped = [pair for one in run.metrics.values() for pair in one.skipped]
    if skipped:
        every = sum(one.skipped_rows for one in run.metrics.values())
        note = f"The last {len(skipped)} of {every:,} rows." if every > len(skipped) else ""
        rows = tuple((f"{a:,}", f"{b:,}") for a, b in skipped)
        yield Table("steps without an update", ("updates", "skipped steps"), rows, note)


def _time(run: RunRecord) -> Iterator[Table | Figure | str]:
    timed = run.passes
    if not timed:
        return
    total = sum(one.seconds for one in timed.values())
    rows = tuple(
        (
            mode,
            f"{one.count:,}",
            f"{one.seconds:,.2f}",
            f"{one.seconds / total:.1%}",
            f"{one.samples / one.seconds:,.0f}",
        )
        for mode, one in timed.items()
    )
    saves = run.facts.save_seconds
    note = f"The longest save of a checkpoint took {saves:.3g} s." if saves else ""
    yield Table("where the time went", ("pass over", "passes", "seconds", "part", "samples per second"), rows, note)
    lines = [
        _line(f"trainer {trainer}" if run.has_several else "", one.throughput.points())
        for trainer, one in run.metrics.items()
    ]
    chart = Chart(tuple(lines), Axis("updates"), Axis("samples per second"))
    yield Figure(
        "Throughput of training", chart, "Samples of a pass over its duration; the first one includes warming up."
    )


def _warnings(run: RunRecord) -> Iterator[str | Table]:
    for error in run.facts.errors:
        yield f"Error: {shortened(error)}"
    if run.warnings:
        rows = tuple((f"{count:,}", said) for said, count in run.warnings.items())
        note = "From `log.txt`."
        if len(rows) > _MAX_WARNINGS:
            note = f"From `log.txt`. Of {len(rows):,} different ones the last {_MAX_WARNINGS} are shown."
        yield Table("warnings", ("times", "warning"), rows[-_MAX_WARNINGS:], note)
    if run.facts.failed_saves:
        yield f"{run.facts.failed_saves:,} checkpoints could not be saved."
    if not run.warnings and not run.facts.errors:
        yield "None."


def _left_out(run: RunRecord) -> Iterator[str]:
    if run.problems:
        yield "These could not be read, and are not on this page:"
    for problem in run.problems[:_MAX_PROBLEMS]:
        yield shortened(problem)
    if len(run.problems) > _MAX_PROBLEMS:
        yield f"And {len(run.problems) - _MAX_PROBLEMS:,} more."


def _model(run: RunRecord, plan: Plan | None) -> Iterator[str | Table | Drawing]:
    if plan is not None:
        from descend.experiment.inspect.layer_table import layer_rows
        from descend.pages.graph_svg import picture

        heads, *rows = layer_rows(plan)
        total = sum(math.prod(one.shape) for one in plan.weights.values() if one.trainable)
        yield Table("layers", heads, tuple(rows), f"{total:,} trainable parameters.")
        try:
            yield Drawing("Graph of the layers", picture(plan))
        except DescendError as error:
            yield str(error)
        return
    try:
        weights = run.weights
    except DescendError as error:
        yield str(error)
        return
    if not weights:
        return
    total = sum(math.prod(shape) for _, shape, _ in weights)
    rows = [
        (name, " × ".join(map(str, shape)) or "scalar", kind, f"{math.prod(shape):,}") for name, shape, kind in weights
    ]
    note = f"{total:,} numbers in {len(weights):,} tensors, from the newest checkpoint."
    if len(rows) > _MAX_WEIGHTS:
        rows, note = rows[:_MAX_WEIGHTS], f"{note} The first {_MAX_WEIGHTS} are shown."
    yield Table("weights and buffers", ("name", "shape", "type", "numbers"), tuple(rows), note)


def _environment(run: RunRecord) -> Iterator[Table]:
    facts = run.facts
    command = shlex.join(facts.command) if facts.command else None
    shown = {"command": command, "random seed": facts.random_seed, **facts.versions}
    rows = tuple((name, short(value)) for name, value in shown.items() if value is not None)
    if rows:
        yield Table("environment", ("what", "value"), rows)
    if facts.settings:
        rows = tuple((name, value or "not set") for name, value in facts.settings.items())
        yield Table("settings", ("setting", "value"), rows, "What a resumed run compares.")


def _lineage(run: RunRecord) -> Iterator[str | Drawing]:
    from descend.pages.lineage_svg import read, svg

    try:
        yield Drawing("Lineage of the models", svg(read(run.folder)))
    except DescendError as error:
        yield str(error)


def _resuming(run: RunRecord) -> Iterator[str]:
    name = shlex.quote(run.folder.name)
    if run.checkpoints:
        yield f"The newest checkpoint is `checkpoints/{run.checkpoints[-1]}`; {len(run.checkpoints)} are kept."
    if has_file(run.folder / "experiment.prototext"):
        yield f"In the folder that holds this directory: `descend resume {name}`."
    else:
        yield f"Call `descend.fit` again with the same arguments and `run_dir={run.folder.name!r}, resume=True`."
    yield (
        f"This page again, from the files as they are then: `descend report {name}`; live, beside other runs: "
        f"`descend view {name}`."
    )
