import sys

import pytest
import torch

from descend.train.precision import Precision


def optimizer(kind=torch.optim.SGD, **options):
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    p.grad = torch.tensor([0.5, -1.0])
    return kind([p], lr=0.1, **options), p


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_a_step_is_that_of_the_optimizer(kind):
    (ours, p), (own, q) = optimizer(kind), optimizer(kind)
    for _ in range(3):
        Precision().optimizer_step(ours)
        own.step()
    assert torch.equal(p, q)


def test_hooks_of_an_optimizer_are_called():
    heard: list[str] = []
    made, _ = optimizer()
    made.register_step_pre_hook(lambda *given: heard.append("before"))
    made.register_step_post_hook(lambda *given: heard.append("after"))
    Precision().optimizer_step(made)
    assert heard == ["before", "after"]


def test_hooks_of_all_optimizers_are_called():
    heard: list[str] = []
    made, _ = optimizer()
    register = vars(sys.modules[torch.optim.Optimizer.__module__])["register_optimizer_step_post_hook"]
    hook = register(lambda *given: heard.append("after"))
    Precision().optimizer_step(made)
    hook.remove()
    Precision().optimizer_step(made)
    assert heard == ["after"]


def test_a_profiler_sees_the_step():
    made, _ = optimizer()
    with torch.profiler.profile() as profile:
        Precision().optimizer_step(made)
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


def test_a_step_that_was_put_in_the_place_of_the_optimizer_s_is_taken():
    made, _ = optimizer()
    schedule = torch.optim.lr_scheduler.StepLR(made, 1)
    Precision().optimizer_step(made)
    schedule.step()  # warns where it has not seen the step of the optimizer
    steps: list[int] = []
    made.step = lambda: steps.append(1)
    Precision().optimizer_step(made)
    assert steps == [1]
