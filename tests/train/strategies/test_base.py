"""The strategy of a single device, and what a description may leave out."""

import pytest
import torch
from toys import Regression, data, run_of

from descend.runtime import Communicator
from descend.train.objective import Ratio
from descend.train.precision import Precision
from descend.train.step import accumulate
from descend.train.strategies.base import (
    Strategy,
    StrategyDescription,
    divide,
    divisor_of,
    start_backward,
    summed,
)


@pytest.mark.parametrize(
    ("given", "expected"), [(0.0, 1.0), (3.0, 3.0), (torch.tensor(0.0), 1.0), (torch.tensor(2), 2)]
)
def test_nothing_that_counts_divides_by_one(given, expected):
    assert divisor_of(given) == expected


def test_ratios_are_summed_in_float64_and_gradients_divided_in_place():
    assert summed([Ratio(torch.tensor(0.1), 2.0), Ratio(torch.tensor(0.2), torch.tensor(3))]).tolist() == pytest.approx(
        [0.3, 5.0], rel=1e-7
    )
    p, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    p.grad = gradient = torch.tensor([2.0, 4.0])
    divide({"p": p, "frozen": frozen}, 2.0)
    assert gradient.tolist() == [1.0, 2.0]


def test_the_state_of_another_strategy_is_left_alone():
    class Kept(Strategy):
        def own_state(self):
            return {"a": 1}

        def load_own_state(self, state):
            self.loaded = state

    kept = Kept()
    kept.load_state_dict(Strategy().state_dict())
    kept.load_state_dict({"strategy": "Other", "state": {"a": 2}})
    assert not hasattr(kept, "loaded")
    kept.load_state_dict(kept.state_dict())
    assert kept.loaded == {"a": 1}


def test_a_description_without_a_strategy_of_its_own_has_the_usual_one():
    assert type(run_of(Regression(), data(), strategy=StrategyDescription()).strategy) is Strategy


def begun(**settings):
    run = run_of(Regression(), data(batch_size=10), **settings)
    return run, next(iter(run.data["train"].epoch(0)))


def mean_gradient(run, batch):
    """∇w of the mean over the known targets of (xᵀw − y)², in closed form; the mean itself; how many are known."""
    x, y = (torch.as_tensor(batch.fields[name]) for name in "xy")
    known = ~y[:, 0].isnan()
    error = (x @ run.task.module.weight.detach().T - y)[known]
    return 2 * (error * x[known]).mean(0, keepdim=True), float(error.square().mean()), int(known.sum())


@pytest.mark.parametrize("size", [None, 4])
def test_a_gradient_is_divided_once_whether_the_mini_batch_is_split_or_not(size):
    run, batch = begun(micro_batch_size=size)
    expected, mean, count = mean_gradient(run, batch)
    for _ in range(2):  # the second time as the first
        gradients = accumulate(run, batch)
        torch.testing.assert_close(run.task.module.weight.grad, expected, rtol=1e-12, atol=1e-14)
        assert float(gradients.objective.numerator / gradients.objective.denominator) == pytest.approx(mean, rel=1e-12)
        assert not torch.as_tensor(gradients.objective.numerator).requires_grad
        assert float(gradients.count) == count
        assert gradients.batch is batch


def test_a_gradient_begins_with_the_loss_scale():
    class Scaled:
        def scale(self, start):
            return 8 * start

    w = torch.ones(2, requires_grad=True)
    for divisor in (4.0, torch.tensor(4.0)):
        w.grad = None
        start_backward(Scaled(), (3 * w).sum(), divisor)
        assert w.grad.tolist() == [6.0, 6.0]
    start_backward(Scaled(), torch.ones(()), 4.0)  # every parameter has been frozen
    assert w.grad.tolist() == [6.0, 6.0]


def test_training_splits_by_units_and_counts_kept_samples_and_evaluation_does_neither():
    run, batch = begun(micro_batch_size=3)
    run.task.micro_batch_unit, run.state.samples_kept = 5, 20
    assert [(one.count, one.kept) for one in run.strategy.micro_batches(batch)] == [(5, 20), (5, 20)]
    evaluated = run.strategy.micro_batches(batch, training=False)
    assert [(one.count, one.kept) for one in evaluated] == [(3, 0), (3, 0), (3, 0), (1, 0)]


def test_a_single_device_has_everything_to_itself():
    run, batch = begun()
    strategy = run.strategy
    assert (strategy.is_sharded, strategy.resets_with_optimizer, strategy.can_repeat_step) == (False, False, True)
    assert strategy.serve is None
    assert strategy.world is run.communicator
    assert strategy.union(["a", "b"]) == ["a", "b"]
    assert strategy.gradients(batch, lambda: "what is computed") == "what is computed"
    assert strategy.local_parameters().keys() == {"weight", "bias"}
    accumulate(run, batch)
    parameters = {"weight": run.task.module.weight}
    (norm,), total = strategy.gradient_norms(parameters)
    assert total == norm
    assert float(norm) == pytest.approx(float(run.task.module.weight.grad.square().sum().sqrt()), rel=1e-12)
    before, gradient = run.task.module.weight.detach().clone(), run.task.module.weight.grad.clone()
    strategy.optimizer_step(batch)
    torch.testing.assert_close(run.task.module.weight.detach(), before - 0.1 * gradient, rtol=1e-12, atol=1e-14)


def test_a_sum_over_no_micro_batches_is_nothing():
    assert summed([]).tolist() == [0.0, 0.0]


def test_gradients_that_are_divided_in_the_backward_pass_are_not_divided_again():
    run, batch = begun()
    gradients = accumulate(run, batch)
    assert gradients.divisor == 1.0
    run.micro_batch_size.samples = 4
    assert float(accumulate(run, batch).divisor) == gradients.count  # what remains of layers' gradients


def test_the_loss_scale_is_taken_out_before_gradients_are_divided():
    class Scaled(Precision):
        def scale(self, start):
            return 8 * start

        def unscale(self, optimizer):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad.div_(8)

    for size in (None, 4):
        run, batch = begun(micro_batch_size=size)
        run.precision = Scaled()
        expected, _, _ = mean_gradient(run, batch)
        accumulate(run, batch)
        torch.testing.assert_close(run.task.module.weight.grad, expected, rtol=1e-12, atol=1e-14)


def test_an_epoch_goes_on_where_it_stands():
    run, _ = begun()
    run.data["train"].batch_size = 3
    run.state.training.epoch, run.state.training.position, run.state.training.taken = 1, 2, 6
    assert [(b.epoch, b.step, len(b.ids)) for b in run.strategy.batches()] == [(1, 2, 3), (1, 3, 1)]


def test_samples_are_named_where_a_gradient_is_not_finite():
    run, batch = begun()
    [line] = run.strategy.diagnose(batch)
    assert line.startswith("epoch 1, mini-batch 1")


def test_what_surrounds_an_evaluation_and_a_run_does_nothing():
    run, _ = begun()
    before = run.task.module.weight.detach().clone()
    with run.strategy.running(), run.strategy.evaluating():
        run.strategy.synchronize("here")
    run.strategy.end_training()
    run.strategy.restored()
    assert torch.equal(run.task.module.weight, before)
    assert run.strategy.own_state() == run.strategy.state_dict() == {}


def test_a_signal_is_known_to_a_single_device_at_once():
    run, _ = begun(stop_requested=lambda: "SIGINT")
    assert run.strategy.stop_requested() == "SIGINT"
    assert begun()[0].strategy.stop_requested() is None


def test_a_description_is_named_as_it_was_written():
    class Named(StrategyDescription):
        def __repr__(self):
            return "Named()"

    description = Named()
    assert description.written == "strategy=Named()"
    given = description.given_by("compression='sign'")
    assert given.written == "compression='sign'"
    assert description.written == "strategy=Named()"
    assert description.problems(begun()[0], Communicator(), 1) == []
    assert description.communicator("ranks") == "ranks"
    assert description.create(Communicator()) is None


class Elsewhere(torch.Tensor):
    """Values on a device that is not to be waited for."""

    is_cpu = False

    def item(self):
        raise AssertionError("waited for the device")


def test_a_denominator_on_a_device_is_not_waited_for():
    found = [divisor_of(torch.tensor(number).as_subclass(Elsewhere)) for number in (0.0, 1.0, 3.0)]
    assert [one.as_subclass(torch.Tensor).tolist() for one in found] == [1.0, 1.0, 3.0]


def test_a_backward_pass_begins_with_one_number_whatever_the_divisor_is():
    class Seen(Precision):
        def scale(self, start):
            starts.append(start)
            return start

    starts = []
    w = torch.ones(2, requires_grad=True)
    start_backward(Seen(), w.sum(), torch.tensor(4.0))
    start_backward(Seen(), w.sum(), 4.0)
    start_backward(Seen(), w.sum(), torch.tensor(4.0).as_subclass(Elsewhere))
    assert [(float(one.as_subclass(torch.Tensor)), one.shape) for one in starts] == [(0.25, ())] * 3


@pytest.mark.parametrize(
    ("error", "noted"),
    [(torch.OutOfMemoryError("CUDA out of memory"), True), (MemoryError(), True), (RuntimeError("else"), False)],
)
def test_memory_that_runs_out_in_an_update_is_an_error_that_says_what_to_do(error, noted, monkeypatch):
    run = run_of(Regression(), data())

    def fail():
        raise error

    monkeypatch.setattr(run.optimizer, "step", fail)
    with pytest.raises(type(error)) as raised:
        run.strategy.optimizer_step(None)
    notes = getattr(raised.value, "__notes__", [])
    assert bool(notes) is noted
    if noted:
        assert notes[0].startswith("memory ran out in the update of 0.0 MB of weights")
        assert "shard_optimizer" not in notes[0]  # there is one rank
