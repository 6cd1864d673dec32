"""Metrics from outside the graph: the output of a program, or the result of a function in a Python file.

Both are called at the end of each epoch and evaluation, by rank zero alone, with the path of LBANN's model files,
`trainer0/model0`: relative to the run directory, in which a program runs, and with the run directory in front for a
function.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError
from descend.graph import ExecutableMetric, PythonMetric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from descend.graph import BaseMetric
    from descend.runtime import Communicator

__all__ = ["ExternalMetrics"]


class ExternalMetrics:
    """The external metrics of a model.

    Args:
        metrics: Descriptions of all its metrics; others than external ones are ignored.
        place: LBANN's path of the model's files, relative to the run directory.
        process: The communicator.

    Raises:
        ConfigurationError: a Python file cannot be imported, or has no such function.
    """

    def __init__(self, metrics: Iterable[BaseMetric], place: str, process: Communicator) -> None:
        self._place, self._process = place, process
        self._sources: dict[str, Callable[[Path], Any]] = {}
        for metric in metrics:
            if isinstance(metric, ExecutableMetric):
                self._sources[metric.name] = self._program(metric)
            elif isinstance(metric, PythonMetric):
                self._sources[metric.name] = self._function(metric)

    def __call__(self, directory: Path | None) -> Mapping[str, float]:
        """The current value of every metric, the same on all ranks.

        Raises:
            ConfigurationError: a program failed, or a result is no number.
        """
        if not self._sources:
            return {}
        where = Path() if directory is None else directory
        is_rank_zero = self._process.rank == 0
        found = [_number(name, source(where)) if is_rank_zero else 0.0 for name, source in self._sources.items()]
        values = self._process.all_reduce(torch.tensor(found, dtype=torch.float64)).tolist()
        return dict(zip(self._sources, values, strict=True))

    def _program(self, metric: ExecutableMetric) -> Callable[[Path], str]:
        command = [metric.filename, *shlex.split(metric.other_args), self._place]

        def run_program(directory: Path) -> str:
            try:
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            except OSError as error:
                raise ConfigurationError(
                    f"metric '{metric.name}': {metric.filename} cannot be started: {error}"
                ) from error
            if done.returncode:
                error = done.stderr.strip()
                raise ConfigurationError(
                    f"metric '{metric.name}': {shlex.join(command)} exited with {done.returncode}: {error}"
                )
            return done.stdout

        return run_program

    def _function(self, metric: PythonMetric) -> Callable[[Path], Any]:
        function = _function_of(metric)
        return lambda directory: function(str(directory / self._place), self._process.rank)


def _function_of(metric: PythonMetric) -> Callable[[str, int], Any]:
    path = Path(metric.module_dir) / f"{metric.module.removesuffix('.py')}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"metric '{metric.name}': there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigurationError(f"metric '{metric.name}': {path} cannot be imported: {error!r}") from error
    name = metric.function or "evaluate"
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigurationError(f"metric '{metric.name}': {path} has no function '{name}'")
    return function


def _number(name: str, found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError):
        raise ConfigurationError(f"metric '{name}' must be a number, got {str(found)[:80]!r}") from None
