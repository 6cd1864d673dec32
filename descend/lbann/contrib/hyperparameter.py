"""A grid of hyperparameters, one trainer for each combination."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.lbann.proto import save_prototext

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from descend.lbann.launcher import BatchScript

__all__ = ["grid_search"]


def grid_search(
    script: BatchScript,
    make_experiment: Callable[..., tuple[Any, Any, Any, Any]],
    procs_per_trainer: int = 1,
    hyperparameters_file: str | os.PathLike[str] | None = None,
    lbann_exe: str | None = None,
    lbann_args: Iterable[str] = (),
    **kwargs: Iterable[Any],
) -> None:
    """Write an experiment for each combination of hyperparameters, and add one driver for all of them to a script.

    Args:
        script: A script of `make_batch_script`.
        make_experiment: Called with one value of each hyperparameter; returns trainer, model, data_reader, optimizer.
        procs_per_trainer: Processes of one trainer.
        hyperparameters_file: A table of the combinations, a line for each trainer; `hyperparameters.csv` in the folder
            of the job without one.
        lbann_exe: Command of the driver, as a shell takes it.
        lbann_args: More arguments of the driver.
        kwargs: The values of each hyperparameter.

    Raises:
        ConfigurationError: there are no combinations.
    """
    from descend.lbann.core.features import lbann_exe as driver
    from descend.lbann.launcher.batch_script import words

    names, values = list(kwargs), [list(one) for one in kwargs.values()]
    combinations = list(itertools.product(*values))
    if not names or not combinations:
        raise ConfigurationError("grid_search: expected a list of values for at least one hyperparameter")
    folder = Path(script.work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for number, combination in enumerate(combinations):
        parts = make_experiment(**dict(zip(names, combination, strict=True)))
        trainer, model, data_reader, optimizer = parts
        save_prototext(
            folder / f"experiment.trainer{number}.prototext",
            trainer=trainer,
            model=model,
            data_reader=data_reader,
            optimizer=optimizer,
        )
    table = Path(hyperparameters_file) if hyperparameters_file else folder / "hyperparameters.csv"
    lines = [["trainer", *names], *([str(n), *map(str, one)] for n, one in enumerate(combinations))]
    table.write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
    flags = [f"--procs_per_trainer={procs_per_trainer}", "--generate_multi_proto"]
    # Relative, because the driver puts a number behind every "trainer" of the path.
    file = "experiment.trainer.prototext"
    script.add_parallel_command([lbann_exe or driver(), *words(lbann_args), *flags, f"--prototext={file}"])
