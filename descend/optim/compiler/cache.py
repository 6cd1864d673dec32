"""The compile cache: compiles kernels in background processes, stores and loads them.

A kernel is compiled in a process of its own and stored in the user's cache (`descend/files/private_folder.py`), which
no other user can write. The training process only loads what was stored, which takes milliseconds. No failure ends a
run: where the cache cannot be used, kernels live as long as this process; where one cannot be compiled or loaded, its
optimizer runs eagerly. One line says either.
"""

from __future__ import annotations

import atexit
import contextlib
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
from typing import IO, TYPE_CHECKING, Any

import torch

from descend.errors import RuleError, warn
from descend.files import regular_file
from descend.files.private_folder import PrivateFolder, cache_root
from descend.optim.compiler.nvrtc import NvrtcError, library

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = [
    "THREADS",
    "CompileJob",
    "CompilePolicy",
    "KernelCompiler",
    "compile_command",
    "compiler",
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
    "engine/arena_layout.py",
    "engine/device_matrices.py",
    "engine/gradient_scan.py",
    "engine/gradients.cpp",
    "engine/finite.py",
    "engine/launch.py",
    "engine/matrices.py",
)
EAGERLY = "this optimizer runs eagerly, with the same results"
# Where the compiler has it beside it; elsewhere kernels run in one thread.
THREADS = ("-fopenmp",) if sys.platform == "linux" else ()
PATIENCE_SECONDS = 1.0  # a run that ends sooner is not worth a compiler
COMPILER_SECONDS = 300.0  # a compiler that takes longer hangs; most take 1 to 10


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
    def file(self) -> str:
        """Name of the finished file in the cache."""
        return f"{self.key}{self.suffix}"

    def start(self, unfinished: Path) -> CompilerProcess:
        """Start the compiler, which writes a file.

        Raises:
            Untraceable: There is no form of it for this device.
            OSError: The process cannot be started.
        """
        raise NotImplementedError

    def load(self, content: bytes) -> Any:
        """Load the content of the finished file.

        Raises:
            OSError, RuntimeError, AttributeError: It cannot be loaded.
        """
        raise NotImplementedError


@dataclass
class CompilerProcess:
    """A compiler in a process and session of its own.

    Attributes:
        process: The process.
        output: The file that it writes, alone in a folder that is removed with it.
        said: What it writes to standard error: a file, which never makes it wait for this process.
        began: When it was started, in seconds of the monotonic clock.
    """

    process: subprocess.Popen[bytes]
    output: Path
    said: IO[bytes]
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, command: Sequence[str], source: str, output: Path) -> CompilerProcess:
        """Start a command with a source as its standard input, from a file too: it may read that late or never."""
        said = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        with tempfile.TemporaryFile() as given:
            given.write(source.encode())
            given.seek(0)
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=given, stdout=nothing, stderr=said, start_new_session=True)
            return cls(process, output, said)

    def has_ended(self, wait: bool = False) -> bool:
        """Whether it is at its end; after `COMPILER_SECONDS`, which are waited for on request, it is stopped."""
        left = max(0.0, self.began + COMPILER_SECONDS - time.monotonic())
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(left)
        if self.process.poll() is None and left == 0.0:
            self.stop()
        return self.process.poll() is not None

    def stop(self) -> None:
        """Kill it and its children, which would keep this process from exiting."""
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()

    def end(self) -> bytes:
        """The file that it has written, which is removed; the process has ended.

        Raises:
            OSError: There is none, or the compiler has failed; the message is the last line that it said.
        """
        with self.said as said:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        try:
            if self.process.returncode != 0:
                ended = f"it ended with code {self.process.returncode}"
                raise OSError(lines[-1] if lines else ended)
            return regular_file(self.output).read_bytes()
        finally:
            shutil.rmtree(self.output.parent, ignore_errors=True)


def compiler() -> str | None:
    """The C++ compiler of this machine, as torch finds it, or None."""
    wanted = [os.environ.get("CXX", ""), "g++", "clang++"]
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


def compile_command(
    source: str, unfinished: Path, flags: Sequence[str], libraries: Sequence[str] = ()
) -> CompilerProcess:
    """Start the C++ compiler on a source, to make a shared library."""
    found = compiler()
    assert found is not None
    command = [found, "-shared", "-fPIC", *flags, "-x", "c++", "-", *libraries, "-o", str(unfinished)]
    return CompilerProcess.start(command, source, unfinished)


def script_process(path: Path, arguments: Sequence[str], source: str, unfinished: Path) -> CompilerProcess:
    """Start a file of this package, which imports the standard library alone, with a source as its standard input.

    As a file and not as a module: its packages would import torch, which takes seconds. Its folder is not searched.
    """
    return CompilerProcess.start([sys.executable, "-P", str(path), *arguments, str(unfinished)], source, unfinished)


def obstacle(device: str) -> str | None:
    """Why nothing can be compiled for a device here, or None."""
    if device == "cuda":
        if not torch.cuda.is_available():
            return "no CUDA device"
        try:
            library()
        except (NvrtcError, AttributeError) as problem:  # AttributeError: of a version without what is called
            return str(problem)
        return None
    return None if compiler() else "no C++ compiler is on the path"


@dataclass
class KernelCompiler:
    """Compiled kernels that this process has loaded, and compiler processes that are running.

    Attributes:
        loaded: What `CompileJob.load` made.
        fresh: Content of files that this process has compiled, which may be in no cache.
        failed: Names of files that cannot be made or loaded.
        building: The compilers that run, by the name of the file.
        warned: Lines that were printed.
    """

    loaded: dict[CompileJob, Any] = field(default_factory=dict[CompileJob, Any])
    fresh: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failed: set[str] = field(default_factory=set[str])
    building: dict[str, CompilerProcess] = field(default_factory=dict[str, CompilerProcess])
    warned: set[str] = field(default_factory=set[str])
    _folders: dict[Path, PrivateFolder] = field(default_factory=dict[Path, PrivateFolder])

    def __post_init__(self) -> None:
        atexit.register(self._leave)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.building.clear)  # they are the parent's

    def take(self, jobs: Sequence[CompileJob]) -> list[Any]:
        """All of these if all are finished, else none."""
        taken = [self._load(job) for job in jobs]
        return taken if all(held is not None for held in taken) else []

    def known(self, job: CompileJob) -> Any:
        """The finished library, or None. Once it is loaded the file system is not asked again."""
        return self.loaded.get(job) or self._load(job)

    def _load(self, job: CompileJob) -> Any:
        if job not in self.loaded and job.file not in self.failed:
            with self.failing(job, "a compiled kernel cannot be loaded"):
                content = self.fresh.get(job.file) or self._stored(job)
                if content is not None:
                    self.loaded[job] = job.load(content)
        return self.loaded.get(job)

    def has_failed(self, job: CompileJob) -> bool:
        """Whether compiling or loading this has failed."""
        return job.file in self.failed

    @contextlib.contextmanager
    def failing(self, job: CompileJob, what: str) -> Generator[None]:
        """Within this block any error means that there is no such kernel: its optimizer runs eagerly."""
        try:
            yield
        except Exception as problem:  # of a compiler, a loader or a folder: training goes on without a kernel
            self._fails(job, f"{what} ({problem})")

    def _fails(self, job: CompileJob, why: str) -> None:
        self.failed.add(job.file)
        self.loaded.pop(job, None)
        if job.wanted:
            self.tell(f"{why}; {EAGERLY}")

    def order(self, jobs: Sequence[CompileJob]) -> None:
        """Start compiling these in background processes, unless that has begun or cannot be done."""
        for job in jobs:
            if job.file in self.failed or job.file in self.building or self._load(job) is not None:
                continue
            with self.failing(job, "a kernel cannot be made"):
                if (why := obstacle(job.device)) is None:
                    self.building[job.file] = _started(job)
                else:
                    self._fails(job, why)

    def collect(self, jobs: Sequence[CompileJob], wait: bool = False, required: bool = False) -> None:
        """Collect the results of compiler processes that have ended, or with `wait` of all.

        Raises:
            RuleError: With `required`, when a kernel could not be made.
        """
        for job in jobs:
            running = self.building.get(job.file)
            if running is not None and running.has_ended(wait):
                with self.failing(job, "compiling a kernel failed"):
                    self._end(job.file)
        if required and any(job.wanted and self.has_failed(job) for job in jobs):
            raise RuleError('runner="compiled" is not available here; runner="auto" takes the next best')

    def _end(self, file: str) -> None:
        """Take over the file of a compiler that has ended, and keep it for later processes.

        Raises:
            OSError: The compiler has failed.
        """
        content = self.fresh[file] = self.building.pop(file).end()
        try:
            self._folder(make=True).write(file, content)
        except OSError as problem:
            self.tell(f"compiled kernels are kept for this process alone ({_described(problem)})")

    def _folder(self, make: bool = False) -> PrivateFolder:
        path = cache_root() / "kernels"
        if path not in self._folders:
            self._folders[path] = PrivateFolder(path, make)
        return self._folders[path]

    def _stored(self, job: CompileJob) -> bytes | None:
        """The entry of a file in the cache; a cache that cannot be read, or belongs to others, has nothing."""
        try:
            return self._folder().read(job.file)
        except OSError:
            return None

    def _leave(self) -> None:
        """At exit: keep finished files and stop compilers that still run."""
        for file, running in list(self.building.items()):
            with contextlib.suppress(Exception):  # the process ends; nothing depends on it
                if running.process.poll() is None:
                    running.stop()
                self._end(file)

    def tell(self, line: str) -> None:
        """Warn once."""
        if line not in self.warned:
            self.warned.add(line)
            warn(f"descend: {line}")


def _started(job: CompileJob) -> CompilerProcess:
    folder = Path(tempfile.mkdtemp(prefix="descend-kernel-"))
    try:
        PrivateFolder(folder, make=False).close()  # what is written there will be executed
        return job.start(folder / job.file)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _described(problem: OSError) -> str:
    place = f"{problem.filename}: " if problem.filename else ""
    return f"{place}{problem.strerror or problem}"


@dataclass
class CompilePolicy:
    """Decides when an optimizer starts compiling: once the run has lasted `PATIENCE_SECONDS`."""

    began: float | None = None
    checked: float = 0.0

    def lasts(self) -> bool:
        """Whether the run has gone on for `PATIENCE_SECONDS`."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        return now - self.began > PATIENCE_SECONDS

    def is_due(self) -> bool:
        """Whether it is time to check again for finished kernels; not at each step, to spare the file system."""
        now = time.monotonic()
        if now - self.checked < 0.25:
            return False
        self.checked = now
        return True
