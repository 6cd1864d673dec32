"""NVIDIA's compiler as a library, NVRTC: it comes with torch's builds for CUDA, needs no toolkit and no device.

`python nvrtc.py sm_90 FILE` reads a source from standard input and writes its machine code. It takes no longer than
compiling does, since this file imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["NvrtcError", "compile_cuda", "library", "main", "target"]

# Each operation is rounded by itself, as in the eager form; square roots and divisions as IEEE 754 has them.
OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


class NvrtcError(RuntimeError):
    """NVRTC is not here, or refuses a source; the message says which and why."""


def _candidates() -> list[str]:
    """Files of the packages `nvidia-cuda-nvrtc*` beside torch's, of a toolkit, and names for the loader."""
    found: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        found += sorted(Path(place).glob("*/lib/libnvrtc.so.*"), reverse=True)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found += sorted(Path(home).glob("lib64/libnvrtc.so.*"), reverse=True)
    files = [str(path) for path in found if "alt" not in path.name]
    return [*files, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]


@functools.cache
def library() -> ctypes.CDLL:
    """The library.

    Raises:
        NvrtcError: There is none.
    """
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvrtcError("NVRTC is not installed; it comes with torch's builds for CUDA, or: pip install nvidia-cuda-nvrtc")


def _check(result: int) -> None:
    if result:
        library().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise NvrtcError(f"NVRTC: {library().nvrtcGetErrorString(result).decode()}")


def _text(program: Any, size: str, get: str) -> bytes:
    count = ctypes.c_size_t()
    _check(getattr(library(), size)(program, ctypes.byref(count)))
    held = ctypes.create_string_buffer(count.value)
    _check(getattr(library(), get)(program, held))
    return held.raw


@contextlib.contextmanager
def _locale_kept() -> Generator[None]:
    """Gives this thread its locale back: NVRTC leaves it with "C", in which Python reads text files as ASCII."""
    uselocale = getattr(ctypes.CDLL(None), "uselocale", None)
    if uselocale is None:  # not a POSIX system
        yield
        return
    uselocale.restype, uselocale.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    before = uselocale(None)
    try:
        yield
    finally:
        uselocale(before)


def target(capability: tuple[int, int]) -> str:
    """The architecture to compile for: the device's own, or text for the newest that NVRTC knows and the device runs.

    Args:
        capability: Of the device, as `torch.cuda.get_device_capability` gives it.

    Raises:
        NvrtcError: NVRTC is not here, or knows newer devices only.
    """
    count = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check(library().nvrtcGetSupportedArchs(known))
    wanted = 10 * capability[0] + capability[1]
    if wanted in known:
        return f"sm_{wanted}"
    older = [arch for arch in known if arch < wanted]
    if not older:
        raise NvrtcError(f"NVRTC compiles for sm_{min(known)} and newer, and the device is sm_{wanted}")
    return f"compute_{max(older)}"


def compile_cuda(source: str, architecture: str) -> bytes:
    """Machine code of a source for "sm_90" and the like; for "compute_90" text that the driver compiles.

    Raises:
        NvrtcError: NVRTC is not here, or refuses the source.
    """
    held, program = library(), ctypes.c_void_p()
    text = source.encode()
    _check(held.nvrtcCreateProgram(ctypes.byref(program), text, b"descend.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={architecture}".encode(), *(option.encode() for option in OPTIONS)]
        with _locale_kept():
            refused = held.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if refused:
            log = _text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
            first = next((line for line in log.splitlines() if "error" in line), log)
            raise NvrtcError(f"NVRTC refuses the source: {first}")
        if architecture.startswith("sm_"):
            return _text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        return _text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
    finally:
        held.nvrtcDestroyProgram(ctypes.byref(program))


def main() -> None:
    """Compile, giving way to the run that waits for it; on failure the reason is the last line of standard error."""
    os.nice(5)
    architecture, path = sys.argv[1:]
    try:
        Path(path).write_bytes(compile_cuda(sys.stdin.read(), architecture))
    except NvrtcError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
