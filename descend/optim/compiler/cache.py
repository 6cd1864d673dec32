"""The compile cache: compiles kernels in background processes, stores and loads them.

A kernel is compiled in a process of its own and stored in the folder of torch's compile cache. The training process
only loads the finished file, which takes milliseconds.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import RuleError, warn
from descend.optim.compiler.nvrtc import NvrtcError, library
from descend.optim.compiler.trace import Untraceable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "THREADS",
    "CompileJob",
    "CompilePolicy",
    "KernelCompiler",
    "compile_command",
    "compiler",
    "folder",
    "is_ours",
    "key_of",
    "obstacle",
    "script_process",
]

# The sources that decide what a kernel computes and how it is called.
SOURCES = (
    "compiler/codegen_cpp.py",
    "compiler/codegen_cuda.py",
    "compiler/codegen_cuda_matrix.py",
    "compiler/codegen_matrix.py",
    "compiler/codegen_packs.py",
    "compiler/cuda.py",
    "compiler/cuda_kernel.h",
    "compiler/cuda_matrix.h",
    "compiler/cuda_matrix.py",
    "compiler/kernel.h",
    "compiler/layout.py",
    "compiler/matrix.h",
    "compiler/matrix_plan.py",
    "compiler/native.py",
    "compiler/noise.h",
    "compiler/nvrtc.py",
    "compiler/packs.h",
    "compiler/partition.py",
    "compiler/trace.py",
    "engine/arena_buffers.py",
    "engine/arena_layout.py",
    "engine/device_kernels.py",
    "engine/device_matrices.py",
    "engine/gradient_scan.py",
    "engine/gradients.cpp",
    "engine/native.py",
)
EAGERLY = "this optimizer runs eagerly, with the same results"
# Where the compiler has it beside it; elsewhere kernels run in one thread.
THREADS = ("-fopenmp",) if sys.platform == "linux" else ()
PATIENCE_SECONDS = 1.0  # a run that ends sooner is not worth a compiler


@functools.cache
def digest() -> str:
    """Of `SOURCES`: kernels of other sources are other kernels."""
    here = Path(__file__).parents[1]
    return hashlib.sha256(b"\0".join((here / name).read_bytes() for name in SOURCES)).hexdigest()


def key_of(*facts: Any) -> str:
    """A name for a kernel that depends on these facts, on our sources and on torch."""
    return hashlib.sha256(json.dumps([digest(), torch.__version__, *facts]).encode()).hexdigest()[:32]


class CompileJob:
    """A library to compile. Two jobs are equal if one loaded library serves both.

    Attributes:
        device: "cpu" or "cuda".
        suffix: Of the finished file.
        wanted: Whether an optimizer that cannot have it should say so.
    """

    device: str
    suffix: str
    wanted: bool = True

    @functools.cached_property
    def key(self) -> str:
        """A hash of everything that the finished file depends on."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Path of the finished file."""
        return folder() / f"{self.key}{self.suffix}"

    def start(self, unfinished: Path) -> subprocess.Popen[str]:
        """Start the compiler, in a process and session of its own with its standard error on a pipe.

        Raises:
            Untraceable: There is no form of it for this device.
            OSError: The process cannot be started.
        """
        raise NotImplementedError

    def load(self) -> Any:
        """Load the finished file.

        Raises:
            OSError, RuntimeError: It cannot be loaded.
        """
        raise NotImplementedError


def folder() -> Path:
    """Our part of torch's compile cache, which follows TORCHINDUCTOR_CACHE_DIR."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    root = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
    return Path(root) / "descend"


def is_ours(path: Path) -> bool:
    """Whether only this user can have written the file: it holds code that will run."""
    if not hasattr(os, "getuid"):
        return True
    return all(x.stat().st_uid == os.getuid() and not x.stat().st_mode & 0o022 for x in (path.parent, path))


def compiler() -> str | None:
    """The C++ compiler of this machine, as torch finds it, or None."""
    wanted = [os.environ.get("CXX", ""), "g++", "clang++"]
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


def compile_command(
    source: str, unfinished: Path, flags: Sequence[str], libraries: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the C++ compiler on a source, to make a shared library."""
    found = compiler()
    assert found is not None
    return _fed([found, "-shared", "-fPIC", *flags, "-x", "c++", "-", *libraries, "-o", str(unfinished)], source)


def script_process(path: Path, arguments: Sequence[str], source: str) -> subprocess.Popen[str]:
    """Start a file of this package, which imports the standard library alone, with a source as its standard input.

    As a file and not as a module: its packages would import torch, which takes seconds. Its folder is not searched.
    """
    return _fed([sys.executable, "-P", str(path), *arguments], source)


def _fed(command: Sequence[str], source: str) -> subprocess.Popen[str]:
    """Start a command in a session of its own and give it a source."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(source)
    process.stdin.close()
    process.stdin = None
    return process


def obstacle(device: str) -> str | None:
    """Why nothing can be compiled for a device here, or None."""
    if device == "cuda":
        if not torch.cuda.is_available():
            return "no CUDA device"
        try:
            library()
        except NvrtcError as problem:
            return str(problem)
        return None
    return None if compiler() else "no C++ compiler is on the path"


@dataclass
class KernelCompiler:
    """Compiled kernels that this process has loaded, and compiler processes that are running."""

    loaded: dict[CompileJob, Any] = field(default_factory=dict[CompileJob, Any])
    failed: set[Path] = field(default_factory=set[Path])
    building: dict[Path, subprocess.Popen[str]] = field(default_factory=dict[Path, "subprocess.Popen[str]"])
    warned: set[str] = field(default_factory=set[str])

    def take(self, jobs: Sequence[CompileJob]) -> list[Any]:
        """All of these if all are finished, else none."""
        taken = [self._load(job) for job in jobs]
        return taken if all(held is not None for held in taken) else []

    def known(self, job: CompileJob) -> Any:
        """The finished library, or None. Once it is loaded the file system is not asked again."""
        return self.loaded.get(job) or self._load(job)

    def _load(self, job: CompileJob) -> Any:
        path = job.path
        if job not in self.loaded and path not in self.failed and path.exists():
            try:
                if not is_ours(path):
                    raise PermissionError(f"{path} may have been written by another user")
                self.loaded[job] = job.load()
            except (RuntimeError, OSError) as problem:
                self._fails(job, f"a compiled kernel cannot be loaded ({problem})")
        return self.loaded.get(job)

    def has_failed(self, job: CompileJob) -> bool:
        """Whether compiling or loading this has failed."""
        return job.path in self.failed

    def _fails(self, job: CompileJob, why: str) -> None:
        self.failed.add(job.path)
        if job.wanted:
            self.tell(f"{why}; {EAGERLY}")

    def order(self, jobs: Sequence[CompileJob]) -> None:
        """Start compiling these in background processes, unless that has begun or cannot be done."""
        for job in jobs:
            if job.path in self.failed or job.path in self.building or job.path.exists():
                continue
            why = obstacle(job.device)
            if why is not None:
                self._fails(job, why)
                continue
            folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self.building[job.path] = job.start(_unfinished(job))
                atexit.register(self._leave, job)
            except (Untraceable, OSError) as problem:
                self._fails(job, f"a kernel cannot be made ({problem})")

    def collect(self, jobs: Sequence[CompileJob], wait: bool = False) -> None:
        """Collect the results of compiler processes that have ended.

        Raises:
            RuleError: With `wait`, when a kernel could not be made.
        """
        for job in jobs:
            process = self.building.get(job.path)
            if process is not None and (wait or process.poll() is not None):
                self._end(job, process)
        if wait and any(job.wanted and self.has_failed(job) for job in jobs):
            raise RuleError('runner="compiled" is not available here; runner="auto" takes the next best')

    def _end(self, job: CompileJob, process: subprocess.Popen[str], quiet: bool = False) -> None:
        """Reap a process and move its finished file into place."""
        _, said = process.communicate()
        del self.building[job.path]
        unfinished = _unfinished(job)
        if process.returncode == 0 and unfinished.exists():
            unfinished.chmod(0o600)
            unfinished.replace(job.path)
            return
        unfinished.unlink(missing_ok=True)
        if not quiet:
            last = said.strip().splitlines()[-1:] or ["no message"]
            self._fails(job, f"compiling a kernel failed ({last[0]})")

    def _leave(self, job: CompileJob) -> None:
        """At exit: keep finished files and stop compilers that still run."""
        process = self.building.get(job.path)
        if process is None:
            return
        if process.poll() is None:
            _stop(process)
        self._end(job, process, quiet=True)

    def tell(self, line: str) -> None:
        """Warn once."""
        if line not in self.warned:
            self.warned.add(line)
            warn(f"descend: {line}")


def _unfinished(job: CompileJob) -> Path:
    return job.path.with_suffix(f".{os.getpid()}{job.suffix}")


def _stop(process: subprocess.Popen[str]) -> None:
    """Terminate a compiler and its children, which would keep the process from exiting."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()


@dataclass
class CompilePolicy:
    """Decides when an optimizer starts compiling: once the run has lasted `PATIENCE_SECONDS`."""

    began: float | None = None
    looked: float = 0.0

    def lasts(self) -> bool:
        """Whether the run has gone on for `PATIENCE_SECONDS`."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        return now - self.began > PATIENCE_SECONDS

    def may_look(self) -> bool:
        """Whether it is time to look again for finished kernels; not at each step, to spare the file system."""
        now = time.monotonic()
        if now - self.looked < 0.25:
            return False
        self.looked = now
        return True
