"""`descend study ...`. Nothing here imports torch before a study runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from descend.terminal import TextTable, write
from descend.terminal.command_group import CommandGroup

if TYPE_CHECKING:
    from descend.study.design.study import Study

__all__ = ["app"]

DESIGN, RUN, READ, MORE = "Design", "Run", "Read", "Follow up"

app = typer.Typer(
    cls=CommandGroup,
    help="Compare optimizers, learning rates and batch sizes.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback()
def options() -> None:
    """Compare optimizers, learning rates and batch sizes fairly, and say so when nothing can be ranked."""
    sys.path.insert(0, str(Path.cwd()))  # a workload of one's own is looked for where the command is given


@app.command(rich_help_panel=DESIGN, short_help="Steps against batch size on a noisy quadratic.")
def simulate(
    rules: Annotated[
        str, typer.Option(help="NAME[+average][:POWER of a preconditioner], with commas.")
    ] = "sgd,heavy_ball,sgd+average,sgd:0.5,heavy_ball:0.5",
    batch_sizes: Annotated[str, typer.Option(help="Sizes with commas, or FROM:TO:xFACTOR.")] = "64:4194304:x4",
    target: Annotated[float, typer.Option(help="Risk to be met; it is 4.89 at the start.")] = 0.01,
    refine: Annotated[bool, typer.Option("--refine", help="Finer grids around the best setting.")] = False,
) -> None:
    """Draw steps to a target against the batch size on the noisy quadratic: no data, no training, seconds."""
    from descend.study.batch_sizes import read_batch_sizes
    from descend.study.simulate import plot, table, tuned

    sizes, names = read_batch_sizes(batch_sizes), [name.strip() for name in rules.split(",")]
    found = {rule: [tuned(rule, size, target=target, refine=refine) for size in sizes] for rule in names}
    steps = {rule: [one.steps for one in row] for rule, row in found.items()}
    typer.echo(table(sizes, steps))
    typer.echo(plot(sizes, steps))
    for rule, row in found.items():
        edges = [f"{size:,} ({', '.join(one.on_edge)})" for size, one in zip(sizes, row, strict=True) if one.on_edge]
        if edges:
            typer.echo(f"{rule}: the best setting lies on an edge of its grid at batch size {'; '.join(edges)}")


@app.command(rich_help_panel=DESIGN, short_help="Write the file of a ready-made study.")
def new(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="table2, table4, tunability, scaling or aa.")],
    workload: Annotated[str, typer.Option(help="file.py:function or module:function.")],
    batch_size: Annotated[str, typer.Option(help="A size; for scaling several, as 32,128 or FROM:TO:xFACTOR.")],
    steps: Annotated[int, typer.Option(min=1, help="Updates; for scaling those at the smallest batch size.")],
    target: Annotated[float | None, typer.Option(help="Value of the metric that counts as success.")] = None,
    file: Annotated[Path, typer.Option(help="Where to write it.")] = Path("study.toml"),
) -> None:
    """Write the file of a ready-made study, to be changed as you like."""
    from descend.errors import ConfigurationError
    from descend.runtime.run_directory import write_beside
    from descend.study.batch_sizes import read_batch_sizes
    from descend.study.design.presets import preset as make
    from descend.study.design.toml import to_toml
    from descend.study.design.workload import missing

    if file.exists():
        raise ConfigurationError(f"{file} exists; name another with --file")
    sizes = read_batch_sizes(batch_size)
    if preset == "scaling":
        if target is None:
            raise ConfigurationError("scaling counts steps to a target: give one with --target")
        budgets = {size: max(1, min(steps, 4 * steps * sizes[0] // size)) for size in sizes}
        study = make(preset, workload, batch_sizes=sizes, steps=budgets, target=target)
    elif len(sizes) > 1:
        raise ConfigurationError(f"{preset} compares at one batch size, and {len(sizes)} are given: {batch_size}")
    else:
        extra = {} if target is None else {"target": {"value": target}}
        study = make(preset, workload, batch_size=sizes[0], steps=steps, **extra)
    write_beside(file, to_toml(study))
    typer.echo(f"{file}: {len(study.arms)} arms; next: descend study lint {file}")
    if lack := missing(workload):
        typer.echo(f"note: workload '{workload}': {lack}")


@app.command(rich_help_panel=DESIGN, short_help="Check a study file for what looks unfair.")
def lint(file: Annotated[Path, typer.Argument(metavar="FILE", help="The study, a TOML file.")]) -> None:
    """Check FILE and say what looks unfair. Exits with 1 when something does; starts nothing."""
    from descend.study.design import lint as look
    from descend.study.design.workload import missing

    found = 0
    for name, study in _studies(file).items():
        remarks = look(study)
        found += len(remarks)
        if name:
            typer.echo(f"{name}:")
        if lack := missing(study.workload):
            typer.echo(f"note: workload '{study.workload}': {lack}")
        for remark in remarks:
            typer.echo(str(remark))
    if not found:
        typer.echo(f"{file}: nothing unfair found; the arms are matched in budget, freedom and width of their ranges")
    raise typer.Exit(1 if found else 0)


def _studies(file: Path) -> dict[str, Study]:
    """The studies of a file by the names of their workloads; "" is that of a file with one."""
    from descend.study.design import read_study
    from descend.study.suite import is_suite, read_suite

    return read_suite(file) if is_suite(file) else {"": read_study(file)}


@app.command(rich_help_panel=DESIGN, short_help="Say what a study costs, from a few measured steps.")
def plan(file: Annotated[Path, typer.Argument(metavar="FILE", help="The study, a TOML file.")]) -> None:
    """Say what FILE costs, from a few measured steps of each arm."""
    from descend.study.plan import plan_study

    for name, study in _studies(file).items():
        typer.echo(f"{name}:\n{plan_study(study)}" if name else plan_study(study))


@app.command(rich_help_panel=RUN, short_help="Run a study, or what is left of it.")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study, a TOML file.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where it is kept; one that was begun continues.")
    ],
    processes: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    executor: Annotated[
        str, typer.Option(help="one, together, stacks, processes, ray, or auto, which chooses among the first four.")
    ] = "auto",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster that is up, auto or HOST:PORT; without it Ray is started here.")
    ] = None,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="Leave after so long without a trial to claim, with exit code 75.")
    ] = math.inf,
) -> None:
    """Run the study in FILE, or what is left of it. The same command on another machine helps.

    A file with several workloads is a study of each, in DIRECTORY/NAME.
    """
    from descend.errors import ConfigurationError
    from descend.study.comparing import run_study
    from descend.study.progress import StudyProgress
    from descend.study.running.ray_pool import RayCluster

    if address is not None and executor != "ray":
        raise ConfigurationError("--address names a Ray cluster: say --executor ray")
    if executor == "ray" and processes > 1:
        raise ConfigurationError("--executor ray runs as many trials at once as its nodes can: remove --processes")
    way = RayCluster(address) if executor == "ray" else executor
    studies = _studies(file)
    for name, study in studies.items():
        place = directory / name
        if processes > 1:
            from descend.study.comparing import open_directory
            from descend.study.running.scheduler import run_in_processes

            open_directory(study, place)
            run_in_processes(place, processes, executor)
        result = run_study(study, place, executor=way, said=StudyProgress(study), idle_seconds=idle_seconds)
        result.report(place)
        typer.echo(result.verdict)
        typer.echo(f"report: {place / 'report.html'}")
    if "" not in studies:
        typer.echo(f"next: descend study score {directory}")


@app.command(rich_help_panel=READ, short_help="Performance profiles over several workloads.")
def score(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIRECTORY", help="Of studies, or one that holds several.")
    ],
    axis: Annotated[str, typer.Option(help="steps, or seconds of training on one machine.")] = "steps",
    limit: Annotated[float, typer.Option(help="Largest ratio to the fastest arm that counts.")] = 4.0,
) -> None:
    """Performance profiles and a score of all arms over several workloads, by the time to their targets."""
    from descend.errors import ConfigurationError
    from descend.study.suite import score_suite, studies_in, write_score

    if axis not in ("steps", "seconds"):
        raise ConfigurationError(f"--axis must be steps or seconds, got '{axis}'")
    found = score_suite(studies_in(directories), axis, limit)
    typer.echo(found.text.rstrip())
    if len(directories) == 1:
        typer.echo(f"written: {write_score(found, directories[0])}")


@app.command(rich_help_panel=RUN, short_help="Run it as jobs of a cluster's queue.")
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study, a TOML file.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where it is kept, on a file system that all nodes share.")
    ],
    slurm: Annotated[bool, typer.Option("--slurm", help="As a job array of Slurm.")] = False,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Of the array; one for each trial that can run now, up to 16.")
    ] = None,
    executor: Annotated[str, typer.Option(help="By which each task runs its trials, as of run.")] = "one",
    idle_seconds: Annotated[
        float,
        typer.Option(min=0, help="A task without a trial for so long gives its allocation back and queues again."),
    ] = 120.0,
    time_limit: Annotated[float | None, typer.Option(help="Minutes of a task.")] = None,
    partition: Annotated[str | None, typer.Option(help="Queue.")] = None,
    account: Annotated[str | None, typer.Option(help="The account that is charged.")] = None,
    reservation: Annotated[str | None, typer.Option(help="Name of a reservation.")] = None,
    setup_only: Annotated[bool, typer.Option("--setup-only", help="Write the script and submit nothing.")] = False,
) -> None:
    """Run the study in FILE, or what is left of it, as jobs of a cluster's queue."""
    from descend.errors import ConfigurationError
    from descend.study.submit import ArrayOptions, submit_study
    from descend.study.suite import is_suite

    if not slurm:
        raise ConfigurationError("descend study submit knows one scheduler: say --slurm")
    if is_suite(file):
        raise ConfigurationError(f"{file} has several workloads, and a job array runs one: give each a file of its own")
    options = ArrayOptions(executor, idle_seconds, time_limit, partition, account, reservation)
    said = submit_study(file, directory, tasks, options, setup_only=setup_only)
    typer.echo(said)


@app.command(rich_help_panel=RUN, short_help="How far it is, how trials ended, what they took.")
def status(directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of the study.")]) -> None:
    """Say how far the study in DIRECTORY is, how trials ended, and what they took."""
    from descend.study.progress import status_of

    found = status_of(directory)
    write(str(found), found.parts)


@app.command(rich_help_panel=READ, short_help="The verdict, the table and the warnings.")
def show(directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of the study.")]) -> None:
    """Print the verdict, the table and the warnings of the study in DIRECTORY."""
    from descend.study.comparing import read_directory

    result = read_directory(directory)
    remarks = [str(remark) for remark in result.remarks]
    write(
        "\n".join([str(result.verdict), result.table, *remarks]),
        [str(result.verdict), "", TextTable(result.rows), "", *remarks],
    )


@app.command(rich_help_panel=READ, short_help="Write the report: HTML, Markdown and CSV.")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of the study.")],
    to: Annotated[Path | None, typer.Option(help="An HTML file, or a directory; that of the study without it.")] = None,
    seconds: Annotated[bool, typer.Option("--seconds", help="Show seconds of training beside updates.")] = False,
) -> None:
    """Write the report of the study in DIRECTORY: HTML that opens offline, Markdown and CSV."""
    from descend.study.comparing import read_directory

    typer.echo(str(read_directory(directory).report(to or directory, seconds=seconds)))


@app.command(rich_help_panel=MORE, short_help="Give each winner the others' value of a setting.")
def swap(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of a finished study.")],
    setting: Annotated[str, typer.Option(help="A setting of all arms, such as schedule.warmup_power.")],
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds for each cell.")] = 10,
) -> None:
    """Give each arm's winner the others' value of a setting, change nothing else, and run them."""
    from dataclasses import asdict

    from descend.study.comparing import read_directory
    from descend.study.follow_up import swap_setting
    from descend.study.follow_up_store import save_follow_up

    cells = swap_setting(read_directory(directory), setting, seeds)
    command = f"descend study swap DIRECTORY --setting {setting} --seeds {seeds}"
    plain = [{**asdict(cell), "interval": cell.interval and list(cell.interval)} for cell in cells]
    save_follow_up(
        directory, {"kind": "swap", "command": command, "setting": setting, "seeds": seeds, "cells": plain}, setting
    )
    for cell in cells:
        between = "" if cell.interval is None else f" [{cell.interval.low:.4g}, {cell.interval.high:.4g}]"
        whose = "its own" if cell.arm == cell.giver else f"that of {cell.giver} ({cell.change:+.4g})"
        typer.echo(f"{cell.arm} with {whose}: {cell.median:.4g}{between}")


@app.command(rich_help_panel=MORE, short_help="The smallest difference between two winners.")
def minimize(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of a finished study.")],
    arm: Annotated[str, typer.Option(help="Whose winner is taken apart.")],
    to: Annotated[str, typer.Option(help="The arm whose settings it is brought back to.")],
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds for each attempt.")] = 10,
) -> None:
    """Find the smallest set of settings by which an arm's winner must differ from another's."""
    from descend.study.comparing import read_directory
    from descend.study.follow_up import minimize_difference, rule_of
    from descend.study.follow_up_store import save_follow_up

    comparison = read_directory(directory)
    found = minimize_difference(comparison, arm, to, seeds)
    plain = {
        "kind": "minimize",
        "command": f"descend study minimize DIRECTORY --arm {arm} --to {to} --seeds {seeds}",
        "arm": arm,
        "reference": to,
        "rule": rule_of(comparison, arm),
        "seeds": seeds,
        "tried": len(found.tried),
        "needed": found.needed,
        "taken_back": {name: list(found.given_up[name]) for name in found.taken_back},
    }
    save_follow_up(directory, plain, f"{arm}-{to}")
    for name, (theirs, ours) in found.needed.items():
        typer.echo(f"needed: {name} = {ours}, not {theirs}")
    typer.echo(f"not needed: {', '.join(found.taken_back) or 'nothing'}; {len(found.tried)} configurations were tried")


@app.command(rich_help_panel=MORE, short_help="The gradient noise scale along a winner's run.")
def noise(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of a finished study.")],
    arm: Annotated[str, typer.Option(help="Whose winner is trained once more.")],
    parts: Annotated[int, typer.Option(min=2, help="Parts of a batch.")] = 16,
    part_size: Annotated[int, typer.Option(min=1, help="Samples of a part.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Batches at each place.")] = 20,
) -> None:
    """Measure the gradient noise scale along the run of an arm's winner."""
    from descend.study.comparing import read_directory
    from descend.study.follow_up import best_row
    from descend.study.follow_up_store import save_follow_up
    from descend.study.noise import measure_noise

    comparison = read_directory(directory)
    points = measure_noise(comparison, best_row(comparison, arm), parts=parts, part_size=part_size, repeats=repeats)
    plain = {
        "kind": "noise",
        "command": f"descend study noise DIRECTORY --arm {arm} --parts {parts} --part-size {part_size} "
        f"--repeats {repeats}",
        "arm": arm,
        "parts": parts,
        "part_size": part_size,
        "repeats": repeats,
        "points": [
            {
                "step": one.step,
                "scale": one.found and one.found.scale,
                "interval": one.found and one.found.interval and list(one.found.interval),
                "said": one.refused,
            }
            for one in points
        ],
    }
    save_follow_up(directory, plain, arm)
    for one in points:
        shown = one.refused if one.found is None else f"{one.found.scale:.4g} samples"
        typer.echo(f"after {one.step} updates: {shown}")


@app.command(rich_help_panel=MORE, short_help="The largest Hessian eigenvalue along that run.")
def sharpness(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of a finished study.")],
    arm: Annotated[str, typer.Option(help="Whose winner is trained once more.")],
    looks: Annotated[int, typer.Option(min=1, help="Places along the run, and as many in its first tenth.")] = 5,
    iterations: Annotated[int, typer.Option(min=1, help="Of Lanczos' method at each place, at most.")] = 30,
) -> None:
    """Measure the largest Hessian eigenvalue along the run of an arm's winner, and how stable its steps are."""
    from descend.study.comparing import read_directory
    from descend.study.follow_up import best_row
    from descend.study.follow_up_store import save_follow_up
    from descend.study.noise import measure_sharpness

    comparison = read_directory(directory)
    points = measure_sharpness(comparison, best_row(comparison, arm), looks=looks, iterations=iterations)
    command = f"descend study sharpness DIRECTORY --arm {arm} --looks {looks} --iterations {iterations}"
    rows = [{"step": step, **values} for step, values in points]
    save_follow_up(directory, {"kind": "sharpness", "command": command, "arm": arm, "points": rows}, arm)
    for row in rows:
        stable = f", {row['stability']:.3g} of the limit of stability" if "stability" in row else ""
        typer.echo(f"after {row['step']} updates: {row['sharpness']:.4g}{stable}")


@app.command(rich_help_panel=READ, short_help="Write the trials for TensorBoard or Optuna.")
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of the study.")],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A directory for tensorboard, a journal file for optuna.")
    ],
    to: Annotated[str, typer.Option(help="tensorboard (its hparams page), or optuna (a storage for its dashboard).")],
) -> None:
    """Write the trials of the study in DIRECTORY for the viewers of others."""
    from descend.study.comparing import read_directory
    from descend.study.export import export_study

    typer.echo(export_study(read_directory(directory), path, to))
