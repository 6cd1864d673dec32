"""Single things that may go wrong or come to an end on several ranks. As a script: the name of one."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from ranks.cases import data, fit
from ranks.start import leave

import descend
from descend.errors import StorageError
from descend.runtime import checkpoint_manager as archive

# For ranks that are no forks: torch's optimizers import its compiler in their first step, which takes over a second.
SGD = descend.SGD(learn_rate=0.1, momentum=0.9)


class Slow(descend.Callback):
    """Each rank has a length of step of its own."""

    def before_step(self, step):
        time.sleep(0.02 * (1 + descend.distributed.rank()))


class Fails(descend.Callback):
    """Kills the second rank in step 5, once."""

    def before_step(self, step):
        mark = Path("killed")
        if step.step == 5 and descend.distributed.rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Raises(descend.Callback):
    """An error on this rank alone."""

    def before_step(self, step):
        raise ValueError("raised on purpose")


class Waits(descend.Callback):
    """Says that it has begun, and takes its time."""

    def before_step(self, step):
        Path("begun").touch()
        time.sleep(0.1)


def seconds():
    result = fit(batch_size=2, stop=descend.Seconds(3), callbacks=[Slow()])
    return {"steps": result.steps, "reason": result.reason}


def poisoned():
    x, y = data()
    x[7] = float("nan")
    fit(some=(x, y), batch_size=10, shuffle=False, run_dir="run")


def unsaved(every):
    def broken(*arguments, **settings):
        raise StorageError("the disk is full")

    archive.RETRY_SECONDS = ()
    if descend.distributed.rank() == 0:
        archive.save_checkpoint = broken
    callbacks = [descend.Checkpoint(every_steps=1)] if every else []
    fit(batch_size=5, stop=descend.Epochs(2), callbacks=callbacks, run_dir="run")


def different():
    fit(batch_size=5 + descend.distributed.rank())


def restarted():
    result = fit(
        some=data(40),
        optimizer=SGD,
        batch_size=5,
        stop=descend.Epochs(2),
        callbacks=[Fails(), descend.Checkpoint(every_steps=2)],
        run_dir="run",
        resume=True,
    )
    if descend.distributed.rank() == 0:
        Path("weights").write_text(repr([p.tolist() for p in result.weights.values()]))


def endless():
    settings = {"callbacks": [Waits()], "run_dir": "run", "resume": True}
    fit(optimizer=SGD, batch_size=5, stop=descend.Epochs(10_000), **settings)


def unmet():
    Path(f"here{descend.distributed.rank()}").touch()
    while len(list(Path().glob("here*"))) < descend.distributed.ranks() - 1:  # they begin to wait at the same time
        time.sleep(0.05)
    module = sys.modules[descend.runtime.process_group.__module__]  # the room offers a function of this name
    module._RENDEZVOUS_SECONDS = 4
    fit()


def torn():
    """One rank fails at the first attempt, and another one stands still at the second, while connections are made."""
    attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    real = torch.distributed.init_process_group

    def make(*arguments, **settings):
        if (attempt, rank) == (1, 1):
            os.kill(os.getpid(), signal.SIGSTOP)
        real(*arguments, **settings)

    torch.distributed.init_process_group = make
    fit(optimizer=SGD, batch_size=5, callbacks=[Raises()] if (attempt, rank) == (0, 1) else [])
    Path(f"attempt{attempt}-rank{rank}").touch()


TRIALS = {
    "torn": torn,
    "unmet": unmet,
    "seconds": seconds,
    "poisoned": poisoned,
    "unsaved at the end": lambda: unsaved(False),
    "unsaved": lambda: unsaved(True),
    "different": different,
    "restarted": restarted,
    "endless": endless,
}


if __name__ == "__main__":
    warnings.simplefilter("default")
    torch.set_num_threads(1)

    def main() -> None:
        found = TRIALS[sys.argv[1]]()
        if "LEFT" in os.environ:
            leave(found)

    descend.main(main)
