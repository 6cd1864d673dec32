"""The command line. Nothing here imports torch before a run begins."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from descend.exits import main as exit_with_code
from descend.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="descend",
    help="Trains neural networks by first-order descent at any batch size.",
    rich_markup_mode=None,  # rich help doubles the start-up time
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"descend {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Trains neural networks by first-order descent at any batch size."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The experiment, a prototext.")],
    run_dir: Annotated[Path | None, typer.Option(help="A new or empty directory for the results.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the file, print the layers, start nothing.")] = False,
) -> None:
    """Train what FILE describes, and evaluate it on the test samples."""
    from descend.experiment import check_experiment, layer_table, load

    experiment = load(file)
    if check:
        checked = check_experiment(experiment)
        typer.echo(layer_table(checked))
        typer.echo(f"{file}: nothing wrong found")
        return
    check_experiment(experiment)  # before torch is imported, so that a mistake is answered at once
    from descend.experiment.run import run as run_experiment
    from descend.experiment.summary import summary

    parts = (experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer)
    typer.echo(summary(run_experiment(*parts, run_dir=run_dir)))


@app.command()
def demo(
    fashion_mnist: Annotated[
        bool, typer.Option("--fashion-mnist", help="Fashion-MNIST instead of the digits.")
    ] = False,
    run_dir: Annotated[Path | None, typer.Option(help="A new or empty directory for the results.")] = None,
) -> None:
    """Train LeNet on the handwritten digits that ship with the package."""
    from descend.experiment.run import run as run_experiment
    from descend.experiment.summary import summary
    from descend.zoo import demo_experiment

    experiment = demo_experiment("fashion-mnist" if fashion_mnist else "digits")
    parts = (experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer)
    typer.echo(summary(run_experiment(*parts, run_dir=run_dir)))


def _show(message: Warning | str, *about: object) -> None:
    """A warning as a line for a user, without the place in our own code."""
    sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Run the command line; exit codes are those of `descend.errors`."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        exit_with_code(lambda: app(prog_name="descend"))


if __name__ == "__main__":
    sys.exit(main())
