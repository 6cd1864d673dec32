"""This machine and this process, on each system: processors, memory, devices, signals, and threads at the end.

From page-locked memory of the host, copies to a GPU do not wait. The system may refuse it: containers, virtual machines
and limits of a user have less of it than memory. Ordinary memory serves as well, and only more slowly.

The numbers of an update are in float64, which some devices do not have, such as Apple's GPUs (MPS). What is one number
for a tensor then lies on the host; torch takes such a number beside tensors of any device.

A thread that returns from torch acquires the global interpreter lock. If the interpreter has shut down meanwhile, that
aborts the process ("terminate called without an active exception", exit code 134), although the run succeeded or had
an exit code of its own. `join_threads_at_exit` waits for the two kinds of threads that may still run:

    gloo's             A collective wakes the waiting thread before the worker thread has released the tensors.
                       `destroy_process_group` avoids most of it; a script that does not call it, or still holds a
                       module that holds the group, must not lose its exit code.
    background ones    Daemon threads of ours that could not be waited for: a read that exceeded its time limit, a
                       checkpoint that was being written at a second Ctrl-C.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import torch
    from torch import Tensor

__all__ = [
    "STOP_SIGNALS",
    "__version__",
    "as_double",
    "cores",
    "for_double",
    "gc_paused",
    "has_double",
    "home",
    "join_threads_at_exit",
    "memory_bytes",
    "number",
    "page_locked",
    "page_locked_copy",
    "signals_blocked",
]

__version__ = "0.1.0"

# SIGUSR1 does not exist everywhere.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

_GLOO = "pt_gloo_runloop"  # torch's name for these threads
_OURS = "descend-"
_TASKS = Path("/proc/self/task")
_INTERVAL_SECONDS = 0.01  # the interpreter lock is free meanwhile; twice the switch interval
_LIMIT_SECONDS = 5.0  # for a busy host; a thread in a collective that never completes sleeps, and is not waited for


def cores() -> int:
    """Number of processors that this process may use; where the system does not say, all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine; the largest integer where the system does not say, as Windows by these means."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def has_double(device: torch.device) -> bool:
    """Whether tensors on a device may be in float64."""
    return device.type in ("cpu", "cuda", "meta") or _takes_double(device)


@cache
def _takes_double(device: torch.device) -> bool:
    import torch

    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def for_double(x: Tensor) -> Tensor:
    """A tensor where float64 can be computed: itself, or a copy on the host."""
    return x if has_double(x.device) else x.cpu()


def as_double(x: Tensor) -> Tensor:
    """A tensor in float64, on its device or on the host."""
    return for_double(x).double()


def home(dtype: torch.dtype, p: Tensor) -> torch.device:
    """The device of an entry of the state of a tensor."""
    import torch

    return p.device if dtype != torch.float64 or has_double(p.device) else torch.device("cpu")


def number(p: Tensor, value: float = 0.0) -> Tensor:
    """One float64 number of the state of a tensor: on its device, or on the host where that has no float64."""
    import torch

    if has_double(p.device):
        return p.new_full((), value, dtype=torch.float64)
    return torch.full((), value, dtype=torch.float64, device="cpu")


_refused: list[str] = []


def page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU with any values, in page-locked memory if there is some."""
    import torch

    return _locked_or(
        lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True),
        lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu"),
    )


def page_locked_copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU in page-locked memory, or the tensor itself where there is none."""
    return _locked_or(tensor.pin_memory, lambda: tensor)


def _locked_or(make: Callable[[], Tensor], instead: Callable[[], Tensor]) -> Tensor:
    if not _refused:
        try:
            return make()
        except RuntimeError as problem:
            _refused.append(str(problem).partition("\n")[0])
            warn(f"descend: there is no page-locked memory ({_refused[0]}); copies to the GPU wait for the host")
    return instead()


@contextmanager
def signals_blocked() -> Generator[None]:
    """Threads and processes started in here never get Ctrl-C, SIGTERM or SIGUSR1, which the parent handles.

    A process that blocked them itself would still get what comes before it does, and in the threads that it has by
    then.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def join_threads_at_exit() -> None:
    """At interpreter exit, wait until no thread of gloo or ours is about to acquire the interpreter lock."""
    atexit.register(_join)


def _join() -> None:
    until, before = time.monotonic() + _LIMIT_SECONDS, _thread_states()
    while before and time.monotonic() < until:
        for thread in _background_threads():
            _raise_exit(thread)
        time.sleep(_INTERVAL_SECONDS)
        now = _thread_states()
        if now == before and all(state == "S" for state, *_ in now.values()):
            return
        before = now


def _background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.daemon and thread.name.startswith(_OURS)]


def _raise_exit(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread as soon as it returns from native code; one that sleeps on does no harm."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _thread_states() -> dict[str, list[str]]:
    """State and context switches by thread; the switches are as before for a thread that slept all the time."""
    ours = {str(thread.native_id) for thread in _background_threads()}
    if not _TASKS.is_dir():  # not Linux: whether they sleep is unknown
        return {name: ["S"] for name in ours | {_GLOO}}
    found: dict[str, list[str]] = {}
    for task in _TASKS.iterdir():
        try:
            if task.name not in ours and (task / "comm").read_text(encoding="utf-8").strip() != _GLOO:
                continue
            lines = (task / "status").read_text(encoding="utf-8").splitlines()
        except OSError:  # it has ended
            continue
        status = dict(line.split(":", 1) for line in lines)
        found[task.name] = [
            status["State"].split()[0],
            status["voluntary_ctxt_switches"],
            status["nonvoluntary_ctxt_switches"],
        ]
    return found


@contextmanager
def gc_paused() -> Generator[None]:
    """Pause the collector of reference cycles while objects are made that will all stay.

    It would walk through them again and again and find nothing: with 100,000 layers that is half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
