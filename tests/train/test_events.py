"""The order of a run is the one that `descend/train/events.py` draws."""

import pytest
import torch
from run_builder import Parts, execute
from toys import Regression, data, run_of

from descend.errors import NumericalError
from descend.train import BatchedIterativeOptimizer, Callback, Event, Mode, Steps
from descend.train.loop import train


class Ear(Callback):
    def __init__(self):
        self.heard = []


for _event in Event:

    def _hear(self, view, name=_event.value):
        mode = getattr(view, "mode", None)
        self.heard.append(name if mode in (None, Mode.TRAIN) else f"{name} {mode}")

    setattr(Ear, _event.value, _hear)


def work(*callbacks, epochs):
    task = Regression()
    sizes = {Mode.TRAIN: 4, Mode.VALIDATION: 3, Mode.TEST: 4}
    modes = {mode: data(samples=4, ignored=(), batch_size=size) for mode, size in sizes.items()}
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1)
    algorithm = BatchedIterativeOptimizer(epoch_count=epochs)
    return Parts("toy", task, optimizer, modes, algorithm, 1, callbacks, micro_batch_size=2)


def evaluation(mode, steps):
    around = [f"before_evaluation_step {mode}", f"after_evaluation_step {mode}"]
    return [f"before_evaluation {mode}", *around * steps, f"after_evaluation {mode}"]


@pytest.mark.parametrize("epochs", [0, 2])
def test_the_whole_order(epochs):
    ear = Ear()
    execute(work(ear, epochs=epochs), None, keep_files=False)
    step = ["before_step", "after_part", "after_part", "after_backward", "after_step"]
    epoch = ["before_epoch", *step, *evaluation("validation", 2), "after_epoch"]
    only_evaluated = [] if epochs else evaluation("validation", 2)
    end = ["after_training", *only_evaluated, *evaluation("test", 1), "after_run"]
    assert ear.heard == ["after_setup", "before_run", *epoch * epochs, *end]


def test_the_end_is_heard_after_an_error():
    class Fail(Callback):
        def after_step(self, step):
            raise NumericalError("enough")

    ear = Ear()
    with pytest.raises(NumericalError, match="enough"):
        execute(work(ear, Fail(), epochs=1), None, keep_files=False)
    assert ear.heard[-1] == "after_run"


def test_a_pass_is_complete_or_not_and_the_counter_says_so():
    class Count(Callback):
        def __init__(self):
            self.seen = []

        def after_epoch(self, epoch):
            self.seen.append((epoch.epoch, epoch.complete, epoch.finished))

    count = Count()
    train(run_of(Regression(), data(batch_size=4), callbacks=(count,)), Steps(4))
    assert count.seen == [(0, True, 1), (1, False, 1)]
