"""A published rule is recognized, with its known variants and known mistakes."""

from __future__ import annotations

import pytest
import torch
from faulty_optimizers import LAMB, RULE_CASES, DecaysInsideTheSign, Toy, assert_only_the_broken_one_fails, finding

import descend.optim
from descend.conformance import Verdict, examine


@pytest.mark.parametrize("check", RULE_CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check):
    assert_only_the_broken_one_fails(check)


def test_a_lamb_whose_first_step_is_10_times_too_long_is_reported():
    seen = finding(LAMB, "length of the first step").seen
    assert "4x3: 10" in seen
    assert "10 x as long" in finding(LAMB, "published rule").seen
    assert "first differs at step 1" in finding(LAMB, "published rule").seen


@pytest.mark.parametrize(
    ("build", "args", "words"),
    [
        (torch.optim.Muon, {}, "known variant: iterates in bfloat16"),
        (torch.optim.NAdam, {}, "with single precision somewhere"),
        (torch.optim.SGD, {"momentum": 0.9, "rule": "NAG", "nesterov": True}, "rate outside the momentum buffer"),
        (torch.optim.Adamax, {"eps": 1e-2}, "ε inside the maximum"),
        (DecaysInsideTheSign, {"rule": "SignSGD", "weight_decay": 1.0}, "known variant: decay in the gradient"),
    ],
)
def test_a_known_variant_is_named_and_is_no_failure(build, args, words):
    found = finding(build, "published rule", **args)
    assert found.verdict is Verdict.DEVIATION
    assert words in found.seen


class Moments(Toy):
    """Adam, of which others get one thing wrong."""

    kept = torch.float64
    first, second, coupled, decays = True, True, False, True

    def move(self, p, g, group, i):
        state, decay = self.state[p], group["weight_decay"] * self.decays
        g = g + decay * p if self.coupled else g
        p.mul_(1 - group["lr"] * decay * (not self.coupled))
        state["m"] = (0.9 * state.get("m", 0 * g) + 0.1 * g).to(self.kept)
        state["v"] = (0.999 * state.get("v", 0 * g) + 0.001 * g * g).to(self.kept)
        t = state["t"] = state.get("t", 0) + 1
        m = state["m"].double() / (1 - 0.9**t if self.first else 1)
        v = state["v"].double() / (1 - 0.999**t if self.second else 1)
        p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


class OneAhead(Toy):
    """Adam whose first update counts as its second."""

    betas, ahead, after = (0.9, 0.999), 1, False

    def move(self, p, g, group, i):
        state, (b1, b2) = self.state[p], self.betas
        state["m"] = b1 * state.get("m", 0 * g) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0 * g) + (1 - b2) * g * g
        state["t"] = state.get("t", 0) + 1
        t, decay = state["t"] + self.ahead, group["lr"] * group["weight_decay"]
        moved = group["lr"] * state["m"] / (1 - b1**t) / ((state["v"] / (1 - b2**t)).sqrt() + 1e-8)
        p.copy_((p - moved) * (1 - decay) if self.after else p * (1 - decay) - moved)


class SwapsBetas(OneAhead):
    betas, ahead = (0.999, 0.9), 0


class DecaysWhatMoved(OneAhead):
    ahead, after = 0, True


class MeanOfGradients(Toy):
    """Momentum as a running mean."""

    def __init__(self, params, lr=0.01, weight_decay=0.0, momentum=0.9):
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def move(self, p, g, group, i):
        state, mu = self.state[p], group["momentum"]
        state["b"] = mu * state.get("b", 0 * g) + (1 - mu) * (g + group["weight_decay"] * p)
        p.sub_(group["lr"] * state["b"])


class LeakingSum(Toy):
    """AdaGrad that forgets: half a percent off after five steps."""

    def move(self, p, g, group, i):
        h = self.state[p]["h"] = 0.99 * self.state[p].get("h", 0.0) + g * g
        p.sub_(group["lr"] * g / (h.sqrt() + 1e-6))


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"first": False}, "AdamW", "the first moment is not corrected"),
        ({"second": False}, "AdamW", "the second moment is not corrected"),
        ({"coupled": True}, "AdamW", "the decay is in the gradient"),
        ({"decays": False}, "AdamW", "the weight decay is ignored"),
        ({"decays": False}, "Adam", "the weight decay is ignored"),
    ],
)
def test_a_known_mistake_is_named(changes, rule, words):
    found = finding(type("Wrong", (Moments,), changes), "published rule", rule=rule, weight_decay=0.01)
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith(words)


@pytest.mark.parametrize(
    ("build", "rule", "words"),
    [
        (OneAhead, "AdamW", "the count of updates is one ahead"),
        (SwapsBetas, "AdamW", "beta1 and beta2 stand for each other"),
        (DecaysWhatMoved, "AdamW", "the decay is taken of the weights that have moved"),
        (MeanOfGradients, "SGD", "the momentum takes 1 - momentum of the gradient"),
    ],
)
def test_a_known_mistake_is_named_however_small_it_is(build, rule, words):
    found = finding(build, "published rule", rule=rule, lr=1e-4, weight_decay=0.01)
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith(words)


def test_a_small_mistake_is_distinguished_from_low_precision():
    small = finding(LeakingSum, "published rule", rule="AdaGrad")
    assert small.verdict is Verdict.FAIL
    for dtype in (torch.bfloat16, torch.float16):
        rounded = finding(type("Rounded", (Moments,), {"kept": dtype}), "published rule", rule="AdamW")
        assert rounded.verdict is Verdict.DEVIATION
        assert "with low precision somewhere" in rounded.seen


@pytest.mark.parametrize("options", [{"maximize": True, "weight_decay": 0.1}, {"fused": True}])
def test_torch_follows_the_published_rule_under_its_own_options(options):
    """A fused kernel writes over the memory behind an expanded weight; that must not be shared."""
    report = examine(torch.optim.SGD, checks=("published rule", "overlapping tensor"), momentum=0.9, **options)
    assert report["published rule"].verdict is Verdict.OK
    assert report["overlapping tensor"].verdict is (Verdict.FAIL if "fused" in options else Verdict.OK)


class MisplacesEps(Toy):
    def __init__(self, params, lr=0.01, weight_decay=0.0, eps=1e-8):
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "weight_decay": weight_decay, "eps": eps})

    def move(self, p, g, group, i):
        h = self.state[p]["h"] = self.state[p].get("h", 0.0) + g * g
        p.sub_(group["lr"] * g / self.root(h, group["eps"]))

    def root(self, h, eps):
        return h.sqrt().clamp(min=eps)


class PutsEpsInside(MisplacesEps):
    def root(self, h, eps):
        return (h + eps).sqrt()


def test_a_misplaced_small_eps_is_distinguished_from_single_precision():
    """1e-8 beside a root of 1 differs by as much as float32 rounds."""
    wrong = finding(MisplacesEps, "published rule", rule="AdaGrad")
    assert wrong.verdict is Verdict.FAIL
    assert wrong.seen.endswith("with eps=0.01")
    variant = finding(PutsEpsInside, "published rule", rule="AdaGrad")
    assert variant.verdict is Verdict.DEVIATION
    assert variant.seen.startswith("known variant: ε inside the root")
    assert "with single precision somewhere" in finding(torch.optim.NAdam, "published rule").seen


def test_the_step_where_paths_part_is_named():
    """A rate outside the buffer shows only after the rate has changed, at the sixth step here."""
    found = finding(torch.optim.SGD, "published rule", momentum=0.9, nesterov=True, rule="NAG")
    assert "first differs at step 6, after the rate changed" in found.seen


def test_an_unknown_rule_is_no_failure():
    found = finding(Toy, "published rule")
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert found.seen == "no published rule known by this name"
    assert finding(Toy, "published rule", rule="sgd").verdict is Verdict.OK


class LimitsTheNorm(torch.optim.Optimizer):
    """LAMB without moments, whose norm of the weights is at most 10."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm().clamp(max=10) / p.grad.norm() * p.grad)


def test_a_limit_on_the_norm_of_the_weights_is_named():
    found = finding(LimitsTheNorm, "length of the first step", rule="LAMB")
    assert found.verdict is Verdict.DEVIATION
    assert "their norm is limited" in found.seen
    assert finding(descend.optim.LAMB, "length of the first step", upper_bound=10.0).verdict is Verdict.OK
    assert finding(descend.optim.LAMB, "length of the first step", lower_bound=5.0).verdict is Verdict.OK


def test_vectors_left_out_of_scaling_are_a_variant():
    class VectorsApart(Toy):
        def move(self, p, g, group, i):
            ratio = 1e-3 * p.norm() / g.norm() if p.ndim > 1 else 1.0
            b = self.state[p]["b"] = 0.9 * self.state[p].get("b", 0.0) + group["lr"] * ratio * g
            p.sub_(b)

    report = examine(VectorsApart, rule="LARS", checks=("length of the first step", "published rule"))
    assert report["length of the first step"].verdict is Verdict.DEVIATION
    assert report["published rule"].verdict is Verdict.DEVIATION
    assert "known variant: vectors are not scaled" in report["published rule"].seen
    assert "4x3, 3x2x2 agree" in report["published rule"].seen


class ScaledWhereDecayed(Toy):
    """As timm's: what is not decayed is not scaled."""

    def __init__(self, params, lr=0.1, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def move(self, p, g, group, i):
        decay, state = group["weight_decay"], self.state[p]
        ratio = 1e-3 * p.norm() / (g.norm() + decay * p.norm()) if decay else 1.0
        state["b"] = 0.9 * state.get("b", 0.0) + group["lr"] * ratio * (g + decay * p)
        p.sub_(state["b"])


def test_a_first_step_that_is_right_with_decay_is_a_deviation():
    checks = ("length of the first step", "published rule with decay")
    report = examine(ScaledWhereDecayed, rule="LARS", checks=checks)
    assert report["length of the first step"].verdict is Verdict.DEVIATION
    assert report["length of the first step"].seen.startswith(
        "1 x with weight decay; tensors without it are not scaled"
    )
    assert report["published rule with decay"].verdict is Verdict.OK


def test_noise_of_the_wrong_size_is_caught():
    class SGLD(Toy):
        def move(self, p, g, group, i):
            p.sub_(group["lr"] / 2 * g - 0.9 * group["lr"] ** 0.5 * torch.randn_like(p))

    assert finding(SGLD, "published rule").verdict is Verdict.FAIL
    assert finding(descend.optim.SGLD, "published rule").verdict is Verdict.OK
