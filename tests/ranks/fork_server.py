"""Starts ranks of tests as forks of one process that has imported what they need, which takes longer than most run.

    python fork_server.py FD

FD is a Unix socket. A request is a line of JSON with a script, its arguments, environment and folder, and comes with
two file descriptors, for the rank's output and errors; the answer is the rank's process number, and once it has ended
a second one with its exit code. Libraries and the package are imported here and by no rank; a rank runs its script as
`__main__` and ends as an interpreter does. All ranks of one server share a hash seed, as ranks of a launcher need not;
tests/ranks/test_two_ranks.py and those under torchrun start their ranks as processes of their own.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed

# What a run imports, at once or in its first step; torch's optimizers come with its compiler.
NEEDED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "descend.experiment.fit",
    "descend.experiment.run",
    "descend.study.running.scheduler",
    "descend.zoo",
)


def serve(link: socket.socket) -> dict[str, object] | None:
    """Fork a rank for each request. Returns the request in the fork, and None in the server once no request comes."""
    ranks: dict[int, int] = {}  # by pidfd: the rank's process
    while True:
        ready, _, _ = select.select([link, *ranks], [], [])
        for ended in [one for one in ready if one is not link]:
            process = ranks.pop(ended)
            os.close(ended)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            link.sendall(json.dumps({"ended": process, "code": code}).encode() + b"\n")
        if link not in ready:
            continue
        text, streams, _, _ = socket.recv_fds(link, 1 << 20, 2)
        if not text:
            for process in ranks.values():
                os.kill(process, signal.SIGKILL)
            return None
        process = os.fork()
        if process == 0:
            for kept in ranks:
                os.close(kept)
            link.close()
            for stream, place in zip(streams, (1, 2), strict=True):
                os.dup2(stream, place)
                os.close(stream)
            return json.loads(text)
        for stream in streams:
            os.close(stream)
        ranks[os.pidfd_open(process)] = process
        link.sendall(json.dumps({"began": process}).encode() + b"\n")


def become(request: dict[str, object]) -> None:
    """Take the environment, folder and arguments of a rank."""
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    sys.argv = [request["script"], *request["arguments"]]
    own = [str(Path(request["script"]).parent), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.path[:0] = [folder for folder in own if folder]
    random.seed()
    numpy.random.seed()
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and with them the link
    assert torch.distributed.is_available()
    for name in NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork's collector leaves alone what is here, and with it the memory that forks share
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would not be there after a fork"
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become(given)
        runpy.run_path(given["script"], run_name="__main__")
