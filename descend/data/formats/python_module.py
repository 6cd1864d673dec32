"""Samples that functions of a Python module return, LBANN's reader "python", and processes that call such code.

    python { module: "helper" module_dir: "." sample_function: "get_sample" num_samples_function: "num_samples"
             sample_dims_function: "sample_dims" }

    samples     what sample_function(i) returns, as float32 in the shape that sample_dims_function() returns
    labels      one number, 0: LBANN's reader offers the field and fills it with nothing

The module is imported, so this reader is open in LBANN's driver alone: no other door runs code by reading a text.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments.leniency import Deviation, allowed, lenient
from descend.data.reader_protocol import Field, Format
from descend.errors import ConfigurationError, DataError, warn
from descend.lazy import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from numpy.typing import NDArray

    from descend.data.description import PythonDataReader, Reader
    from descend.data.reader_protocol import Array

    Take = Callable[[int], Mapping[str, Any]]

__all__ = [
    "PYTHON",
    "ModuleSamples",
    "RowFiller",
    "SampleTaker",
    "imported",
    "module_in_import",
    "require_code",
    "shape_of",
]

_FUNCTIONS = ("sample_function", "num_samples_function", "sample_dims_function")


def require_code(what: str) -> None:
    """Refuse a reader that runs code, but in LBANN's driver.

    Raises:
        ConfigurationError: this is another door.
    """
    if not allowed(Deviation.CODE_OF_A_READER):
        raise ConfigurationError(
            f"{what} runs code of its own, which reading a text must not do: start it by descend-lbann "
            "--prototext=FILE, or give descend.fit the samples as an object"
        )


def imported(module: str, folder: str) -> ModuleType:
    """Import a module as LBANN does: by its name, with a folder in front of where modules are looked for.

    Args:
        module: Its name, with or without dots.
        folder: Where its file lies; "" for the current one.

    Raises:
        DataError: it cannot be imported.
    """
    place = Path(folder or ".").absolute()
    file = place.joinpath(*module.split(".")).with_suffix(".py")
    sys.path[:0] = [str(place)] if str(place) not in sys.path else []
    known = sys.modules.get(module)
    _importing.append(module)
    try:
        if known is None or not file.is_file() or _is_of(known, file):
            return importlib.import_module(module)
        importlib.invalidate_caches()  # a module of the same name from another folder is another one
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None  # it is a file of Python
        assert spec.loader is not None
        made = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    except Exception as error:  # code of the user, which may raise anything
        raise DataError(
            f"the module '{module}' cannot be imported ({type(error).__name__}: {error}); it is looked for in {place}"
        ) from error
    finally:
        _importing.pop()
    return made


def module_in_import() -> str | None:
    """The module of a reader whose code is run at this moment to import it; None if there is none."""
    return _importing[-1] if _importing else None


_importing: list[str] = []


def _is_of(module: ModuleType, file: Path) -> bool:
    own = getattr(module, "__file__", None)
    return own is not None and Path(own).exists() and file.samefile(own)


def shape_of(dims: Any, what: str) -> tuple[int, ...]:
    """Dimensions as a shape; a number is one dimension.

    Raises:
        DataError: they are not sizes of at least 1.
    """
    try:
        shape = tuple(int(size) for size in np.atleast_1d(np.asarray(dims)).tolist())
    except (TypeError, ValueError):
        shape = (0,)
    if not shape or min(shape) < 1:
        raise DataError(f"{what} must be sizes of at least 1, got {dims!r:.80}")
    return shape


class RowFiller:
    """Writes samples into rows of float32, whatever shape they have.

    Args:
        what: Names the reader in errors.
    """

    def __init__(self, what: str) -> None:
        self._what, self._pads = what, allowed(Deviation.SHORT_SAMPLE)

    def fill(self, row: NDArray[np.float32], given: Any, sample: int) -> None:
        """Write one sample.

        Args:
            row: Where it goes, of the declared shape.
            given: What the user's code has returned.
            sample: Its number.

        Raises:
            DataError: it is not numbers, or of another size. In LBANN's driver a shorter one leaves the rest 0.
        """
        try:
            values = np.asarray(given, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self._what}: sample {sample} is not an array of numbers: {error}") from error
        problem = f"{self._what}: a sample has {values.size} numbers, fewer than the {row.size} that are declared"
        if values.size < row.size and self._pads:
            warn(f"{problem}: LBANN allows it, and {Deviation.SHORT_SAMPLE.value}")
        elif values.size != row.size:
            raise DataError(
                f"{self._what}: sample {sample} has {values.size} numbers; expected {row.size}, as the dimensions "
                f"{row.shape} say"
            )
        row.reshape(-1)[: values.size] = values


class ModuleSamples:
    """The samples of the reader "python"."""

    def __init__(self, reader: Reader, seed: int) -> None:
        require_code("the reader 'python'")
        settings = reader.python
        if settings is None:
            raise ConfigurationError("needs a message python { module: ... } that says where samples come from")
        missing = [name for name in ("module", *_FUNCTIONS) if not getattr(settings, name)]
        if missing:
            raise ConfigurationError([f"python needs {name}" for name in missing])
        self._name = f"module '{settings.module}'"
        self._filler = RowFiller(f"{self._name}, {settings.sample_function}")
        _, count, dims = _functions(settings)
        self._samples = SampleTaker(partial(_source, settings), settings.workers, self._name)
        self._count = int(_called(count, f"{self._name}, {settings.num_samples_function}"))
        shape = shape_of(
            _called(dims, f"{self._name}, {settings.sample_dims_function}"),
            f"{self._name}, {settings.sample_dims_function}: dimensions",
        )
        self._shape = shape
        self.fields: Mapping[str, Field] = {
            "samples": Field(shape, np.dtype(np.float32)),
            "labels": Field((1,), np.dtype(np.float32)),
        }

    def __len__(self) -> int:
        return self._count

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Call the function for each sample.

        Raises:
            DataError: it raises, or returns something else than numbers of the declared size.
        """
        rows = np.zeros((len(samples), *self._shape), np.float32)
        for row, sample, given in zip(rows, samples.tolist(), self._samples.take(samples), strict=True):
            self._filler.fill(row, given["samples"], sample)
        return {"samples": rows, "labels": np.zeros((len(samples), 1), np.float32)}


def _source(settings: PythonDataReader) -> Callable[[int], Mapping[str, Any]]:
    """The function that takes a sample."""
    sample = _functions(settings)[0]
    return lambda number: {"samples": sample(number)}


def _functions(settings: PythonDataReader) -> list[Callable[..., Any]]:
    module = imported(settings.module, settings.module_dir)
    names: list[str] = [getattr(settings, name) for name in _FUNCTIONS]
    if missing := [name for name in names if not callable(getattr(module, name, None))]:
        raise DataError([f"the module '{settings.module}' has no function '{name}'" for name in missing])
    return [getattr(module, name) for name in names]


def _called(function: Callable[[], Any], what: str) -> Any:
    """What a user's function returns.

    Raises:
        DataError: what it raises, with its type.
    """
    try:
        return function()
    except Exception as error:  # code of the user, which may raise anything
        raise DataError(f"{what} raises {type(error).__name__}: {error}") from error


PYTHON = Format(ModuleSamples, frozenset({"python"}))


# ---- processes that call a user's code for samples, so that several samples are made at once

# A user's code is not made for threads, and the readers of two roles may read ahead at the same time.
_ONE_AT_A_TIME = threading.Lock()


class SampleTaker:
    """Calls a user's code for samples, in this process or in others.

    The processes are started by the first samples that are asked for. Each imports the user's module again, and ends
    with this process, however that ends.

    Args:
        source: Gives the function that takes one sample: of a number, an array or nested numbers for each field. It is
            called in each process, so it must be at the top of a module.
        workers: Number of processes; 0 and 1 take samples in this one.
        what: Names the reader in errors.
    """

    def __init__(self, source: Callable[[], Take], workers: int, what: str) -> None:
        self._source, self._workers, self._what = source, workers, what
        self._take = source() if workers <= 1 else None
        self._pool: ProcessPoolExecutor | None = None

    def take(self, samples: NDArray[np.int64]) -> list[Mapping[str, Any]]:
        """The samples that the user's code gives for these numbers, in order.

        Raises:
            DataError: it raises, or a process has died.
        """
        numbers = samples.tolist()
        if self._take is not None:
            return _all(self._take, numbers, self._what, _ONE_AT_A_TIME)
        if not numbers:
            return []
        parts = [part.tolist() for part in np.array_split(samples, min(self._workers, len(numbers)))]
        try:
            return [row for rows in self._started().map(_read, parts) for row in rows]
        except BrokenProcessPool as error:
            raise DataError(
                f"{self._what}: a process that reads samples has died, near samples {numbers[0]} to {numbers[-1]}; its "
                "message is above, and the usual causes are a crash in its code and too little memory"
            ) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # A fork of a process with threads of torch may hang; a fresh one imports the user's module alone.
            context = multiprocessing.get_context("spawn")
            arguments = (registered("begin_reading_process"), self._source, self._what)
            self._pool = ProcessPoolExecutor(self._workers, context, _begin, arguments)
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool


_own: tuple[Take, str] | None = None  # of a reading process


def _begin(prepare: Callable[[], None] | None, source: Callable[[], Take], what: str) -> None:
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()
    with lenient():
        _own = source(), what


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(numbers: list[int]) -> list[Mapping[str, Any]]:
    assert _own is not None  # set by _begin
    take, what = _own
    rows = _all(take, numbers, what)
    return [{name: _as_array(value) for name, value in row.items()} for row in rows]


def _as_array(value: Any) -> Any:
    """A value that another process can be sent; what is no array is left to the parent to refuse."""
    try:
        return np.asarray(value, np.float32)
    except (TypeError, ValueError):
        return repr(value)


def _all(take: Take, numbers: list[int], what: str, lock: Any = None) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for number in numbers:
        try:
            with lock or nullcontext():
                rows.append(take(number))
        except Exception as error:  # code of the user, which may raise anything
            raise DataError(f"{what}, sample {number} raises {type(error).__name__}: {error}") from error
    return rows
