"""Compiled kernels: where they are kept, and how one comes to be without anybody waiting for it.

A kernel is made by torch's compiler, ahead of time and in a process of its own (`engine/build.py`), and kept in the
folder of torch's own compile cache. The training process only loads the finished file, which takes milliseconds and
needs neither the compiler nor its imports.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import operator
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.errors import RuleError
from descend.optim.engine.parts import BLOCK
from descend.optim.engine.stages import Kernel, cut
from descend.optim.engine.text import Text, from_structure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.optim.engine.arena import Arena

__all__ = ["Compiled", "Job", "Workshop", "jobs_of", "obstacle"]

# The sources that decide what a kernel computes and how it is called.
SOURCES = ("arena.py", "blocks.py", "build.py", "kernels.py", "parts.py", "stages.py", "text.py")
KEY = "descend"  # under which a finished kernel holds the key of its job
EAGERLY = "this optimizer runs eagerly, with the same results"
PATIENCE_SECONDS = 2.0  # a run that ends sooner is not worth a compiler


@functools.cache
def digest() -> str:
    """Of `SOURCES`: kernels of other sources are other kernels."""
    here = Path(__file__).parent
    return hashlib.sha256(b"\0".join((here / name).read_bytes() for name in SOURCES)).hexdigest()


@dataclass(frozen=True, eq=False)
class Compiled:
    """A finished kernel and what it may be called with, since a kernel itself looks at nothing and may crash.

    Attributes:
        run: Takes buffers in the order of `Kernel.buffers`, then index, valid and the table of numbers, all in a list
            that it empties; returns sums over blocks.
        dtypes: Of each of them.
        numbers: Rows of the table.
    """

    run: Callable[[list[Tensor]], list[Tensor]]
    dtypes: tuple[torch.dtype, ...]
    numbers: int

    def __call__(self, arguments: list[Tensor]) -> list[Tensor]:
        """Update the buffers in place.

        Raises:
            TypeError: An argument is missing, or of another precision or shape. Nothing has changed.
        """
        if tuple(map(_dtype, arguments)) != self.dtypes:
            raise TypeError(f"a kernel that takes {self.dtypes} was given {[x.dtype for x in arguments]}")
        *buffers, index, valid, table = map(_shape, arguments)
        rows = (index[0], BLOCK)
        if valid != index or table[:-1] != (self.numbers,) or buffers.count(rows) != len(buffers):
            raise TypeError(f"a kernel with {self.numbers} numbers was given {[tuple(x.shape) for x in arguments]}")
        return self.run(arguments)


_dtype = operator.attrgetter("dtype")
_shape = operator.attrgetter("shape")


@dataclass(frozen=True)
class Job:
    """A kernel to be compiled.

    Attributes:
        structure: Of the text.
        kernel: Its number among the kernels of the text.
        dtype: Precision in which it computes, e.g. "float32".
        low: Precision of weights that have a master, or None.
        device: "cpu" or "cuda".
    """

    structure: str
    kernel: int
    dtype: str
    low: str | None
    device: str

    @property
    def key(self) -> str:
        """Says all that the finished kernel depends on."""
        processor = torch.backends.cpu.get_cpu_capability() if self.device == "cpu" else torch.cuda.get_device_name()
        depends = [digest(), torch.__version__, platform.machine(), processor, *asdict(self).values()]
        return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]

    @property
    def path(self) -> Path:
        """Where the finished kernel lies."""
        return folder() / f"{self.key}.pt2"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the buffers, index, valid and the table of numbers."""
        wide, low = getattr(torch, self.dtype), getattr(torch, self.low or self.dtype)
        held = [low if name in ("g", "w") else wide for name in self.cut.buffers]
        return (*held, torch.int32, torch.int32, wide)

    @property
    def cut(self) -> Kernel:
        """The kernel as cut from its text."""
        return cut(_text(self.structure))[self.kernel]


@functools.lru_cache(maxsize=256)
def _text(structure: str) -> Text:
    return from_structure(structure)


def folder() -> Path:
    """Our part of torch's compile cache, which follows TORCHINDUCTOR_CACHE_DIR."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    root = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
    return Path(root) / "descend"


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have put the file there: it holds code that will run."""
    if not hasattr(os, "getuid"):
        return True
    return all(x.stat().st_uid == os.getuid() and not x.stat().st_mode & 0o022 for x in (path.parent, path))


def jobs_of(arena: Arena) -> list[Job]:
    """The kernels that an arena could use."""
    dtype = str(arena.buffers["p"].dtype).removeprefix("torch.")
    low = None if arena.low is None else str(arena.low).removeprefix("torch.")
    device = arena.index.device.type
    return [Job(arena.text.structure, k, dtype, low, device) for k in range(len(cut(arena.text)))]


def obstacle(device: str) -> str | None:
    """Why nothing can be compiled for a device here, or None."""
    if device == "cuda":
        return None if shutil.which("ptxas") or torch.cuda.is_available() else "no CUDA device"
    wanted = [os.environ.get("CXX", ""), "g++", "clang++"]
    return None if any(name and shutil.which(name) for name in wanted) else "no C++ compiler is on the path"


@dataclass
class Workshop:
    """The compiled kernels of this process, and the process that makes more of them."""

    loaded: dict[Path, Compiled] = field(default_factory=dict[Path, Compiled])
    failed: set[Path] = field(default_factory=set[Path])
    building: dict[Path, subprocess.Popen[str]] = field(default_factory=dict[Path, "subprocess.Popen[str]"])
    told: set[str] = field(default_factory=set[str])

    def take(self, jobs: Sequence[Job]) -> list[Compiled]:
        """All these kernels if all are finished, else none."""
        taken = [self._load(job) for job in jobs]
        return [kernel for kernel in taken if kernel is not None] if all(taken) else []

    def _load(self, job: Job) -> Compiled | None:
        path = job.path
        if path not in self.loaded and path not in self.failed and path.exists():
            try:
                if not _is_ours(path):
                    raise PermissionError(f"{path} may have been written by somebody else")
                self.loaded[path] = _load(path, job)
                self.building.pop(path, None)
            except (RuntimeError, OSError) as problem:
                self.failed.add(path)
                self.tell(f"a compiled kernel cannot be loaded ({problem}); {EAGERLY}")
        return self.loaded.get(path)

    def order(self, jobs: Sequence[Job]) -> None:
        """Have these kernels made in a process of their own, unless that has begun or cannot be done."""
        missing = [job for job in jobs if job.path not in self.failed and not job.path.exists()]
        missing = [job for job in missing if job.path not in self.building]
        if not missing:
            return
        why = obstacle(missing[0].device)
        if why is not None:
            self.failed.update(job.path for job in missing)
            self.tell(f"{why}; {EAGERLY}")
            return
        process = _start(missing)
        self.building.update({job.path: process for job in missing})
        atexit.register(_end, process)

    def collect(self, jobs: Sequence[Job], wait: bool = False) -> None:
        """Notice processes that have ended.

        Raises:
            RuleError: With `wait`, when a kernel could not be made.
        """
        for process in {id(p): p for job in jobs if (p := self.building.get(job.path)) is not None}.values():
            if wait or process.poll() is not None:
                self._end(process)
        bad = [job for job in jobs if job.path in self.failed]
        if wait and bad:
            raise RuleError('runner="compiled" cannot be had here; runner="auto" takes the next best')

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Take leave of a process; what it was to make and did not cannot be made."""
        _, said = process.communicate()
        paths = [path for path, builder in self.building.items() if builder is process]
        for path in paths:
            del self.building[path]
        missing = [path for path in paths if not path.exists()]
        self.failed.update(missing)
        if missing:
            last = said.strip().splitlines()[-1:] or ["no message"]
            self.tell(f"compiling a kernel failed ({last[0]}); {EAGERLY}")

    def tell(self, line: str) -> None:
        """Say something once."""
        if line not in self.told:
            self.told.add(line)
            warnings.warn(f"descend: {line}", stacklevel=2)


def _load(path: Path, job: Job) -> Compiled:
    # What torch's public `aoti_load_package` calls; that function would import the compiler for seconds.
    package: Any = torch._C._aoti.AOTIModelPackageLoader  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]  # no stub
    loader = package(str(path), "model", False, 1, -1 if job.device == "cpu" else torch.cuda.current_device())
    if loader.get_metadata().get(KEY) != job.key:
        raise RuntimeError(f"{path} holds another kernel than its name says")
    return Compiled(loader.boxed_run, job.dtypes, len(job.cut.numbers))


def _start(jobs: Sequence[Job]) -> subprocess.Popen[str]:
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    process = subprocess.Popen(
        [sys.executable, "-m", "descend.optim.engine.build"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps([{**asdict(job), "key": job.key, "path": str(job.path)} for job in jobs]))
    process.stdin.close()
    process.stdin = None
    return process


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()


@dataclass
class Schedule:
    """When an arena may have kernels made: once the run has shown that it lasts."""

    began: float | None = None
    looked: float = 0.0

    def lasts(self) -> bool:
        """Whether the run has gone on for `PATIENCE_SECONDS`."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        return now - self.began > PATIENCE_SECONDS

    def may_look(self) -> bool:
        """Whether it is time to ask again for finished kernels; the file system is not asked at each step."""
        now = time.monotonic()
        if now - self.looked < 0.25:
            return False
        self.looked = now
        return True
