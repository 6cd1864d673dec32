"""Calls a function on several ranks, which are forks as all ranks of tests are. As a script: FILE with the call."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ranks.start import begin, end

if TYPE_CHECKING:
    from collections.abc import Callable


def on_ranks(ranks: int, function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What a function of a test module returns on each of so many ranks of one gloo group; it gets the rank first."""
    folder.mkdir(parents=True, exist_ok=True)
    call = folder / "call.pickle"
    call.write_bytes(pickle.dumps((function.__module__, function.__qualname__, arguments)))
    ended = end(begin(ranks, "called.py", folder, str(call)), folder)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    return [pickle.loads((folder / f"returned{rank}").read_bytes()) for rank in range(ranks)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = Path(sys.argv[1])
    module, name, words = pickle.loads(given.read_bytes())
    number = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    found = getattr(importlib.import_module(module), name)(number, *words)
    (given.parent / f"returned{number}").write_bytes(pickle.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
