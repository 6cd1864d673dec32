"""Callbacks see the whole gradient, where one asks for it, and the record is the one that `after_step` gets."""

from dataclasses import dataclass, field

import pytest
import torch
from toys import Regression, data, run_of

from descend.train.callback import Callback
from descend.train.objective import Ratio, Totals
from descend.train.transforms.base import Gradients
from descend.train.transforms.usual import AfterBackward


@dataclass
class Seeing(Callback):
    """Notes the objective and the gradient at the moment."""

    seen: list = field(default_factory=list)

    def after_backward(self, step):
        self.seen.append((float(step.objective), step.run.module.bias.grad.tolist()))


@dataclass
class Later(Callback):
    """Wants the step once it is over, and nothing before."""

    def after_step(self, step):
        pass


def called(callbacks):
    run = run_of(Regression(), data(), callbacks=callbacks)
    for p in run.parameters.values():
        p.grad = torch.full_like(p, 3.0)
    batch = next(iter(run.data["train"].epoch(0)))
    gradients = Gradients(run, batch, Ratio(torch.tensor(6.0), 4.0), Totals(), 4.0, divisor=7.0)
    assert run.transforms.one(AfterBackward)(gradients) is None
    return run, gradients


def test_the_gradient_and_the_mean_loss_are_there():
    callback = Seeing()
    run, _ = called((callback,))
    assert callback.seen == [(1.5, [3.0])]
    assert run.state.signal_divisor == 7.0


@pytest.mark.parametrize(("callbacks", "made"), [((), False), ((Later(),), True), ((Seeing(),), True)])
def test_the_record_is_made_where_a_callback_wants_it_now_or_after_the_step(callbacks, made):
    """To make it takes time in every step."""
    _, gradients = called(callbacks)
    assert ("view" in gradients.__dict__) is made
