"""Metrics that the graph does not compute: what a program prints, and what a function of a Python file returns.

Both are asked at the end of each pass over samples, by the first rank alone, and are told where LBANN keeps the files
of a model: `trainer0/model0`. A program runs in the run directory and finds that path from there; a function is given
it with the run directory in front.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.graph import ExecutableMetric, PythonMetric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from descend.graph import BaseMetric

__all__ = ["ExternalMetrics"]


class ExternalMetrics:
    """The metrics of a model that are asked of others.

    Args:
        metrics: Their descriptions.
        place: Where LBANN keeps the model's files, below the run directory.

    Raises:
        ConfigurationError: a Python file cannot be imported, or has no such function.
    """

    def __init__(self, metrics: Iterable[BaseMetric], place: str) -> None:
        self._place = place
        self._ask: dict[str, Callable[[Path], Any]] = {}
        for metric in metrics:
            if isinstance(metric, ExecutableMetric):
                self._ask[metric.name] = self._program(metric)
            elif isinstance(metric, PythonMetric):
                self._ask[metric.name] = self._function(metric)

    def __call__(self, directory: Path | None) -> Mapping[str, float]:
        """Every metric now; rank zero asks for all.

        Raises:
            ConfigurationError: a program failed, or gave no number.
        """
        where = Path() if directory is None else directory
        return {name: _number(name, ask(where)) for name, ask in self._ask.items()}

    def _program(self, metric: ExecutableMetric) -> Callable[[Path], str]:
        command = [metric.filename, *shlex.split(metric.other_args), self._place]

        def ask(directory: Path) -> str:
            try:
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            except OSError as error:
                raise ConfigurationError(
                    f"metric '{metric.name}': {metric.filename} cannot be started: {error}"
                ) from error
            if done.returncode:
                raise ConfigurationError(
                    f"metric '{metric.name}': {shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()}"
                )
            return done.stdout

        return ask

    def _function(self, metric: PythonMetric) -> Callable[[Path], Any]:
        function = _function_of(metric)
        return lambda directory: function(str(directory / self._place), 0)


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
        raise ConfigurationError(f"metric '{name}' gave {str(found)[:80]!r}; expected a number") from None
