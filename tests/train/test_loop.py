"""The loop against updates worked out by hand with torch."""

import numpy as np
import pytest
import torch
from toys import Regression, data, run_of

import descend.optim
from descend.errors import DataError, Stopped
from descend.runtime import Communicator
from descend.train import Callback, Epochs, Mode, Steps
from descend.train.evaluation import evaluate
from descend.train.loop import train
from descend.train.micro_batch import split_into_micro_batches
from descend.train.objective import Losses, Ratio
from descend.train.strategies.base import Strategy


def arrays(run, mode):
    reader = run.data[mode].reader
    whole = reader.read(np.arange(len(reader)))
    return whole["x"], whole["y"]


def trained(micro_batch_size, decay=0.0, epochs=3, batch_size=10):
    task = Regression(decay)
    run = run_of(task, data(batch_size=batch_size), micro_batch_size=micro_batch_size)
    train(run, Epochs(epochs))
    return task.module.weight.detach().clone(), run


@pytest.mark.parametrize("micro_batch_size", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_micro_batches_give_the_update_of_the_whole_batch(micro_batch_size, decay):
    whole, run = trained(None, decay)
    cut, cut_run = trained(micro_batch_size, decay)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=0)
    assert cut_run.state.history[-1]["objective"] == pytest.approx(run.state.history[-1]["objective"], rel=1e-12)


def test_an_update_is_the_gradient_of_the_mean_over_what_counts():
    """One step against the closed form: ∇w mean over known targets of (xᵀw − y)²."""
    task, batches = Regression(), data()
    w = task.module.weight.detach().clone()
    whole = batches.reader.read(np.arange(10))
    known = ~np.isnan(whole["y"][:, 0])
    x, y = torch.tensor(whole["x"][known]), torch.tensor(whole["y"][known])
    gradient = 2 * ((x @ w.T - y) * x).mean(0, keepdim=True)
    train(run_of(task, batches), Steps(1))
    torch.testing.assert_close(task.module.weight.detach(), w - 0.1 * gradient, rtol=1e-12, atol=1e-14)


def test_a_batch_in_which_nothing_counts_changes_nothing():
    task = Regression()
    before = task.module.weight.detach().clone()
    train(run_of(task, data(ignored=range(10))), Steps(1))
    torch.testing.assert_close(task.module.weight.detach(), before, rtol=0, atol=0)


def test_the_last_batch_is_partial_and_counts_by_its_own_size():
    seen: list[int] = []

    class Sizes(Callback):
        def after_step(self, step):
            seen.append(len(step.batch.ids))

    run = run_of(Regression(), data(batch_size=4), callbacks=(Sizes(),))
    train(run, Epochs(2))
    assert seen == [4, 4, 2, 4, 4, 2]
    context = run.state.contexts[Mode.TRAIN]
    assert (context.step, context.epoch, context.position, context.samples) == (6, 2, 0, 20)


def test_an_epoch_s_objective_is_the_mean_over_its_samples_and_not_over_its_batches():
    task = Regression()
    run = run_of(task, data(ignored=(0,), batch_size=4), optimizer=torch.optim.SGD(task.module.parameters(), lr=0.0))
    train(run, Epochs(1))
    x, y = torch.tensor(arrays(run, Mode.TRAIN)[0][1:]), torch.tensor(arrays(run, Mode.TRAIN)[1][1:])
    error = task.module(x) - y
    assert run.state.history[0]["objective"] == pytest.approx(float(error.square().mean().detach()), rel=1e-12)
    assert run.state.history[0]["absolute"] == pytest.approx(float(error.abs().mean().detach()), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
def test_evaluation_covers_every_sample_once(batch_size):
    task = Regression(decay=0.5)
    run = run_of(task, data(), validation=data(ignored=(), samples=21, batch_size=batch_size))
    values = evaluate(run, Mode.VALIDATION)
    x, y = (torch.tensor(array) for array in arrays(run, Mode.VALIDATION))
    error = task.module(x) - y
    penalty = 0.5 * task.module.weight.square().sum()
    assert values["objective"] == pytest.approx(float((error.square().mean() + penalty).detach()), rel=1e-12)
    assert run.state.history[-1]["samples"] == 21


def test_zero_epochs_train_nothing():
    run = run_of(Regression(), data())
    assert "0 of 0 epochs" in train(run, Epochs(0))
    assert run.state.history == []


def test_a_limit_on_steps_ends_inside_an_epoch_and_the_next_call_goes_on_from_there():
    run = run_of(Regression(), data(batch_size=3))
    assert train(run, Steps(3)) == "applied 3 of 3 updates"
    assert (run.state.contexts[Mode.TRAIN].epoch, run.state.contexts[Mode.TRAIN].position) == (0, 3)
    train(run, Steps(1))
    assert (run.state.contexts[Mode.TRAIN].epoch, run.state.contexts[Mode.TRAIN].position) == (1, 0)
    train(run, Steps(5))
    assert (run.state.contexts[Mode.TRAIN].epoch, run.state.contexts[Mode.TRAIN].position) == (2, 1)


def test_a_callback_ends_the_run_inside_an_epoch_where_the_criterion_decides_between_epochs_alone():
    asked: list[int] = []

    class Whole(Epochs):
        ends_within_epoch = False

        def reason(self, at):
            asked.append(at.step)
            return super().reason(at)

    class Enough(Callback):
        def after_step(self, step):
            if step.step == 4:
                step.run.control.stop("seen enough")

    run = run_of(Regression(), data(batch_size=4), callbacks=(Enough(),))
    assert train(run, Whole(9)) == "seen enough"
    assert run.state.step == 4
    assert sorted(set(asked)) == [0, 3]  # at the ends of epochs of 3 steps


def test_stopping_in_parts_gives_the_same_weights_as_going_through():
    whole, _ = trained(None, epochs=3, batch_size=3)
    task = Regression()
    run = run_of(task, data(batch_size=3))
    for _ in range(12):
        train(run, Steps(1))
    torch.testing.assert_close(task.module.weight.detach(), whole, rtol=0, atol=0)


def test_a_signal_ends_the_run_between_two_steps_and_says_where():
    asked = iter([None, None, "SIGTERM"])
    run = run_of(Regression(), data(batch_size=2), stop_requested=lambda: next(asked))
    with pytest.raises(Stopped, match=r"SIGTERM after step 3, in epoch 1 \(step 3"):
        train(run, Epochs(5))
    assert run.state.contexts[Mode.TRAIN].step == 3


def test_events_come_in_the_order_that_events_py_draws():
    heard: list[str] = []

    class Ear(Callback):
        before_epoch = lambda self, view: heard.append("before_epoch")  # noqa: E731
        before_step = lambda self, view: heard.append("before_step")  # noqa: E731
        after_backward = lambda self, view: heard.append(f"after_backward {len(view.gradients)}")  # noqa: E731
        after_step = lambda self, view: heard.append(f"after_step {view.step}")  # noqa: E731
        before_evaluation = lambda self, view: heard.append("before_evaluation")  # noqa: E731
        after_evaluation = lambda self, view: heard.append(f"after_evaluation {view.mode}")  # noqa: E731
        after_epoch = lambda self, view: heard.append(f"after_epoch {view.epoch}")  # noqa: E731

    train(run_of(Regression(), data(), validation=data(), callbacks=(Ear(),)), Epochs(1))
    assert heard == [
        "before_epoch",
        "before_step",
        "after_backward 2",
        "after_step 1",
        "before_evaluation",
        "after_evaluation validation",
        "after_epoch 0",
    ]


def test_an_evaluation_sees_the_averaged_weights():
    """A schedule-free run validates at the average, and trains on from where it was."""
    task = Regression()
    optimizer = descend.optim.ScheduleFreeSGD(task.module.named_parameters(), lr=0.1)
    running = run_of(task, data(), data(), optimizer=optimizer)
    train(running, Steps(4))
    trained = task.module.weight.detach().clone()
    values = evaluate(running, Mode.VALIDATION)
    assert torch.equal(task.module.weight, trained)
    (micro_batch,) = split_into_micro_batches(next(iter(data().epoch(0))), Communicator(), None)
    with torch.no_grad(), optimizer.averaged():
        total = task.losses(micro_batch).objective
    assert values["objective"] == pytest.approx(float(total.numerator / total.denominator), rel=1e-12)
    with torch.no_grad():
        total = task.losses(micro_batch).objective
    assert values["objective"] != pytest.approx(float(total.numerator / total.denominator), rel=1e-3)


def test_views_of_an_epoch_count_its_own_samples_and_mini_batches():
    seen = []

    class Views(Callback):
        def before_epoch(self, view):
            seen.append(("before", view.epoch, view.step, view.samples, view.position))

        def after_epoch(self, view):
            seen.append(("after", view.epoch, view.step, view.samples, view.position, view.complete))

    run = run_of(Regression(), data(batch_size=4), callbacks=(Views(),))
    train(run, Steps(5))
    assert not run.state.epoch_progress.complete
    train(run, Steps(1))
    assert seen == [
        ("before", 0, 0, (0, 10), 0),
        ("after", 0, 3, (10, 10), 3, True),
        ("before", 1, 3, (0, 10), 0),
        ("after", 1, 5, (8, 10), 2, False),
        ("before", 1, 5, (8, 10), 2),
        ("after", 1, 6, (10, 10), 3, True),
    ]


def test_a_checkpoint_knows_whether_the_epoch_is_being_reported():
    """A run that is killed during its validation continues with the validation; after it, with the next epoch."""
    seen = []

    class Looks(Callback):
        def after_step(self, step):
            seen.append(("step", run.state.epoch_progress.reporting, run.state.epoch_progress.reported))

        def before_evaluation(self, view):
            seen.append(("evaluation", run.state.epoch_progress.reporting, run.state.epoch_progress.reported))

    run = run_of(Regression(), data(batch_size=5), data(), callbacks=(Looks(),))
    train(run, Steps(1))
    assert seen == [("step", False, False), ("evaluation", True, False)]
    assert run.state.epoch_progress.reported
    seen.clear()
    train(run, Steps(1))
    assert seen == [("step", False, False), ("evaluation", True, False)]
    assert run.state.epoch_progress is None


def test_ranks_are_synchronized_where_an_epoch_begins():
    heard = []

    class Hears(Strategy):
        def synchronize(self, at):
            heard.append(at)

    run = run_of(Regression(), data(batch_size=4))
    run.strategy = Hears()
    run.strategy.setup(run)
    train(run, Epochs(2))
    assert heard == ["the beginning of epoch 1, step 0", "the beginning of epoch 2, step 3"]


def test_the_time_of_each_step_is_counted_once(monkeypatch):
    """By a clock that advances 2 seconds in the first step, 3 in the second, ..., and 100 before each epoch."""
    times = []

    class Clock(Callback):
        def before_epoch(self, view):
            clock[0] += 100.0

        def after_step(self, step):
            clock[0] += 1.0 + step.step

        def after_epoch(self, view):
            times.append((view.seconds, view.step_seconds))

    clock = [0.0]
    monkeypatch.setattr(Communicator, "now", lambda self: clock[0])
    run = run_of(Regression(), data(batch_size=5), callbacks=(Clock(),))
    train(run, Epochs(2))
    assert times == [(5.0, (2.0, 3.0)), (9.0, (4.0, 5.0))]
    assert run.state.seconds == 14.0
    assert [row["seconds"] for row in run.state.history] == [5.0, 9.0]


def test_rows_of_an_epoch_that_ended_part_way_are_replaced_when_it_is_complete():
    run = run_of(Regression(), data(batch_size=4), data())
    train(run, Steps(2))
    assert [(row["mode"], row["samples"]) for row in run.state.history] == [("train", 8), ("validation", 10)]
    train(run, Steps(1))
    assert [(row["mode"], row["samples"]) for row in run.state.history] == [("train", 10), ("validation", 10)]
    assert "skipped_steps" not in run.state.history[0]


def test_skipped_steps_are_counted_in_the_row_of_their_epoch():
    from descend.train.transforms.usual import usual_transforms

    class Spoilt(Regression):
        def losses(self, micro_batch):
            (top, bottom), metrics = super().losses(micro_batch)
            return Losses(Ratio(top * nan if 0 in micro_batch.batch.ids else top, bottom), metrics)

    nan = float("nan")
    run = run_of(Spoilt(), data(batch_size=4), transforms=usual_transforms("skip"))
    train(run, Epochs(1))
    assert (run.state.history[0]["skipped_steps"], run.state.step) == (1, 2)


def test_the_module_is_trained_in_training_mode_and_evaluated_in_the_other():
    modes = []

    class Looks(Callback):
        def after_step(self, step):
            modes.append(step.module.training)

        def after_evaluation_step(self, step):
            modes.append(step.module.training)

    run = run_of(Regression(), data(), data(), callbacks=(Looks(),))
    run.task.module.eval()
    train(run, Epochs(2))
    assert modes == [True, False, True, False]


def test_a_part_that_a_callback_puts_into_evaluation_mode_stays_for_the_epoch():
    class Frozen(Callback):
        def before_epoch(self, epoch):
            if epoch.epoch == 0:
                epoch.run.module.part.eval()

        def after_step(self, step):
            if step.step == 1:
                step.run.control.evaluate(Mode.VALIDATION)
            seen.append(step.run.module.part.training)

    seen = []
    task = Regression()
    task.module.add_module("part", torch.nn.BatchNorm1d(3))
    train(run_of(task, data(batch_size=5), data(), callbacks=[Frozen()]), Epochs(2))
    assert seen == [False, False, True, True]


def test_the_view_of_the_run_is_of_the_epoch():
    steps = []

    class Looks(Callback):
        def before_epoch(self, view):
            steps.append((view.run.step, view.run.passes))

    train(run_of(Regression(), data(batch_size=4), callbacks=(Looks(),)), Epochs(3))
    assert steps == [(0, 0), (3, 1), (6, 2)]


def test_data_that_end_before_the_last_mini_batch_are_an_error():
    class Short(Strategy):
        def batches(self):
            yield from list(super().batches())[:2]

    run = run_of(Regression(), data(batch_size=4))
    run.strategy = Short()
    run.strategy.setup(run)
    with pytest.raises(DataError, match="epoch 1 ended after 8 samples, before its last mini-batch"):
        train(run, Epochs(1))
