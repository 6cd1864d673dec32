"""Data parallelism on ranks that are threads, around least squares: against one rank with the whole mini-batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from thread_ranks import Distributed, on_ranks
from toys import Regression, data

from descend.data import Batch
from descend.errors import DataError
from descend.experiment.build import build_run
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.micro_batch import RemoteOutOfMemory, split_into_micro_batches
from descend.train.objective import Totals
from descend.train.precision import Precision
from descend.train.run import RunConfig
from descend.train.strategies import buckets
from descend.train.strategies.data_parallel import DataParallel, all_gather_names

DRAW = np.random.default_rng(3)
X, Y = DRAW.normal(size=(10, 3)), DRAW.normal(size=(10, 1))
Y[[2, 7, 8]] = np.nan  # targets that do not count


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)


def run_on(communicator, task=None, micro_batch_size=10):
    task = task or Regression()
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1)
    return build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer()),
        task=task,
        optimizer=optimizer,
        data={Mode.TRAIN: data()},
        world=communicator,
        micro_batch_size=micro_batch_size,
    )


def share(communicator, ends=(0, 4, 10), step=0, size=10):
    rows = slice(ends[communicator.rank], ends[communicator.rank + 1])
    ids = np.arange(10)[rows]
    return Batch({"x": X[rows], "y": Y[rows]}, ids, 0, step, size, False, ends[communicator.rank])


def reduced(run, batch):
    """The gradients of a mini-batch, computed as the training step does."""
    strategy, ratios = run.strategy, []
    with strategy.accumulating(batch):
        for micro_batch in strategy.micro_batches(batch):
            ratios.append(strategy.backward(run.task.losses(micro_batch).objective, micro_batch))
    return strategy.reduce(batch, ratios, Totals())


def expected():
    module = Regression().module
    known = torch.from_numpy(~np.isnan(Y))[:, 0]
    loss = (module(torch.from_numpy(X)) - torch.from_numpy(Y))[known].square().mean()
    loss.backward()
    return loss.detach(), [p.grad for p in module.parameters()]


@pytest.mark.parametrize("ends", [(0, 4, 10), (0, 0, 10), (0, 2, 3, 10)])
@pytest.mark.parametrize("micro_batch_size", [10, 2])
def test_the_gradient_is_that_of_one_rank_with_the_whole_mini_batch(ends, micro_batch_size):
    def act(communicator):
        run = run_on(communicator, micro_batch_size=micro_batch_size)
        assert type(run.strategy) is DataParallel
        found = reduced(run, share(communicator, ends))
        return found.objective, [p.grad.clone() for p in run.task.module.parameters()]

    loss, grads = expected()
    for objective, own in on_ranks(len(ends) - 1, act):
        torch.testing.assert_close(torch.as_tensor(objective.numerator / objective.denominator).double(), loss)
        for found, reference in zip(own, grads, strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-14)


def test_the_update_is_the_same_on_all_ranks():
    def act(communicator):
        run = run_on(communicator)
        batch = share(communicator)
        reduced(run, batch)
        run.strategy.optimizer_step(batch)
        return [p.detach().clone() for p in run.task.module.parameters()]

    first, second = on_ranks(2, act)
    _, grads = expected()
    for one, other, before, grad in zip(first, second, Regression().module.parameters(), grads, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, before.detach() - 0.1 * grad, rtol=1e-12, atol=1e-14)


def test_without_early_division_the_gradient_is_the_same(monkeypatch):
    monkeypatch.setattr(DataParallel, "divides_early", False)
    monkeypatch.setattr(DataParallel, "overlaps", False)

    def act(communicator):
        run = run_on(communicator)
        reduced(run, share(communicator))
        return [p.grad.clone() for p in run.task.module.parameters()]

    for own in on_ranks(2, act):
        for found, reference in zip(own, expected()[1], strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-14)


def test_gradients_are_sent_in_the_backward_pass_of_the_last_micro_batch_alone():
    def act(communicator):
        run, batch = run_on(communicator, micro_batch_size=2), share(communicator)
        strategy, sent = run.strategy, []
        with strategy.accumulating(batch):
            for micro_batch in strategy.micro_batches(batch):
                strategy.backward(run.task.losses(micro_batch).objective, micro_batch)
                sent.append(strategy.reducer.sent_bytes)
        strategy.reduce(batch, [run.task.losses(part).objective for part in strategy.micro_batches(batch)], Totals())
        return sent

    assert on_ranks(2, act) == [[0, 8 * 4], [0, 0, 8 * 4]]  # 3 coefficients and a bias in float64


def test_ranks_with_different_mini_batches_are_listed_with_their_places():
    def act(communicator):
        reduced(run_on(communicator), share(communicator, step=communicator.rank))

    with pytest.raises(DataError) as caught:
        on_ranks(2, act)
    rates = "learning rates [0.1]"
    places = [f"epoch 1, mini-batch {rank + 1} of 10 samples, {rates} on rank {rank}" for rank in range(2)]
    assert "; ".join(places) in str(caught.value)


def short_of_memory(adaptive):
    def act(communicator):
        run, batch = run_on(communicator, micro_batch_size="auto" if adaptive else 10), share(communicator)
        strategy = run.strategy
        try:
            with strategy.accumulating(batch):
                if communicator.rank == 1:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                parts = split_into_micro_batches(batch, communicator, 10)
                strategy._watches_last = True
                ratios = [strategy.backward(run.task.losses(part).objective, part) for part in parts]
            strategy.reduce(batch, ratios, Totals())
        except (torch.OutOfMemoryError, RemoteOutOfMemory) as error:
            return type(error).__name__
        return None

    return on_ranks(2, act)


def test_where_memory_runs_out_on_one_rank_the_others_learn_of_it():
    assert short_of_memory(adaptive=True) == ["RemoteOutOfMemory", "OutOfMemoryError"]


def test_steps_that_no_rank_can_leave_name_the_remedy():
    class Lockstep(Regression):
        needs_lockstep = True

    def act(communicator):
        run = run_on(communicator, Lockstep(), "auto")
        assert not run.micro_batch_size.adaptive
        with pytest.raises(torch.OutOfMemoryError) as caught, run.strategy.accumulating(share(communicator)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return caught.value.__notes__

    [[note], _] = on_ranks(2, act)
    assert note.endswith("set micro_batch_size")


class Lockstep(Regression):
    needs_lockstep = True

    def __init__(self):
        super().__init__()
        self.calls = []

    def losses(self, micro_batch):
        self.calls.append(micro_batch.counts)
        return super().losses(micro_batch)


def test_in_lockstep_every_rank_goes_through_the_module_as_often_and_padding_adds_nothing():
    def act(communicator):
        run = run_on(communicator, Lockstep(), 2)
        reduced(run, share(communicator, (0, 1, 10)))
        return run.task.calls, [p.grad.clone() for p in run.task.module.parameters()]

    (first, grads), (second, _) = on_ranks(2, act)
    assert first == [True, False, False, False, False]
    assert second == [True] * 5
    for found, reference in zip(grads, expected()[1], strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-14)


def test_samples_that_are_not_finite_are_named_with_their_rank():
    def act(communicator):
        run, batch = run_on(communicator), share(communicator)
        x = batch.fields["x"].copy()
        if communicator.rank == 1:
            x[1, 0] = np.inf
        batch = replace(batch, fields={"x": x, "y": np.nan_to_num(batch.fields["y"])})
        reduced(run, batch)
        return run.strategy.diagnose(batch)

    line = "rank 1: epoch 1, mini-batch 1: the values of these samples are not finite: sample 5 (field 'x')"
    assert on_ranks(2, act) == [[line]] * 2


def test_finite_gradients_whose_sum_is_not_are_reported_as_such():
    def act(communicator):
        run, batch = run_on(communicator), share(communicator)
        reduced(run, batch)
        return run.strategy.diagnose(batch)

    assert on_ranks(2, act) == [["the gradients of all ranks are finite, and their sum is not"]] * 2


def test_a_signal_that_one_rank_has_seen_ends_all_after_they_have_met():
    def act(communicator):
        run = run_on(communicator)
        if communicator.rank == 1:
            run.stop.listen(lambda: "SIGTERM", lambda waiting: None)
        before = run.strategy.stop_requested()
        run.strategy.synchronize("a place")
        return before, run.strategy.stop_requested()

    assert on_ranks(2, act) == [(None, "SIGTERM")] * 2


def test_names_of_all_ranks_each_once_in_the_order_of_ranks():
    names = [["b", "a"], [], ["c", "b"]]
    assert (
        on_ranks(3, lambda communicator: all_gather_names(names[communicator.rank], communicator))
        == [["b", "a", "c"]] * 3
    )


def test_what_a_rank_needs_to_know_of_the_strategy_is_what_it_says():
    assert (DataParallel.reduces_gradients, DataParallel.divides_early, DataParallel.overlaps) == (True, True, True)
    assert not DataParallel.pads_evaluation
    run, lockstep = on_ranks(1, lambda c: (run_on(c), None))[0][0], on_ranks(2, lambda c: run_on(c, Lockstep()))[0]
    assert run.strategy.can_repeat_step
    assert not lockstep.strategy.can_repeat_step


@pytest.mark.parametrize(("size", "divisor"), [(1, 1.0), (7, 4.0), (8, 8.0), (10, 8.0)])
def test_gradients_are_sent_divided_by_the_largest_power_of_two_within_the_mini_batch(size, divisor):
    def act(communicator):
        run = run_on(communicator)
        with run.strategy.accumulating(share(communicator, size=size)):
            return run.strategy._divided_by

    assert on_ranks(2, act) == [divisor] * 2


def test_without_early_division_they_are_sent_as_they_are(monkeypatch):
    monkeypatch.setattr(DataParallel, "divides_early", False)

    def act(communicator):
        run = run_on(communicator)
        with run.strategy.accumulating(share(communicator)):
            return run.strategy._divided_by

    assert on_ranks(2, act) == [1.0] * 2


def test_the_loss_scale_is_taken_out_of_the_sum():
    class Scaled(Precision):
        def scale(self, start):
            return 8 * start

        def unscale(self, optimizer):
            for p in optimizer.param_groups[0]["params"]:
                p.grad.div_(8)

    def act(communicator):
        run = run_on(communicator)
        run.precision = Scaled()
        reduced(run, share(communicator))
        return [p.grad.clone() for p in run.task.module.parameters()]

    for own in on_ranks(2, act):
        for found, reference in zip(own, expected()[1], strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-14)


def test_buffers_that_change_on_one_rank_alone_are_noticed_by_all():
    class Buffered(Regression):
        def __init__(self, changes):
            super().__init__()
            self.module.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.changes = changes

        def losses(self, micro_batch):
            if self.changes:
                self.module.count.add_(1)
            return super().losses(micro_batch)

    def act(communicator):
        run = run_on(communicator, Buffered(changing and communicator.rank == 1))
        reduced(run, share(communicator))
        return run.strategy._buffers_changed

    for changing in (False, True):
        assert on_ranks(2, act) == [changing] * 2


def test_an_evaluation_of_ranks_in_lockstep_is_not_padded_and_has_no_backward_pass():
    def act(communicator):
        run = run_on(communicator, Lockstep(), 2)
        batch = share(communicator, (0, 1, 10))
        return len(list(run.strategy.micro_batches(batch, training=False))), run.task.calls

    assert on_ranks(2, act) == [(1, []), (5, [])]


def test_padding_has_backward_passes_too_unless_nothing_is_trained():
    class Counted(Lockstep):
        def losses(self, micro_batch):
            found = super().losses(micro_batch)
            if found.objective.numerator.requires_grad:
                found.objective.numerator.register_hook(lambda grad: self.backwards.append(float(grad)))
            return found

    def act(communicator):
        task = Counted()
        task.backwards = []
        task.module.requires_grad_(trained)
        reduced(run_on(communicator, task, 2), share(communicator, (0, 1, 10)))
        return task.backwards

    trained = True
    assert on_ranks(2, act) == [[1.0, 0.0, 0.0, 0.0, 0.0], [1.0] * 5]
    trained = False
    assert on_ranks(2, act) == [[], []]
