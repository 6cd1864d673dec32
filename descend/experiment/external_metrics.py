"""Metrics from outside the graph: the output of a program, or the result of a function in a Python file.

Both are called at the end of each epoch and evaluation, by rank zero alone, with the path of LBANN's model files,
`trainer0/model0`: relative to the run directory, in which a program runs; with the run directory in front for a
function.
"""

from __future__ import annotations

import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.data.formats.python_module import imported
from descend.errors import ConfigurationError, DataError
from descend.graph import ExecutableMetric, PythonMetric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from descend.graph import BaseMetric

__all__ = ["ExternalMetrics"]


class ExternalMetrics:
    """The external metrics of a model.

    Args:
        metrics: Descriptions of all its metrics; others than external ones are ignored.
        place: LBANN's path of the model's files, relative to the run directory. A function gets it as it is where that
            is the current directory, as under LBANN's driver, and the whole path elsewhere.

    Raises:
        ConfigurationError: a Python file cannot be imported, or has no such function.
    """

    def __init__(self, metrics: Iterable[BaseMetric], place: str) -> None:
        self._place = place
        self._sources: dict[str, Callable[[Path], Any]] = {}
        for metric in metrics:
            if isinstance(metric, ExecutableMetric):
                self._sources[metric.name] = self._program(metric)
            elif isinstance(metric, PythonMetric):
                self._sources[metric.name] = self._function(metric)

    def __call__(self, directory: Path | None) -> Mapping[str, float]:
        """The current value of every metric; rank zero calls it.

        Raises:
            ConfigurationError: a program failed, or a result is not a number.
        """
        where = Path() if directory is None else directory
        return {name: _number(name, source(where)) for name, source in self._sources.items()}

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

        def call(directory: Path) -> Any:
            here = not directory.is_absolute() or directory.resolve() == Path.cwd()
            return function(self._place if here else str(directory / self._place), 0)

        return call


def _function_of(metric: PythonMetric) -> Callable[[str, int], Any]:
    name = metric.module.removesuffix(".py")
    path = Path(metric.module_dir).joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file() and (metric.module_dir or find_spec(name.partition(".")[0]) is None):
        raise ConfigurationError(f"metric '{metric.name}': there is not Python file {path}")
    try:
        module = imported(name, metric.module_dir)  # as readers are, so that a script which is both is imported once
    except DataError as error:
        raise ConfigurationError(f"metric '{metric.name}': {error}") from error
    called = metric.function or "evaluate"
    function = getattr(module, called, None)
    if not callable(function):
        raise ConfigurationError(f"metric '{metric.name}': module '{metric.module}' has no function '{called}'")
    return function


def _number(name: str, found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError):
        raise ConfigurationError(f"metric '{name}' must be a number, got {str(found)[:80]!r}") from None
