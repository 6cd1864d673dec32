"""Starts one script on several ranks of this machine, and gathers what each of them left."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parent.parent


@dataclass
class Ended:
    """How one rank ended: exit code (negative for a signal), what it printed, and the JSON it left."""

    code: int
    out: str
    err: str
    left: object


def free_port() -> int:
    """One below those that the system gives to connections, and that no other worker of pytest takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    first = 10_000 + 2_000 * worker
    for port in random.SystemRandom().sample(range(first, first + 2_000), 2_000):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def surroundings(rank: int, ranks: int, port: int, folder: Path, **more: str) -> dict[str, str]:
    """What torchrun sets, and where the rank leaves its results."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "LEFT": str(folder / f"rank{rank}.json")}
    fixed["PYTHONFAULTHANDLER"] = "1"
    return {**os.environ, **{key: str(value) for key, value in own.items()}, **fixed, **more}


class _ForkServer:
    """The process that ranks are forked from: see fork_server.py. It ends with this one."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        command = [sys.executable, str(TESTS / "ranks" / "fork_server.py"), str(theirs.fileno())]
        path = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        self._text = b""
        self._codes: dict[int, int] = {}

    def fork(self, script: Path, arguments: tuple[str, ...], environment: dict[str, str], folder: Path) -> Rank:
        out, err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115  # they are closed with the rank
        request = {"script": str(script), "arguments": arguments, "environment": environment, "folder": str(folder)}
        socket.send_fds(self._link, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
        while "began" not in (answer := self._next()):
            pass
        return Rank(self, answer["began"], out, err)

    def _next(self) -> dict[str, int]:
        """The next answer; of an end, also noted."""
        while b"\n" not in self._text:
            received = self._link.recv(1 << 16)
            assert received, "the process that forks ranks has ended"
            self._text += received
        line, _, self._text = self._text.partition(b"\n")
        answer = json.loads(line)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer

    def code(self, process: int, seconds: float) -> int | None:
        """The exit code of a rank once it has ended; None if it is there after so many seconds."""
        until = time.monotonic() + seconds
        while process not in self._codes:
            waiting = max(0.0, until - time.monotonic())
            if not self._text and not select.select([self._link], [], [], waiting)[0]:
                return None
            self._next()
        return self._codes[process]


@dataclass
class Rank:
    """A rank that was forked; what tests use of `subprocess.Popen`."""

    server: _ForkServer
    pid: int
    out: IO[str]
    err: IO[str]
    returncode: int | None = None

    def poll(self) -> int | None:
        self.returncode = self.server.code(self.pid, 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 250.0) -> int:
        self.communicate(timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 250.0) -> tuple[str, str]:
        self.returncode = self.server.code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"rank with process number {self.pid}", timeout)
        with self.out, self.err:
            self.out.seek(0)
            self.err.seek(0)
            return self.out.read(), self.err.read()


@functools.cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def begin(
    ranks: int,
    script: str,
    folder: Path,
    *arguments: str,
    missing: tuple[int, ...] = (),
    fresh: bool = False,
    **more: str,
) -> list[Rank] | list[subprocess.Popen[str]]:
    """Start `tests/ranks/SCRIPT` on so many ranks, but for those that are missing.

    They are forks of a process that has imported torch; `fresh` starts them as a launcher does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    there = {rank: surroundings(rank, ranks, port, folder, **more) for rank in range(ranks) if rank not in missing}
    if not fresh and sys.platform == "linux":  # the server waits by Linux's file descriptors of processes
        return [_fork_server().fork(TESTS / "ranks" / script, arguments, own, folder) for own in there.values()]
    command = [sys.executable, str(TESTS / "ranks" / script), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env=own, cwd=folder, **pipes) for own in there.values()]


def begin_alone(code: str, folder: Path, *arguments: str) -> Rank | subprocess.Popen[str]:
    """Start one process with this code, which knows of no ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if sys.platform == "linux":
        return _fork_server().fork(script, arguments, environment, folder)
    command = [sys.executable, str(script), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=folder, **pipes)


def end(processes: list[Rank] | list[subprocess.Popen[str]], folder: Path, seconds: float = 250.0) -> list[Ended]:
    """Wait for all ranks; where one is still there after `seconds`, all are ended, and say where they stood."""
    ended: list[Ended] = []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for left_over in processes:
                left_over.send_signal(signal.SIGABRT)  # for which Python prints the stacks
                left_over.send_signal(signal.SIGCONT)
            said = [left_over.communicate()[1] for left_over in processes[rank:]]
            raise AssertionError(f"rank {rank} is there after {seconds:g} seconds:\n" + "\n".join(said)) from None
        left = folder / f"rank{rank}.json"
        ended.append(Ended(process.returncode, out, err, json.loads(left.read_text()) if left.is_file() else None))
    return ended


def start(ranks: int, script: str, folder: Path, *arguments: str, fresh: bool = False, **more: str) -> list[Ended]:
    """Start a script on several ranks and wait for them."""
    return end(begin(ranks, script, folder, *arguments, fresh=fresh, **more), folder)


def leave(value: object) -> None:
    """Called by a rank: leave a value for the test."""
    Path(os.environ["LEFT"]).write_text(json.dumps(value))
