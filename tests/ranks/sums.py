"""What a step of two ranks does beside its passes: part of two_ranks.py."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import torch
from ranks.cases import SGD, data, network
from torch import distributed, nn

import descend
from descend.runtime.shared_memory import SharedAllReduce

COLLECTIVES = ("all_reduce", "all_gather", "broadcast")
SHARED = "in shared memory"
counts = {"waited for": 0, **dict.fromkeys(COLLECTIVES, 0), SHARED: 0}


class Begun:
    """A collective under way. It counts as waited for where no other is begun before the wait for it."""

    last = None

    def __init__(self, work):
        self.work, Begun.last = work, self

    def is_completed(self):
        return self.work.is_completed()

    def wait(self, *timeout):
        counts["waited for"] += Begun.last is self
        return self.work.wait(*timeout)


def counted(name):
    plain = getattr(distributed, name)

    def call(*args, **kwargs):
        counts[name] += 1
        work = plain(*args, **kwargs)
        if kwargs.get("async_op", False):
            return Begun(work)
        counts["waited for"] += 1
        Begun.last = None
        return work

    return call


def shared(sums, tensor, plain=SharedAllReduce.__call__):
    counts[SHARED] += 1
    plain(sums, tensor)


class Counts(descend.Callback):
    """How many there were in each step but the first, and which gradients were divided in it."""

    def __init__(self):
        self.before, self.steps = dict(counts), []

    def after_step(self, step):
        self.steps.append({name: count - self.before[name] for name, count in counts.items()})
        self.before = dict(counts)


class Divided(torch.overrides.TorchFunctionMode):
    """Counts the divisions of gradients in their places."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.Tensor.div_
        return function(*args, **(kwargs or {}))


def wide():
    """320 kB of weights."""
    return nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 1000), nn.Linear(1000, 3)).double()


def found(ignored, module):
    watch, divided = Counts(), Divided()
    with divided:
        descend.fit(
            module,
            nn.CrossEntropyLoss(),
            data(20, ignored),
            batch_size=4,
            optimizer=SGD,
            stop=descend.Epochs(1),
            shuffle=False,
            callbacks=[watch],
        )
    return {"steps": watch.steps[1:], "divisions": divided.count}


def counted_steps():
    """What the steps of three runs did, in the process group that there is or in one of each run."""
    with ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(mock.patch.object(distributed, name, counted(name)))
        stack.enter_context(mock.patch.object(SharedAllReduce, "__call__", shared))
        return {
            "all count": found((), network()),
            "one is ignored": found((9,), network()),
            "large weights": found((), wide()),
        }
