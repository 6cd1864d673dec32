"""The page of a run as a list of sections, in the order in which a reader asks."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from descend.errors import DescendError
from descend.pages.chart import Axis, Chart, Line
from descend.pages.parts import Drawing, Figure, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.experiment.run_page.read import RunRecord
    from descend.graph import Plan

__all__ = ["quantity_figure", "sections", "short"]

MAX_POINTS = 300  # of a line; more rows are thinned evenly
_MAX_FIGURES = 16  # of metrics
_MAX_WEIGHTS = 400  # rows of the table of weights
_NORMS = ("gradient_norm", "update_norm", "weight_norm")
_TITLES = {
    "objective": "Objective function",
    "learning_rate": "Learning rate",
    "gradient_norm": "Norm of the gradient, ‖g‖₂",
    "update_norm": "Norm of the update, ‖Δw‖₂",
    "weight_norm": "Norm of the weights, ‖w‖₂",
    "noise_scale": "Gradient noise scale, samples",
}


def short(value: Any) -> str:
    """A number in five digits, anything else as text."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)


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
        Section("Model", tuple(_model(run, plan))),
        Section("Settings and environment", tuple(_environment(run))),
        Section("How to resume", tuple(_resuming(run))),
    ]
    if run.trainers > 1:
        found.insert(3, Section("Lineage of the tournament", tuple(_lineage(run))))
    return [section for section in found if section.parts]


def _result(run: RunRecord) -> Iterator[str | Table]:
    reason = run.end.get("reason") or ""
    yield f"{run.status[:1].upper() + run.status[1:]} after {run.step:,} updates{f': {reason}' if reason else ''}."
    if run.restarts:
        yield f"It was continued after step {', '.join(f'{step:,}' for step in run.restarts)}."
    last = {(row.get("trainer", 0), row["mode"]): row for row in run.rows if "objective" in row}
    names = [name for name in run.quantities if any(name in row for row in last.values()) and not _is_rate(name)]
    if last:
        several = run.trainers > 1
        rows = tuple(
            (
                *((str(trainer),) if several else ()),
                mode,
                f"{row['epoch']:,}",
                f"{row['step']:,}",
                *(short(row.get(name)) for name in names),
            )
            for (trainer, mode), row in last.items()
        )
        heads = (*(("trainer",) if several else ()), "mode", "epochs", "updates", *names)
        yield Table("last values", heads, rows)
    if (best := _best(run)) is not None:
        yield best


def _best(run: RunRecord) -> str | None:
    monitored = run.facts.get("monitored") or {}
    mode, _, name = str(monitored.get("metric", "")).partition("/")
    points = [(value, step) for step, value in run.series(name, mode) if math.isfinite(value)]
    if not points:
        return None
    value, step = min(points) if monitored.get("direction") != "max" else max(points)
    return f"The best {mode} {name} was {short(value)}, after {step:,.0f} updates."


def _is_rate(name: str) -> bool:
    return name == "learning_rate" or name.startswith("learning_rate/")


def _metrics(run: RunRecord) -> Iterator[str | Figure]:
    names = [name for name in run.quantities if not _is_rate(name) and name not in _NORMS and name != "noise_scale"]
    for name in names[:_MAX_FIGURES]:
        yield quantity_figure(name, list(_lines(run, name)), "Rows of `metrics.jsonl`.")
    if len(names) > _MAX_FIGURES:
        yield f"Not drawn, for lack of room: {', '.join(names[_MAX_FIGURES:])}."


def _lines(run: RunRecord, name: str) -> Iterator[Line]:
    """A line for each mode, or of several trainers for each one, by its validation samples where it has these."""
    if run.trainers > 1:
        modes = [mode for mode in ("validation", "train", "tournament", "test") if run.series(name, mode)]
        for trainer in range(run.trainers):
            yield _line(f"trainer {trainer}", run.series(name, modes[0], trainer) if modes else [])
        return
    modes = [*run.modes, *dict.fromkeys(row["mode"] for row in run.rows if row["mode"] not in run.modes)]
    for number, mode in enumerate(modes):
        if points := run.series(name, mode):
            yield _line(mode, points, number)


def _line(name: str, points: Sequence[tuple[float, float]], colour: int | None = None) -> Line:
    stride = -(-len(points) // MAX_POINTS)
    kept = tuple(points[::stride]) if stride > 1 else tuple(points)
    if kept and kept[-1] != points[-1]:
        kept += (points[-1],)
    return Line(name, kept, marked=len(kept) <= 40, colour=colour)


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
    trainers = range(run.trainers) if run.trainers > 1 else [None]
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
        yield quantity_figure(
            name, [_line(f"trainer {t}" if t is not None else "", run.series(name, None, t)) for t in trainers]
        )
    if not norms:
        yield (
            "Norms of gradients, updates and weights were not recorded: pass `callbacks=[descend.GradientNorm(), "
            "descend.UpdateNorm(), descend.WeightNorm()]`."
        )
    skipped = [(row["step"], row["skipped_steps"]) for row in run.rows if row.get("skipped_steps")]
    if skipped:
        yield Table(
            "steps without an update", ("updates", "skipped steps"), tuple((f"{a:,}", f"{b:,}") for a, b in skipped)
        )


def _time(run: RunRecord) -> Iterator[Table | Figure | str]:
    timed = [row for row in run.rows if _is_positive(row.get("seconds")) and type(row.get("samples")) is int]
    if not timed:
        return
    rows: list[tuple[str, ...]] = []
    total = sum(row["seconds"] for row in timed)
    for mode in dict.fromkeys(row["mode"] for row in timed):
        own = [row for row in timed if row["mode"] == mode]
        seconds, samples = sum(row["seconds"] for row in own), sum(row["samples"] for row in own)
        rows.append((mode, f"{len(own):,}", f"{seconds:,.2f}", f"{seconds / total:.1%}", f"{samples / seconds:,.0f}"))
    trained = [row for row in timed if row["mode"] == "train"]
    lines = [
        _line(
            f"trainer {trainer}" if trainer is not None else "",
            [
                (float(row["step"]), row["samples"] / row["seconds"])
                for row in trained
                if trainer is None or row.get("trainer") == trainer
            ],
        )
        for trainer in (range(run.trainers) if run.trainers > 1 else [None])
    ]
    saves = run.end.get("save_seconds")
    note = f"The longest save of a checkpoint took {saves:.3g} s." if _is_positive(saves) else ""
    yield Table(
        "where the time went", ("pass over", "passes", "seconds", "part", "samples per second"), tuple(rows), note
    )
    chart = Chart(tuple(lines), Axis("updates"), Axis("samples per second"))
    yield Figure(
        "Throughput of training", chart, "Samples of a pass over its duration; the first one includes warming up."
    )


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _warnings(run: RunRecord) -> Iterator[str | Table]:
    errors = run.end.get("error") or run.end.get("errors") or []
    for error in errors if isinstance(errors, list) else [errors]:
        yield f"Error: {error}"
    if run.warnings:
        rows = tuple((f"{count:,}", said) for said, count in run.warnings.items())
        yield Table("warnings", ("times", "warning"), rows, "From `log.txt`.")
    if run.end.get("failed_saves"):
        yield f"{run.end['failed_saves']} checkpoints could not be saved."
    if not run.warnings and not errors:
        yield "None."


def _model(run: RunRecord, plan: Plan | None) -> Iterator[str | Table | Drawing]:
    if plan is not None:
        from descend.experiment.inspect.graph_svg import picture
        from descend.experiment.inspect.layer_table import layer_rows

        heads, *rows = layer_rows(plan)
        total = sum(math.prod(one.shape) for one in plan.weights.values() if one.trainable)
        yield Table("layers", heads, tuple(rows), f"{total:,} trainable parameters.")
        try:
            yield Drawing("Graph of the layers", picture(plan))
        except DescendError as error:
            yield str(error)
        return
    weights = run.weights
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
    command = run.facts.get("command")
    shown = {
        "command": shlex.join(map(str, command)) if isinstance(command, list) else None,
        "random seed": run.facts.get("random_seed"),
        **{name: run.facts.get(name) for name in ("descend", "torch", "python", "platform")},
    }
    rows = tuple((name, short(value)) for name, value in shown.items() if value is not None)
    if rows:
        yield Table("environment", ("what", "value"), rows)
    settings = run.facts.get("settings")
    if isinstance(settings, dict) and settings:
        rows = tuple((str(name), short(value) or "not set") for name, value in settings.items())
        yield Table("settings", ("setting", "value"), rows, "What a resumed run compares.")


def _lineage(run: RunRecord) -> Iterator[str | Drawing]:
    from descend.experiment.inspect.lineage_svg import read, svg

    try:
        yield Drawing("Lineage of the models", svg(read(run.folder)))
    except DescendError as error:
        yield str(error)


def _resuming(run: RunRecord) -> Iterator[str]:
    name = shlex.quote(run.folder.name)
    if run.checkpoints:
        yield f"The newest checkpoint is `checkpoints/{run.checkpoints[-1]}`; {len(run.checkpoints)} are kept."
    if (run.folder / "experiment.prototext").is_file():
        yield f"In the folder that holds this directory: `descend resume {name}`."
    else:
        yield f"Call `descend.fit` again with the same arguments and `run_dir={run.folder.name!r}, resume=True`."
    yield (
        f"This page again, from the files as they are then: `descend report {name}`; live, beside other runs: "
        f"`descend view {name}`."
    )
