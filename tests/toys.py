"""A tiny task with a closed form, for tests of training."""

import numpy as np
import torch

from descend.data import ArrayReader, Batches
from descend.experiment.build import build_run
from descend.runtime import Communicator
from descend.train import BatchedIterativeOptimizer, Mode, Steps
from descend.train.objective import Losses, Ratio, Task
from descend.train.run import RunConfig


class Regression(Task):
    """Least squares in which some targets are NaN and do not count."""

    def __init__(self, decay=0.0):
        self.module = torch.nn.Linear(3, 1, dtype=torch.float64)
        torch.nn.init.normal_(self.module.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.zeros_(self.module.bias)
        self.decay = decay

    def losses(self, micro_batch):
        fields = micro_batch.fields
        known = ~fields["y"].isnan()
        error = (self.module(fields["x"]) - fields["y"])[known]
        counted = known.sum()
        return Losses(Ratio(error.square().sum(), counted), {"absolute": Ratio(error.abs().sum(), counted)})

    def penalty(self):
        return self.decay * self.module.weight.square().sum() if self.decay else None


def data(samples=10, ignored=(1, 2, 3, 7), batch_size=10, shuffle=False):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(samples, 3)), draw.normal(size=(samples, 1))
    y[list(ignored)] = np.nan
    return Batches(ArrayReader({"x": x, "y": y}), batch_size, seed=3, shuffle=shuffle)


def run_of(task, batches, validation=None, **settings):
    """A run of `train` alone, without files."""
    modes = {Mode.TRAIN: batches} | ({Mode.VALIDATION: validation} if validation else {})
    optimizer = settings.pop("optimizer", None) or torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    config = RunConfig("model0", settings.pop("seed", 0), BatchedIterativeOptimizer(stop=Steps(10**9)))
    stop, directory = settings.pop("stop_requested", None), settings.pop("directory", None)
    world = settings.pop("communicator", None) or Communicator()
    settings["micro_batch_size"] = settings.get("micro_batch_size") or len(batches.reader)
    run = build_run(config, task=task, optimizer=optimizer, data=modes, world=world, **settings)
    if stop is not None:
        run.stop.listen(stop, lambda waiting: None)
    run.store.directory = directory or run.store.directory
    return run
