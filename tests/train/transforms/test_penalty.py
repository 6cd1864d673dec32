"""A penalty is counted once a step, in the gradient, in the objective and in the sums of the epoch."""

import pytest
import torch
from toys import Regression, data, run_of

from descend.errors import ConfigurationError
from descend.train.objective import Losses, Ratio
from descend.train.step import accumulate


class Detached(Regression):
    """Has an objective that depends on no parameter."""

    def losses(self, micro_batch):
        numerator, denominator = super().losses(micro_batch).objective
        return Losses(Ratio(numerator.detach(), denominator), {})


@pytest.mark.parametrize("size", [2, 4])
def test_the_penalty_is_added_once_however_the_mini_batch_is_split(size):
    with_it, without = Regression(decay=0.3), Regression()
    counted = {"batch_size": 4, "ignored": (1,)}  # three of four
    runs = [run_of(task, data(**counted), micro_batch_size=size) for task in (with_it, without)]
    batch = next(iter(data(**counted).epoch(0)))
    found, plain = (accumulate(run, batch) for run in runs)
    w = with_it.module.weight.detach()
    penalty = float(0.3 * w.square().sum())
    assert float(found.value) == pytest.approx(float(plain.value) + penalty, rel=1e-12)
    assert found.totals.values()["objective"] == pytest.approx(float(plain.value) + penalty, rel=1e-12)
    expected = without.module.weight.grad + 0.6 * w
    torch.testing.assert_close(with_it.module.weight.grad, expected, rtol=1e-12, atol=1e-14)


def test_an_objective_that_depends_on_no_parameter_is_refused_in_the_first_step():
    run = run_of(Detached(), data())
    with pytest.raises(ConfigurationError, match="depends on none of the weights that are trained"):
        accumulate(run, next(iter(run.data["train"].epoch(0))))


def test_a_later_step_may_have_no_gradient():
    run = run_of(Detached(), data())
    run.state.training.step = 1
    accumulate(run, next(iter(run.data["train"].epoch(0))))
