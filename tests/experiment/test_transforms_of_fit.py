"""`fit(transforms=...)`: where they stand, and what becomes of their state and of what they make."""

import functools
import math

import pytest
import torch

import descend
from descend.errors import ConfigurationError, NumericalError


class Scale(descend.GradientTransform):
    """Multiplies each gradient, and remembers how often."""

    def __init__(self, factor=1.0):
        self.factor, self.calls = factor, 0

    def setup(self, run):
        self.run = run

    def __call__(self, gradients):
        self.calls += 1
        for p in self.run.parameters.values():
            p.grad.mul_(self.factor if self.factor is not None else self.calls)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict.get("calls", 0)


def trained(steps=3, **options):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 1, bias=False).double()
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(32, n, generator=generator, dtype=torch.float64) for n in (4, 1)]
    settings = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 8, "stop": descend.Steps(steps)}
    result = descend.fit(module, "mse", tuple(data), verbose=False, **(settings | options))
    return module.weight.detach().clone(), result


def test_they_act_in_order_on_the_whole_gradient():
    faster = trained(optimizer=functools.partial(torch.optim.SGD, lr=0.6))[0]
    for parts in (None, 3):
        factors = [Scale(2.0), Scale(3.0)]
        torch.testing.assert_close(trained(transforms=factors, micro_batch_size=parts)[0], faster, rtol=1e-12, atol=0)
        assert [one.calls for one in factors] == [3, 3]


def test_they_stand_before_clipping():
    moved = trained(transforms=[Scale(1e6)], clip_global_norm=1e-3)[0] - trained(steps=0)[0]
    assert 0 < float(moved.norm()) <= 3 * 0.1 * 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_they_make_is_checked_too(bad):
    with pytest.raises(NumericalError, match="step 1: the gradient of 'weight' is not finite"):
        trained(transforms=[Scale(bad)])
    weight, result = trained(transforms=[Scale(bad)], on_nonfinite="skip", stop=descend.Epochs(1))
    assert torch.equal(weight, trained(steps=0)[0])
    assert result.history[0]["skipped_steps"] == 4


def test_one_may_withhold_an_update():
    class Every(descend.GradientTransform):
        calls = 0

        def __call__(self, gradients):
            self.calls += 1
            return descend.Withheld("an odd one") if self.calls % 2 else None

    result = trained(transforms=[Every()], stop=descend.Epochs(1))[1]
    assert (result.steps, result.history[0]["skipped_steps"]) == (2, 2)


def test_a_resumed_run_has_their_state_and_the_same_bits(tmp_path):
    whole = trained(6, transforms=[Scale(None), Scale(0.5)])[0]
    own = {"run_dir": tmp_path / "run", "resume": True}
    trained(2, transforms=[Scale(None), Scale(0.5)], **own)
    again = [Scale(None), Scale(0.5)]
    assert torch.equal(trained(6, transforms=again, **own)[0], whole)
    assert [one.calls for one in again] == [6, 6]


def test_several_trainers_have_copies():
    own = Scale(0.5)
    algorithm = descend.LTFB(
        local_algo=descend.BatchedIterativeOptimizer(),
        metalearning=descend.RandomPairwiseExchange(
            {"objective": descend.RandomPairwiseExchange.MetricStrategy.LOWER_IS_BETTER}
        ),
        metalearning_steps=1,
    )
    held_out = torch.randn(8, 4).double(), torch.randn(8, 1).double()
    trained(2, transforms=[own], algorithm=algorithm, trainers=3, tournament=held_out)
    assert own.calls == 4


@pytest.mark.parametrize("wrong", [Scale, lambda g: g, "clip", torch.nn.utils.clip_grad_norm_])
def test_something_else_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"must be instances of descend\.GradientTransform, got "):
        trained(transforms=[wrong])


def test_the_wrong_words_are_reported_together():
    with pytest.raises(ConfigurationError) as caught:
        trained(transforms=["clip"], on_nonfinite="stp", clip_norm=-1.0)
    assert len(caught.value.problems) == 3
