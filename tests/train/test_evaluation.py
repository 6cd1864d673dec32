"""An evaluation: sums over every sample whatever the sizes, what it leaves as it was, and which calls it makes."""

import numpy as np
import pytest
import torch
from toys import Regression, data, run_of

import descend.optim
from descend.errors import Stopped
from descend.train import Callback, Mode
from descend.train.evaluation import averaged, evaluate


def expected(task, feed):
    whole = feed.reader.read(np.arange(len(feed.reader)))
    known = ~np.isnan(whole["y"][:, 0])
    w, b = (p.detach().numpy() for p in task.module.parameters())
    error = (whole["x"] @ w.T + b - whole["y"])[known]
    return {"objective": np.mean(error**2), "absolute": np.mean(np.abs(error))}


@pytest.mark.parametrize(("batch_size", "micro_batch_size"), [(10, 10), (3, 2), (4, 1)])
def test_each_sample_counts_once_whatever_the_sizes(batch_size, micro_batch_size):
    task, feed = Regression(decay=0.5), data(batch_size=batch_size)
    run = run_of(task, data(), feed, micro_batch_size=micro_batch_size)
    found = evaluate(run, Mode.VALIDATION)
    reference = expected(task, feed)
    reference["objective"] += 0.5 * float(task.module.weight.detach().square().sum())
    assert found == pytest.approx(reference, rel=1e-12)


def test_the_mode_of_the_module_the_random_state_and_gradients_are_left_as_they_were():
    class Drawing(Regression):
        def losses(self, micro_batch):
            assert not self.module.training
            assert not torch.is_grad_enabled()
            torch.rand(3)
            return super().losses(micro_batch)

    run = run_of(Drawing(), data(), data(batch_size=4))
    for training in (True, False):
        run.task.module.train(training)
        before = torch.get_rng_state()
        evaluate(run, Mode.VALIDATION)
        assert run.task.module.training is training
        assert torch.equal(before, torch.get_rng_state())


def test_parts_in_another_mode_than_the_module_stay_in_it():
    run = run_of(Regression(), data(), data(batch_size=4))
    run.task.module.train()
    run.task.module.add_module("frozen", torch.nn.BatchNorm1d(3).eval())
    evaluate(run, Mode.VALIDATION)
    assert [part.training for part in run.task.module.modules()] == [True, False]


def test_the_mode_is_restored_after_an_error():
    class Broken(Regression):
        def losses(self, micro_batch):
            raise ZeroDivisionError

    run = run_of(Broken(), data(), data())
    run.task.module.train()
    with pytest.raises(ZeroDivisionError):
        evaluate(run, Mode.VALIDATION)
    assert run.task.module.training


def test_contexts_count_mini_batches_and_that_of_training_stays():
    run = run_of(Regression(), data(batch_size=3), data(batch_size=4))
    evaluate(run, Mode.VALIDATION)
    evaluate(run, Mode.VALIDATION)
    context = run.state.contexts[Mode.VALIDATION]
    assert (context.step, context.samples, context.epoch) == (6, 20, 2)
    evaluate(run, Mode.TRAIN)
    context = run.state.contexts[Mode.TRAIN]
    assert (context.step, context.samples, context.epoch) == (0, 0, 0)


class Watch(Callback):
    def __init__(self):
        self.calls, self.numbers = [], []

    def before_evaluation(self, evaluation):
        self.calls.append(("begin", evaluation.mode, evaluation.samples))

    def before_evaluation_step(self, step):
        self.calls.append("before")
        self.numbers.append((step.step, step.mode, step.batch.size))

    def after_evaluation_step(self, step):
        self.calls.append("after")

    def after_evaluation(self, evaluation):
        self.calls.append(("end", evaluation.mode, evaluation.samples))
        self.last = evaluation


def test_calls_come_in_order_and_the_row_is_kept_before_the_last():
    watch = Watch()
    run = run_of(Regression(), data(), data(batch_size=6), callbacks=[watch])
    values = evaluate(run, Mode.VALIDATION)
    mode = Mode.VALIDATION
    steps = ["before", "after"] * 2
    assert watch.calls == [("begin", mode, (0, 10)), *steps, ("end", mode, (10, 10))]
    evaluate(run, Mode.VALIDATION)
    assert watch.numbers == [(1, mode, 6), (2, mode, 4), (3, mode, 6), (4, mode, 4)]
    assert watch.last.values == values
    row = run.state.history[0]
    assert row["mode"] == "validation"
    assert row["samples"] == 10
    assert {name: row[name] for name in values} == values
    assert run.state.values["validation/objective"] == values["objective"]


def test_external_metrics_come_with_the_others():
    class Scored(Regression):
        def external_metrics(self, directory):
            return {"score": 3.0}

    assert evaluate(run_of(Scored(), data(), data()), Mode.VALIDATION)["score"] == 3.0


def test_a_signal_ends_it_without_a_row():
    run = run_of(Regression(), data(), data(batch_size=2), stop_requested=lambda: "SIGTERM")
    with pytest.raises(Stopped):
        evaluate(run, Mode.VALIDATION)
    assert run.state.history == []
    assert run.state.contexts[Mode.VALIDATION].step == 0


def test_parameters_are_averaged_only_within_for_rules_that_do_so():
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    plain = torch.optim.SGD([p], lr=0.1)
    with averaged(plain):
        assert p.tolist() == [1.0, 1.0]
    q = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    rule = descend.optim.ScheduleFreeSGD([q], lr=0.5)
    for _ in range(3):
        q.grad = q.detach().clone()
        rule.step()
    trained = q.detach().clone()
    with averaged(rule):
        assert not torch.equal(q, trained)
    assert torch.equal(q, trained)
