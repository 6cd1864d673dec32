"""Counts the files, functions and calls of runs, from the door to the end: python tools/run_paths.py [PATH]

| path | run |
|---|---|
| fit | `descend.fit` of a small network with torch's AdamW, data in memory, three epochs with validation |
| fit_descend | the same with `descend.optim.AdamW` |
| run | `descend run examples/lenet_digits.prototext`, one epoch |
| study | `descend study run` of `examples/studies/digits.toml` with four trials of two searches, in one process |

Files of the package whose functions ran count, each once; what runs while a module is imported does not, nor do class
bodies. `calls per step` is the difference of two runs of `fit` that differ by twenty steps. Each path runs in a process
of its own, since a function that was called once may be cached. Prints JSON.

Exit codes: 0 done, 1 a run failed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = str(ROOT / "descend") + os.sep
STEPS = 20


@dataclass
class Calls:
    """Calls of functions of the package, by file and function.

    Attributes:
        counts: Calls by (file, first line).
    """

    counts: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    @property
    def files(self) -> int:
        """How many files have functions that ran."""
        return len({file for file, _ in self.counts})

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call; see `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if not _imports(frame.f_back):
            self.counts[code.co_filename, code.co_firstlineno] += 1

    @contextlib.contextmanager
    def counting(self) -> Any:
        """Count the calls of all threads that begin within."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]


def _imports(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported above this frame."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def _fit(steps: int, own: bool, epochs: int = 1) -> Calls:
    import torch
    from torch import nn

    import descend
    from descend.optim.compiler.cache import obstacle

    runner = "blocks" if obstacle("cpu") else "compiled"  # not "auto", which asks the clock

    torch.manual_seed(0)
    x, y = torch.randn(8 * steps, 16), torch.randint(4, (8 * steps,))
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    adamw: Any = functools.partial(descend.optim.AdamW, runner=runner) if own else torch.optim.AdamW
    valid: Any = {"valid": (x[:64], y[:64])} if epochs > 1 else {}
    calls = Calls()
    with calls.counting():
        descend.fit(
            module,
            "cross_entropy",
            (x, y),
            optimizer=functools.partial(adamw, lr=1e-3),
            batch_size=8,
            stop=descend.Epochs(epochs),
            **valid,
        )
    return calls


def _calls_per_step(own: bool) -> int:
    _fit(STEPS, own)  # what is called once only
    few, many = (sum(_fit(steps, own).counts.values()) for steps in (STEPS, 2 * STEPS))
    return round((many - few) / STEPS)


def fit() -> dict[str, int]:
    """`fit` with torch's AdamW."""
    return {"files": _fit(STEPS, own=False, epochs=3).files, "calls_per_step": _calls_per_step(own=False)}


def fit_descend() -> dict[str, int]:
    """`fit` with our AdamW."""
    return {"files": _fit(STEPS, own=True, epochs=3).files, "calls_per_step": _calls_per_step(own=True)}


def _command(arguments: list[str]) -> dict[str, int]:
    from descend.__main__ import app

    calls = Calls()
    with calls.counting():
        app(arguments, standalone_mode=False)
    return {"files": calls.files}


def run() -> dict[str, int]:
    """An experiment from its text."""
    text = (ROOT / "examples" / "lenet_digits.prototext").read_text().replace("num_epochs: 20", "num_epochs: 1")
    Path("lenet.prototext").write_text(text)
    return _command(["run", "lenet.prototext", "--run-dir", "out"])


def study() -> dict[str, int]:
    """A study from its file."""
    source = ROOT / "examples" / "studies"
    text = (source / "digits.toml").read_text()
    for old, new in (("steps = [60]", "steps = [10]"), ("trials = 16", "trials = 4"), ("searches = 3", "searches = 2")):
        text = text.replace(old, new)
    Path("digits.toml").write_text(text.replace("confirmation_seeds = 10", "confirmation_seeds = 2"))
    Path("digits.py").write_text((source / "digits.py").read_text())
    return _command(["study", "run", "digits.toml", "out", "--executor", "auto"])


PATHS: dict[str, Callable[[], dict[str, int]]] = {"fit": fit, "fit_descend": fit_descend, "run": run, "study": study}


def measured(name: str) -> dict[str, int]:
    """The counts of a path, from a process of its own.

    Raises:
        RuntimeError: the run failed; the message has the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), name]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the path {name} failed: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run one path here, or each in a process of its own."""
    if len(sys.argv) > 1:
        with contextlib.redirect_stdout(io.StringIO()):
            found = PATHS[sys.argv[1]]()
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    try:
        sys.stdout.write(json.dumps({name: measured(name) for name in PATHS}) + "\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
