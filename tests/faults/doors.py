"""The ways in which a fault can come in, and what must hold whichever it was."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import descend
from descend.errors import DescendError

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(40, 5, generator=DRAW)
Y = torch.randint(0, 3, (40,), generator=DRAW)

MOST_LINES = 8


def net(dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def fit(module=None, loss="cross_entropy", data=(X, Y), **settings):
    """Steps of 10 of the 40 samples, 4 an epoch."""
    given = {"optimizer": SGD, "batch_size": 10, "stop": descend.Steps(6), **settings}
    return descend.fit(net() if module is None else module, loss, data, **given)


def snapshot(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def is_unchanged(module, before):
    return all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def files_of(folder):
    """Every file below a folder with its bytes, but for the log, which has what was shown."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "log.txt")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def fault(call, exit_code, *words):
    """Call it; it must end in the error with this exit code whose short message has all these words."""
    with pytest.raises(DescendError) as caught:
        call()
    said = str(caught.value)
    assert caught.value.exit_code == exit_code, said
    assert all(word in said for word in words), said
    assert len(said.splitlines()) <= MOST_LINES, said
    return said


def in_a_process(text, folder, *arguments, **settings):
    """Run a script in `folder` with this package at hand; returns the ended process."""
    script = folder / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, **settings)


def command_line(folder, *arguments, **settings):
    """`descend ARGUMENTS` in `folder`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "descend", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, **settings)
