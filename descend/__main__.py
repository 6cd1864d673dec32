"""The command line. Nothing here imports torch before a run starts."""

from __future__ import annotations

import stat
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from descend.errors import ConfigurationError
from descend.errors import main as exit_with_code
from descend.files import no_directory
from descend.machine import STOP_SIGNALS, __version__
from descend.study.commands import app as study
from descend.terminal import emit, write
from descend.terminal.command_group import CommandGroup
from descend.terminal.display import printable

if TYPE_CHECKING:
    from descend.experiment import Experiment
    from descend.experiment.check import Checked

__all__ = ["app", "main"]

# What other programs call a command of ours.
_SYNONYMS = {
    "train": "run",
    "fit": "run",
    "start": "run",
    "execute": "run",
    "continue": "resume",
    "restart": "resume",
    "check": "run --check",
    "validate": "run --check",
    "test": "run --check",
    "draw": "show --picture",
    "version": "--version",
    "optimizer": "optimizers",
    "benchmark": "plan",
    "onnx": "export",
    "dashboard": "view",
    "serve": "view",
    "compare": "study run",
}


class _Commands(CommandGroup):
    synonyms = MappingProxyType(_SYNONYMS)


TRAIN, LOOK, AFTER, CHOOSE = "Train", "Inspect", "Results", "Optimizers"

app = typer.Typer(
    name="descend",
    cls=_Commands,
    help="Trains neural networks by first-order descent at any batch size.",
    rich_markup_mode=None,  # rich help doubles the start-up time
    add_completion=True,  # --install-completion for bash, zsh and fish
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120, "help_option_names": ["--help", "-h"]},
    epilog="Begin with: descend demo. Options of a command: descend COMMAND --help.\n"
    "Exit codes: 2 usage, 3 data, 4 NaN, 5 storage, 6 lost rank, 75 resumable.",
)


def _print(text: object) -> None:
    """Print text that may have names from files in it: control characters are escaped, but for newlines and tabs."""
    typer.echo(printable(str(text), keep="\n\t"))


def _say(text: str) -> None:
    """Print what a run that is over has also left in its directory; no output that is closed or full is an error."""
    emit(printable(text, keep="\n\t") + "\n", sys.stdout)


def _print_version(wanted: bool) -> None:
    if wanted:
        _print(f"descend {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", "-v", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Trains neural networks by first-order descent at any batch size."""


def _not_a_pipe(file: Path) -> Path:
    """Refuse a named pipe, whose reader would wait for a writer for ever; `/dev/fd/N` of a shell has one."""
    try:
        is_pipe = stat.S_ISFIFO(file.stat().st_mode) and not str(file).startswith("/dev/")
    except (OSError, ValueError):  # reported by whatever reads it
        is_pipe = False
    if is_pipe:
        raise ConfigurationError(f"{file} is a named pipe; a file was expected")
    return file


PrototextFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The experiment, a prototext.", callback=_not_a_pipe)
]


def _not_pipes(files: list[Path]) -> list[Path]:
    return [_not_a_pipe(file) for file in files]


PrototextFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="The experiment, a prototext, or several with a part each.", callback=_not_pipes
    ),
]
ShowChanges = Annotated[
    bool, typer.Option("--show-changes", help="Print the differences from the checkpoint and their effect; stop.")
]
ResetOptimizer = Annotated[bool, typer.Option("--reset-optimizer", help="Resume with an optimizer without state.")]
WeightsOnly = Annotated[
    bool, typer.Option("--weights-only", help="Start over with the parameters of the checkpoint that fit.")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits each time, on a GPU too; slower there.")
]
CheckRanks = Annotated[
    bool,
    typer.Option("--check-ranks/--no-check-ranks", help="Compare the weights of ranks that hold copies, now and then."),
]
Trainers = Annotated[
    int | None,
    typer.Option("--trainers", min=1, help="Number of trainers, each with a model; by default one per block of ranks."),
]
ProcsPerTrainer = Annotated[
    int | None, typer.Option("--procs-per-trainer", min=1, help="Ranks of a block; LBANN_PROCS_PER_TRAINER, or all.")
]
_CONTINUING = "--show-changes, --reset-optimizer, --weights-only"


@app.command(
    rich_help_panel=TRAIN,
    short_help="Train the model of FILE, a prototext, and test it.",
    epilog="Example: descend run lenet.prototext --run-dir runs/first",
)
def run(
    files: PrototextFiles,
    run_dir: Annotated[Path | None, typer.Option(help="A new or empty directory for the results.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check FILE, print its layers, train nothing.")] = False,
    parse_only: Annotated[
        bool, typer.Option("--parse-only", help="Read the text of FILE, which may be one part alone; open no data.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the newest checkpoint in --run-dir.")] = False,
    show_changes: ShowChanges = False,
    reset_optimizer: ResetOptimizer = False,
    weights_only: WeightsOnly = False,
    trainers: Trainers = None,
    procs_per_trainer: ProcsPerTrainer = None,
    deterministic: Deterministic = False,
    check_ranks: CheckRanks = True,
) -> None:
    """Train the model of FILE and evaluate it on the test samples.

    Several files hold a part each: model and trainer, data reader, optimizer.
    """
    from descend.experiment import check_experiment, load
    from descend.experiment.text import read_parts

    if parse_only:
        _print(f"{_named(files)}: nothing wrong found; read {', '.join(read_parts(*files))}")
        return

    if (show_changes or reset_optimizer or weights_only) and not (resume and run_dir):
        raise typer.BadParameter("they are options of resuming: add --resume --run-dir DIR", param_hint=_CONTINUING)
    if show_changes and (check or weights_only):
        other = "--check" if check else "--weights-only"
        said = f"--show-changes prints what a resumed run would take from its checkpoint; remove {other}"
        raise typer.BadParameter(said, param_hint=other)
    experiment = load(*files)
    # Here, before torch is imported, so that mistakes are reported at once.
    checked = check_experiment(experiment, experiment.trainer.random_seed or 0)
    if check:
        _write_layers(checked)
        _print(f"{_named(files)}: nothing wrong found")
        return
    from descend.experiment.inspect.summary import summary
    from descend.experiment.run import run_experiment
    from descend.experiment.runner import RunOptions
    from descend.runtime.distributed import rank

    if show_changes and run_dir:
        _show_changes(experiment, run_dir, reset_optimizer)
        return
    options = RunOptions(
        run_dir,
        resume=resume,
        reset_optimizer=reset_optimizer,
        weights_only=weights_only,
        trainers=trainers,
        procs_per_trainer=procs_per_trainer,
        deterministic=deterministic,
        check_ranks=check_ranks,
    )
    result = run_experiment(experiment, options, checked)
    if rank() == 0:
        for one in result.trainers or (result,):
            if result.trainers:
                _say(f"trainer {one.trainer}:")
            _say(summary(one))


@app.command(
    rich_help_panel=TRAIN,
    short_help="Resume a run from its newest good checkpoint.",
    epilog="Example: descend resume runs/first",
)
def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of the run.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A changed experiment; by default the one in RUN_DIR.")
    ] = None,
    show_changes: ShowChanges = False,
    reset_optimizer: ResetOptimizer = False,
    weights_only: WeightsOnly = False,
    deterministic: Deterministic = False,
    check_ranks: CheckRanks = True,
) -> None:
    """Resume the run in RUN_DIR from its newest good checkpoint."""
    if not (run_dir / "experiment.prototext").is_file():
        what, remedy = "it has no experiment.prototext", "pass the directory that the run printed at its start"
        if (run_dir / "run.json").is_file():
            remedy = "it is a run of descend.fit, or of a script: call that again with run_dir= and resume=True"
        raise ConfigurationError(f"{run_dir} cannot be resumed, {no_directory(run_dir) or what}: {remedy}")
    text = file or run_dir / "experiment.prototext"
    run(
        [text],
        run_dir,
        resume=True,
        show_changes=show_changes,
        reset_optimizer=reset_optimizer,
        weights_only=weights_only,
        deterministic=deterministic,
        check_ranks=check_ranks,
    )


def _write_layers(checked: Checked, batch_size: int | None = None) -> None:
    from descend.experiment import layer_table
    from descend.experiment.inspect.layer_table import layer_parts

    write(layer_table(checked, batch_size), layer_parts(checked, batch_size))


def _named(files: list[Path]) -> str:
    return ", ".join(map(str, files))


def _show_changes(experiment: Experiment, run_dir: Path, reset_optimizer: bool) -> None:
    from descend.experiment.build_experiment import build_graph_run
    from descend.experiment.execution import stored_trainers
    from descend.experiment.resume import diff_settings
    from descend.experiment.runner import RunOptions

    several = (stored_trainers(run_dir) or 1) > 1  # all have the same settings, and the first one has the run's seed
    run = build_graph_run(experiment, RunOptions(run_dir, resume=True, reset_optimizer=reset_optimizer))
    diff_settings(run, run_dir / "trainer0" if several else run_dir)


@app.command(
    rich_help_panel=TRAIN,
    short_help="Train on several ranks of this machine.",
    epilog="Example: descend launch --ranks 4 train.py",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def launch(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A prototext or a Python script; the rest are its arguments.")
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Processes on this machine, data parallel.")] = 1,
    restarts: Annotated[int, typer.Option(min=0, help="Restart all of them up to N times when one fails.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print the command, start nothing.")] = False,
) -> None:
    """Train the model of FILE on several ranks of this machine."""
    import os
    import shlex

    from descend.launch import Job, layout_trainers, local, timeout_seconds

    if str(file).startswith("-"):
        raise ConfigurationError(f"descend launch has no option {file}; options of the run come after FILE")
    if not file.is_file():
        what = f"{file} is not a file" if file.exists() else f"there is no file {file}"
        raise ConfigurationError(f"{what}; a prototext or a Python script was expected")
    timeout_seconds()
    run_dir = _value_of("--run-dir", context.args)
    script = file.suffix == ".py"
    program = [str(file), *context.args] if script else ["-m", "descend", "run", str(file), *context.args]
    if restarts and not script:
        if run_dir is None:
            raise ConfigurationError("--restarts resumes the run from its checkpoints: add --run-dir DIR")
        program += ["--resume"] if "--resume" not in context.args else []
    command, environment = local.command(ranks, program, restarts), local.surroundings(ranks)
    if run_dir is not None:
        Job(command, Path(run_dir).absolute(), procs_per_node=ranks)
    if not script:
        trainers, procs = (_count_of(name, context.args) for name in ("--trainers", "--procs-per-trainer"))
        _check_for_ranks(file, layout_trainers(ranks, trainers, procs).procs_per_trainer)
    if dry_run:
        own = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
        _print(f"{ranks} ranks on this machine: {shlex.join([*own, *command])}")
        return
    raise typer.Exit(_started(command, environment, None if run_dir is None else Path(run_dir)))


def _value_of(name: str, arguments: list[str]) -> str | None:
    """The value of an option among the arguments of another program."""
    for word, following in zip(arguments, [*arguments, None][1:], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _count_of(name: str, arguments: list[str]) -> int | None:
    """The same where it is a number; other values are reported by the program itself."""
    value = _value_of(name, arguments)
    return int(value) if value and value.isdecimal() else None


def _started(command: list[str], environment: dict[str, str], run_dir: Path | None) -> int:
    """Run a command, forward termination signals to it, show what it prints, and return its exit code."""
    import signal
    import subprocess
    import threading
    from contextlib import suppress

    from descend.launch.cpp_frames import copy_without_frames

    process = subprocess.Popen(  # not `with`, which waits for the end of the pipe
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True, errors="replace"
    )

    def passed_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, passed_on)
    copied = threading.Thread(target=copy_without_frames, args=(process.stderr or (), sys.stderr, run_dir), daemon=True)
    copied.start()
    code = process.wait()
    copied.join(timeout=2)  # a process that a rank has left behind may hold the pipe open for longer
    return code


def _check_for_ranks(file: Path, ranks: int) -> None:
    """Refuse an experiment that is wrong or cannot be data parallel, before anything is started."""
    from descend.experiment import check_experiment, load

    checked = check_experiment(load(file))
    if ranks > 1 and checked.unit is None:
        raise ConfigurationError(
            f"{file}: a layer works on the whole mini-batch, which {ranks} ranks would split; for batch normalization "
            "declare the model's batch_norm_group_size"
        )


@app.command(
    rich_help_panel=LOOK,
    short_help="Predict the step time on many ranks.",
    epilog="Example: descend plan lenet.prototext --ranks 8..4096 --latency-us 2",
)
def plan(
    file: PrototextFile,
    ranks: Annotated[str, typer.Option(help="A number, several as in 1,2,4, or a doubling range.")] = "1..64",
    latency_us: Annotated[float, typer.Option(min=0.0, help="Latency between ranks, in microseconds.")] = 20.0,
    bandwidth_gbs: Annotated[float, typer.Option(min=0.001, help="Bandwidth between ranks, in GB/s.")] = 10.0,
    trees: Annotated[
        bool, typer.Option("--trees", help="Sums go along trees where that is faster, as in NCCL.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples; by default the file's mini-batch.")] = None,
) -> None:
    """Predict the step time of FILE on many ranks, from a few steps that are measured here."""
    from descend.experiment import check_experiment, load
    from descend.launch.cost_model import Network, rank_counts

    counts, network = rank_counts(ranks), Network(latency_us * 1e-6, bandwidth_gbs * 1e9, trees)
    experiment = load(file)
    check_experiment(experiment)  # before torch is imported, so that mistakes are reported at once
    from descend.experiment.inspect.scaling_forecast import forecast_table, profile_of

    size = batch_size or experiment.trainer.mini_batch_size
    _print(forecast_table(profile_of(experiment), network, size, counts))


@app.command(
    rich_help_panel=LOOK,
    short_help="Layers of FILE: shapes, parameters, memory; a drawing.",
    epilog="Example: descend show lenet.prototext --batch-size 64 --picture lenet.svg",
)
def show(
    file: PrototextFile,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples; by default the file's mini-batch.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the graph to this SVG file.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Also print what each of so many ranks holds.")] = None,
) -> None:
    """Print the layers of FILE: shapes, parameters, multiply-adds, memory; and draw them."""
    from descend.experiment import check_experiment, load
    from descend.pages.graph_svg import save

    experiment = load(file)
    checked = check_experiment(experiment)
    _write_layers(checked, batch_size or experiment.trainer.mini_batch_size)
    if ranks is not None:
        from descend.experiment.cut_layers import rank_memory

        _print(rank_memory(checked.plan, ranks))
    if picture is not None:
        save(checked.plan, picture)
        _print(f"drawn in {picture}")


@app.command(rich_help_panel=AFTER, short_help="Draw the lineage of models in a tournament.")
def lineage(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run with several trainers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, .svg or .html.")] = Path(
        "lineage.svg"
    ),
) -> None:
    """Draw the lineage of models in the tournament of RUN_DIR, with scores and learning rates."""
    from descend.pages.lineage_svg import save

    save(run_dir, output)
    _print(f"drawn in {output}")


@app.command(rich_help_panel=AFTER, short_help="Write the page report.html of a run or study.")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Of a run or a study, finished or under way.")],
) -> None:
    """Write the page report.html of a run or study.

    It has charts, tables and settings in one file, and opens without a network.
    """
    from descend.view.subjects import subjects

    (subject,) = subjects([directory])[:1]
    if subject.folder != directory.resolve():
        raise ConfigurationError(f"{directory} is neither a run nor a study; name one of those in it")
    if subject.is_study:
        from descend.study.comparing import read_directory

        _print(read_directory(directory).report(directory))
        return
    from descend.pages.run import write_run_page

    _print(write_run_page(directory))


@app.command(
    rich_help_panel=AFTER,
    short_help="Runs and studies in a browser, live, side by side.",
    epilog="Example: descend view runs/first runs/second --browser",
)
def view(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_STUDY", help="Directories of runs and studies, or one that holds these."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Also open it in a browser.")] = False,
) -> None:
    """Show runs and studies in a browser, live and side by side.

    The pages are served on 127.0.0.1 until Ctrl-C, under an address with a token.
    """
    from descend.view import serve
    from descend.view.subjects import subjects

    shown = subjects(directories)

    def ready(url: str) -> None:
        _print(f"{len(shown)} {'page' if len(shown) == 1 else 'pages'} at {url}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(url)

    serve(shown, port, ready)


@app.command(
    rich_help_panel=AFTER,
    short_help="Write a model to ONNX with the weights of a run.",
    epilog="Example: descend export lenet.prototext lenet.onnx --weights runs/first",
)
def export(
    file: PrototextFile,
    to: Annotated[Path, typer.Argument(metavar="TO", help="The ONNX file to write.")],
    weights: Annotated[Path | None, typer.Option(help="A run's directory, or one of its checkpoints.")] = None,
    output: Annotated[list[str] | None, typer.Option(help="A layer that is an output of the ONNX model.")] = None,
) -> None:
    """Export the model of FILE to ONNX, with the weights of a run."""
    from descend.experiment import check_experiment, load

    experiment = load(file)
    readers = check_experiment(experiment).readers.values()
    fields = {name: field.shape for reader in readers for name, field in reader.fields.items()}
    from descend.onnx import save

    _print(f"written to {save(experiment.model, to, weights, fields=fields, outputs=output or None)}")


@app.command(rich_help_panel=TRAIN, short_help="Train LeNet on bundled handwritten digits.")
def demo(
    fashion_mnist: Annotated[
        bool, typer.Option("--fashion-mnist", help="Fashion-MNIST instead of the digits.")
    ] = False,
    run_dir: Annotated[Path | None, typer.Option(help="A new or empty directory for the results.")] = None,
) -> None:
    """Train LeNet on the handwritten digits that ship with the package."""
    from descend.experiment.inspect.summary import summary
    from descend.experiment.run import run as run_experiment
    from descend.zoo import demo_experiment

    experiment = demo_experiment("fashion-mnist" if fashion_mnist else "digits")
    parts = (experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer)
    _say(summary(run_experiment(*parts, run_dir=run_dir)))


@app.command(
    rich_help_panel=LOOK,
    short_help="Fields, ranges, classes and problems of data.",
    epilog="Example: descend data train.csv --test test.csv -o label=kind --check",
)
def data(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, a folder or a pattern, as descend.data.read takes them.")
    ],
    validate: Annotated[str | None, typer.Option(help="Data of the role 'validate', compared with SOURCE.")] = None,
    test: Annotated[str | None, typer.Option(help="Data of the role 'test', compared with SOURCE.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of descend.data.read, as in label=kind."),
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME(...)", help="Measure the speed with it as well, as in 'RandomCrop(24, 24)'."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="The most samples of each role that are read.")] = 20_000,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON: fields, samples, problems, and more.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page, with a contact sheet of images.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if there are problems.")] = False,
) -> None:
    """Show what is in data: fields, ranges, missing values, classes, samples, and problems such as leaks."""
    import json

    from descend.data.file_format import parsed_options
    from descend.data.survey import readers_of, survey
    from descend.data.survey.page import as_html, as_json, as_text, text_parts
    from descend.data.survey.speed import parsed_transforms
    from descend.errors import DataError

    options = parsed_options(option or ())
    readers = readers_of(source, **options)
    for role, other in (("validate", validate), ("test", test)):
        if other is not None:
            classes = {"classes": one.classes} if (one := next(iter(readers.values()))).classes else {}
            readers |= readers_of(other, **{**options, **classes, "role": role})
    found = survey(readers, samples, parsed_transforms(transform or ()), seconds=0.5)
    if html is not None:
        from descend.runtime.run_directory import write_beside

        write_beside(html, as_html(found, source))
    if json_:
        _print(json.dumps(as_json(found), indent=2, allow_nan=False))
    else:
        write(as_text(found), text_parts(found))
    if check and found.problems:
        raise DataError(f"{len(found.problems)} problems were found in {source}")


@app.command(rich_help_panel=LOOK, short_help="Optimizer settings of each parameter; learning rates.")
def explain(
    file: PrototextFile,
) -> None:
    """Print the optimizer's settings for each parameter of FILE and the learning rate schedule. Trains nothing."""
    from descend.experiment import check_experiment, load

    experiment = load(file)
    check_experiment(experiment)  # before torch is imported, so that mistakes are reported at once
    from descend.experiment.inspect.explain import explain_experiment

    explained = explain_experiment(experiment)
    write(str(explained), [explained.table, "", *explained.remarks])


@app.command(
    rich_help_panel=CHOOSE,
    short_help="List the optimizers, or describe one with equations.",
    epilog="Example: descend optimizers LAMB",
)
def optimizers(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An optimizer; prints its equations, options and sources.")
    ] = None,
) -> None:
    """List the optimizers with their defaults, or describe one."""
    from descend.rule_index import describe, format_list, rule_table

    if name is None:
        write(format_list(), [rule_table()])
    else:
        _print(describe(name))


@app.command(
    rich_help_panel=CHOOSE,
    short_help="Check any torch optimizer against its published rule.",
    epilog="Example: descend conformance torch.optim:Adam lr=0.01",
)
def conformance(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="module:Class, or a module for all of its optimizers.")
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="The same as --args NAME=VALUE.")
    ] = None,
    args: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An argument for the class.")] = None,
    rule: Annotated[str | None, typer.Option(help="The published rule that it should follow.")] = None,
) -> None:
    """Check any torch optimizer: its published rule, odd tensors, NaN, fp16, saved state, errors in groups.

    Exits with 1 when a check fails.
    """
    from types import ModuleType

    from descend.conformance import arguments, examine, load, survey

    sys.path.insert(0, str(Path.cwd()))  # so that classes in the working directory are found
    found = load(target)
    given = arguments([*(args or ()), *(more or ())])
    if not isinstance(found, ModuleType):
        report = examine(found, rule=rule, **given)
        _print(report)
        raise typer.Exit(0 if report.passed else 1)
    if given or rule:
        raise typer.BadParameter(f"arguments and --rule are for one class: {target}:Class", param_hint="target")
    passed = True
    for report in survey(found):
        _print(report.line)
        passed = passed and report.passed
    raise typer.Exit(0 if passed else 1)


app.add_typer(study, name="study", rich_help_panel=CHOOSE)


def _show(message: Warning | str, *about: object) -> None:
    """Print a warning as one line, without the position in our own code."""
    emit("warning: " + printable(str(message), keep="\n\t") + "\n", sys.stderr)


def main() -> None:
    """Run the command line; the exit codes are those of `descend.errors`."""
    for stream in (sys.stdout, sys.stderr):  # an encoding without the letters of equations shows their code points
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _show
        exit_with_code(lambda: app(prog_name="descend"))


if __name__ == "__main__":
    sys.exit(main())
