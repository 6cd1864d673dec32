"""What callbacks see of a run, and the calls at its beginning and its end."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from toys import Regression, data, run_of

from descend.data import Batch
from descend.train import Callback, Mode
from descend.train.events import announced
from descend.train.objective import Ratio


def test_the_view_is_of_the_moment_and_that_of_steps_of_the_epoch():
    run = run_of(Regression(), data(batch_size=4), data(samples=3, ignored=()))
    assert run.views.of_epoch.step == 0
    run.state.training.step, run.state.training.epoch = 5, 2
    assert (run.views.of_run().step, run.views.of_run().passes) == (5, 2)
    assert run.views.of_epoch.step == 0
    run.views.begin_epoch()
    assert run.views.of_epoch.step == 5
    view = run.views.of_run("because")
    assert (view.name, view.reason, view.module, view.optimizer) == (
        "model0",
        "because",
        run.task.module,
        run.optimizer,
    )
    assert view.steps_per_epoch == {Mode.TRAIN: 3, Mode.VALIDATION: 1}
    assert view.batch_sizes == {Mode.TRAIN: (4, 2), Mode.VALIDATION: (3, 3)}
    assert view.control is run.control


def test_save_asks_the_store_of_the_run():
    run, asked = run_of(Regression(), data()), []
    run.store.save = lambda *given, **more: asked.append((given, more))
    run.views.of_run().save("request", final=True)
    assert asked == [((run, "request"), {"final": True})]


def test_a_step_is_numbered_from_one_and_has_its_objective():
    run = run_of(Regression(), data())
    run.state.training.step, run.state.training.epoch = 4, 1
    batch = Batch({}, np.arange(2), 1, 0, 2, False)
    step = run.views.of_step(batch, Ratio(torch.tensor(6.0), 4.0))
    assert (step.step, step.epoch, step.batch, step.loss, step.mode) == (5, 1, batch, 1.5, Mode.TRAIN)
    assert step.run is run.views.of_epoch
    assert np.isnan(run.views.of_step(batch).loss)


class Recorder(Callback):
    def __init__(self, calls, name, fails=()):
        self.calls, self.label, self.fails = calls, name, fails

    def before_run(self, run):
        self._note("before_run", run)

    def after_run(self, run):
        self._note("after_run", run)

    def _note(self, hook, run):
        self.calls.append((hook, self.label, run.reason))
        if hook in self.fails:
            raise ValueError(f"{hook} of {self.label}")


def run_with(*fails):
    calls = []
    watching = [Recorder(calls, name, failing) for name, failing in zip("ab", fails, strict=True)]
    run = run_of(Regression(), data(), callbacks=watching)
    run.state.end = "the end"
    return run, calls


BEGUN = [("before_run", "a", None), ("before_run", "b", None)]
ENDED = [("after_run", "a", "the end"), ("after_run", "b", "the end")]


def test_the_calls_surround_the_run_and_each_has_its_context():
    run, calls = run_with((), ())

    @contextmanager
    def within():
        calls.append("in")
        yield
        calls.append("out")

    with announced(run, within):
        calls.append("run")
    assert calls == ["in", *BEGUN, "out", "run", "in", *ENDED, "out"]


def failing_run(run):
    with announced(run):
        raise KeyError("in the run")


def test_an_error_of_the_run_is_raised_and_those_at_the_end_are_printed():
    run, calls = run_with((), ("after_run",))
    said = []
    run.say = said.append
    with pytest.raises(KeyError, match="in the run"):
        failing_run(run)
    assert calls == [*BEGUN, *ENDED]
    assert said == ["after_run, called because of another error, raised ValueError: after_run of b"]


def test_an_error_at_the_beginning_keeps_the_run_from_taking_place():
    run, calls = run_with(("before_run",), ())
    with pytest.raises(ValueError, match="before_run of a"), announced(run):
        calls.append("run")
    assert calls == [BEGUN[0], *ENDED]


def test_of_several_errors_at_the_end_the_first_is_raised_and_all_callbacks_are_called():
    run, calls = run_with(("after_run",), ("after_run",))
    said = []
    run.say = said.append
    with pytest.raises(ValueError, match="after_run of a"), announced(run):
        pass
    assert calls == [*BEGUN, *ENDED]
    assert said == ["after_run, called because of another error, raised ValueError: after_run of b"]
