"""Small things that scripts use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

__all__ = ["make_iterable", "make_nd_array", "nvprof_command", "str_list"]


def make_iterable(obj: Any) -> Iterable[Any]:
    """An iterable as it is; a string and anything else as the only entry of a tuple."""
    return obj if isinstance(obj, Iterable) and not isinstance(obj, str) else (obj,)


def str_list(it: Any) -> str:
    """The entries of an iterable as one text, spaces between."""
    return " ".join(str(one) for one in make_iterable(it))


def make_nd_array(*dims: int) -> list[Any]:
    """Lists within lists of these lengths; every entry is None."""
    return [make_nd_array(*dims[1:]) if len(dims) > 1 else None for _ in range(dims[0])]


def nvprof_command(
    work_dir: str | os.PathLike[str] | None = None,
    output_name: str | None = None,
    profiling_options: Iterable[str] = (),
) -> list[str]:
    """The words of NVIDIA's profiler that stand before a command.

    Args:
        work_dir: Folder of its file.
        output_name: Name of the file; `%q{...}` and `%p` are the profiler's own.
        profiling_options: More options.
    """
    file = Path(work_dir or ".") / (output_name or "nvprof_output_%p.nvvp")
    return ["nvprof", "--log-file", f"{file}.log", "--export-profile", str(file), *profiling_options]
