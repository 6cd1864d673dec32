"""Starts one script on several ranks of this machine, as a launcher would, and gathers what each of them left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent


@dataclass
class Ended:
    """How one rank ended: exit code (negative for a signal), what it printed, and the JSON it left."""

    code: int
    out: str
    err: str
    left: object


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def surroundings(rank: int, ranks: int, port: int, folder: Path, **more: str) -> dict[str, str]:
    """What torchrun sets, and where the rank leaves its results."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "LEFT": str(folder / f"rank{rank}.json")}
    fixed["PYTHONFAULTHANDLER"] = "1"
    return {**os.environ, **{key: str(value) for key, value in own.items()}, **fixed, **more}


def begin(
    ranks: int, script: str, folder: Path, *arguments: str, missing: tuple[int, ...] = (), **more: str
) -> list[subprocess.Popen[str]]:
    """Start `tests/ranks/SCRIPT` on so many ranks, but for those that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(TESTS / "ranks" / script), *arguments]
    port = free_port()
    return [
        subprocess.Popen(
            command,
            env=surroundings(rank, ranks, port, folder, **more),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
        if rank not in missing
    ]


def end(processes: list[subprocess.Popen[str]], folder: Path, seconds: float = 250.0) -> list[Ended]:
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


def start(ranks: int, script: str, folder: Path, *arguments: str, **more: str) -> list[Ended]:
    """Start a script on several ranks and wait for them."""
    return end(begin(ranks, script, folder, *arguments, **more), folder)


def leave(value: object) -> None:
    """Called by a rank: leave a value for the test."""
    Path(os.environ["LEFT"]).write_text(json.dumps(value))
