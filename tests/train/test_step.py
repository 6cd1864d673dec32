"""One step with a four-line model: what it restores, skips, repeats and counts, whatever the strategy."""

import math

import pytest
import torch
from toys import Regression, data, run_of

from descend.errors import NumericalError
from descend.runtime import seed_step
from descend.train import Callback, Mode
from descend.train.objective import Losses, Ratio, Task
from descend.train.state import EpochProgress
from descend.train.step import accumulate, train_step
from descend.train.strategies.base import Strategy
from descend.train.transforms.base import GradientTransform, Withheld
from descend.train.transforms.check_finite import CheckFinite


class Counting(Task):
    """Σ w² x with a buffer that counts forward passes; samples above 99 make the loss NaN."""

    def __init__(self):
        self.module = torch.nn.Module()
        self.module.w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.module.register_buffer("passes", torch.zeros(()))

    def losses(self, micro_batch):
        x = micro_batch.fields["x"]
        self.module.passes += 1
        x = torch.where(x > 99, math.nan, x)
        return Losses(Ratio((self.module.w.square() * x).sum(), float(len(x))), {})


class Keep(GradientTransform):
    """Withholds the first mini-batch, and counts how often a gradient was begun."""

    begun = 0

    def begin(self):
        self.begun += 1

    def __call__(self, gradients):
        return Withheld("not yet", skipped=False) if gradients.run.state.samples_kept == 0 else None


def begun(task=None, batch_size=4, **settings):
    task = task or Counting()
    run = run_of(
        task, data(batch_size=batch_size), optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1), **settings
    )
    run.state.epoch_progress = EpochProgress(0, 0)
    return run, list(run.data["train"].epoch(0))


def spoilt(batch):
    batch.fields["x"][0] = 100.0
    return batch


def test_a_step_counts_itself_and_its_samples():
    run, batches = begun()
    for batch in batches:
        train_step(run, batch)
    at = run.state.training
    assert (at.step, at.position, at.samples) == (3, 3, 10)
    assert run.state.epoch_progress.complete
    assert run.communicator.status.steps == 3


def test_a_skipped_step_leaves_parameters_buffers_and_optimizer_as_they_were():
    from descend.train.transforms.usual import usual_transforms

    run, batches = begun(transforms=usual_transforms("skip"))
    train_step(run, batches[0])
    w, passes = run.task.module.w.detach().clone(), run.task.module.passes.clone()
    train_step(run, spoilt(batches[1]))
    assert torch.equal(run.task.module.w, w)
    assert torch.equal(run.task.module.passes, passes)
    assert (run.state.step, run.state.training.position) == (1, 2)
    assert (run.state.epoch_progress.skipped, run.state.skipped_in_a_row) == (1, 1)
    train_step(run, batches[2])
    assert run.state.skipped_in_a_row == 0
    assert not torch.equal(run.task.module.w, w)


def test_a_step_that_ends_the_run_restores_the_buffers():
    run, batches = begun()
    with pytest.raises(NumericalError, match=r"step 1: the gradient of 'w' is not finite"):
        train_step(run, spoilt(batches[0]))
    assert float(run.task.module.passes) == 0.0
    assert torch.equal(run.task.module.w, torch.ones(3, dtype=torch.float64))


def test_an_error_of_a_callback_restores_the_buffers():
    class Fails(Callback):
        def after_backward(self, step):
            raise NumericalError("enough")

    run, batches = begun(callbacks=(Fails(),))
    with pytest.raises(NumericalError, match="enough"):
        train_step(run, batches[0])
    assert float(run.task.module.passes) == 0.0


def test_a_gradient_that_is_kept_for_later_keeps_buffers_and_counts_no_update():
    run, batches = begun()
    run.transforms.insert(Keep(), after=CheckFinite)
    train_step(run, batches[0])
    assert float(run.task.module.passes) == 1.0
    assert (run.state.step, run.state.training.position, run.state.samples_kept) == (0, 1, 4)
    assert run.state.epoch_progress.skipped == 0
    assert torch.equal(run.task.module.w, torch.ones(3, dtype=torch.float64))


def test_the_step_calls_the_strategy_in_order_and_nothing_else():
    heard = []

    class Recorder(Strategy):
        def micro_batches(self, batch, training=True):
            heard.append("micro_batches")
            return super().micro_batches(batch, training)

        def backward(self, objective, micro_batch):
            heard.append(f"backward {micro_batch.index} of {micro_batch.of}")
            return super().backward(objective, micro_batch)

        def reduce(self, batch, ratios, totals):
            heard.append(f"reduce {len(ratios)}")
            return super().reduce(batch, ratios, totals)

        def optimizer_step(self, batch):
            heard.append("optimizer_step")
            super().optimizer_step(batch)

    run, batches = begun(micro_batch_size=3)
    run.strategy = Recorder()
    run.strategy.setup(run)
    train_step(run, batches[0])
    assert heard == ["micro_batches", "backward 0 of 2", "backward 1 of 2", "reduce 2", "optimizer_step"]


def test_a_step_that_runs_out_of_memory_is_repeated_with_smaller_micro_batches_and_clean_buffers():
    class Tight(Counting):
        def losses(self, micro_batch):
            losses = super().losses(micro_batch)
            if micro_batch.count > 2:
                raise MemoryError
            return losses

    run, batches = begun(Tight())
    run.micro_batch_size.samples, run.micro_batch_size.adaptive = None, True
    whole, _ = begun()
    train_step(run, batches[0])
    train_step(whole, batches[0])
    torch.testing.assert_close(run.task.module.w, whole.task.module.w, rtol=1e-12, atol=0)
    assert run.micro_batch_size.samples == 2
    assert float(run.task.module.passes) == 2.0  # the passes of the attempt that failed are taken back


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gradients_do_not_depend_on_how_a_mini_batch_is_split(size):
    run, batches = begun(Regression(decay=0.2), micro_batch_size=size)
    whole, _ = begun(Regression(decay=0.2))
    found, expected = accumulate(run, batches[0]), accumulate(whole, batches[0])
    torch.testing.assert_close(found.value, expected.value.to(found.value.dtype), rtol=1e-12, atol=0)
    for p, q in zip(run.task.module.parameters(), whole.task.module.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-14)


def test_callbacks_see_every_micro_batch_and_then_the_update():
    seen = []

    class Sees(Callback):
        def after_part(self, part):
            seen.append((part.step, part.index, part.parts, part.samples, part.module))

        def after_step(self, step):
            seen.append((step.step, float(step.objective)))

    run, batches = begun(micro_batch_size=3, callbacks=(Sees(),))
    x = torch.as_tensor(batches[0].fields["x"])
    module = run.task.module
    train_step(run, batches[0])
    assert seen == [(1, 0, 2, 3, module), (1, 1, 2, 1, module), (1, pytest.approx(float(x.sum() / 4)))]


def test_the_losses_of_a_step_are_those_of_the_epoch():
    run, batches = begun(micro_batch_size=3)
    w, expected = run.task.module.w.detach().clone(), 0.0
    for batch in batches[:2]:
        expected += float((w.square() * torch.as_tensor(batch.fields["x"])).sum())
        gradients = train_step(run, batch)
        w = run.task.module.w.detach().clone()
        assert gradients.batch is batch
    values = run.state.epoch_progress.totals.over(run.communicator).values({})
    assert values["objective"] == pytest.approx(expected / 8, rel=1e-12)


def test_what_a_module_draws_is_a_function_of_seed_step_and_position():
    """The position counts the samples that are kept of earlier mini-batches, which are of the same step."""

    class Draws(Counting):
        def losses(self, micro_batch):
            drawn.append(torch.rand(()))
            return super().losses(micro_batch)

    def expected(step, position):
        seed_step(17, step, position)
        return torch.rand(())

    drawn = []
    run, batches = begun(Draws(), seed=17)
    run.transforms.insert(Keep(), after=CheckFinite)
    for batch in batches:
        torch.rand(3)  # what others draw changes nothing
        train_step(run, batch)
    assert drawn == [expected(0, 0), expected(0, 4), expected(1, 0)]


def test_transforms_hear_of_every_gradient_that_is_begun():
    run, batches = begun()
    keep = Keep()
    run.transforms.insert(keep, after=CheckFinite)
    for number, batch in enumerate(batches[:2], 1):
        assert train_step(run, batch).batch is batch
        assert keep.begun == number


@pytest.mark.parametrize("withheld", [False, True])
def test_requests_for_activations_end_with_the_step(withheld):
    class Watches(Callback):
        def before_step(self, step):
            step.watch.listen(lambda name, outputs: None)

    run, batches = begun(callbacks=(Watches(),))
    if withheld:
        run.transforms.insert(Keep(), after=CheckFinite)
    train_step(run, batches[0])
    assert run.state.step == (not withheld)
    assert not run.activations.wanted


def test_a_callback_may_put_another_mini_batch_in_its_place():
    class Exchanges(Callback):
        def before_step(self, step):
            run.state.batches[Mode.TRAIN] = batches[1]

    run, batches = begun(callbacks=(Exchanges(),))
    assert train_step(run, batches[0]).batch is batches[1]
