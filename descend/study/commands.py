"""`descend study ...`. Nothing here imports torch before a study runs."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Compare optimizers, rates and batch sizes, fairly.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback()
def options() -> None:
    """Compare optimizers, rates and batch sizes, fairly, and say so when nothing can be ranked."""


@app.command()
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

    sizes = read_batch_sizes(batch_sizes)
    found = {rule: [tuned(rule, size, target=target, refine=refine) for size in sizes] for rule in rules.split(",")}
    steps = {rule: [one.steps for one in row] for rule, row in found.items()}
    typer.echo(table(sizes, steps))
    typer.echo(plot(sizes, steps))
    for rule, row in found.items():
        edges = [f"{size:,} ({', '.join(one.on_edge)})" for size, one in zip(sizes, row, strict=True) if one.on_edge]
        if edges:
            typer.echo(f"{rule}: the best setting lies on an edge of its grid at batch size {'; '.join(edges)}")
