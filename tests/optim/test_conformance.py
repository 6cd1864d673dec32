"""Every check catches an optimizer that is broken in just that, and passes a sound one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.optim.optimizer import required

import descend.optim
from descend.errors import RuleError
from descend.optim.conformance import PUBLISHED, Verdict, arguments, examine, load, survey

ROOT = Path(__file__).parents[2]


class Toy(torch.optim.Optimizer):
    """Gradient descent in the fewest lines; a broken one overrides one of them."""

    def __init__(self, params, lr=0.01, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                self.visit(p, group, i)
        return loss

    def visit(self, p, group, i):
        if p.grad is not None:
            self.move(p, p.grad, group, i)

    def move(self, p, g, group, i):
        p.sub_(group["lr"] * (g + group["weight_decay"] * p))


class Counting(Toy):
    """The same with a rate that falls like 1/t, t in the state of each weight."""

    def move(self, p, g, group, i):
        state = self.state[p]
        state["t"] = state.get("t", torch.zeros((), dtype=torch.float64)) + 1
        p.sub_(group["lr"] / state["t"].to(p.dtype) * g)


class NeverSteps(Toy):
    def move(self, p, g, group, i):
        raise RuntimeError("out of order")


class LAMB(Toy):
    """The ratio taken of the uncorrected direction, the correction applied afterwards: 10 times too long."""

    def move(self, p, g, group, i):
        p.sub_(group["lr"] * 10 * p.norm() / g.sign().norm() * g.sign())


class Adam(Toy):
    """Its second moment is not corrected."""

    def move(self, p, g, group, i):
        state = self.state[p]
        g = g + group["weight_decay"] * p
        state["m"] = 0.9 * state.get("m", torch.zeros_like(p)) + 0.1 * g
        state["v"] = 0.999 * state.get("v", torch.zeros_like(p)) + 0.001 * g * g
        state["t"] = state.get("t", 0) + 1
        p.sub_(group["lr"] * state["m"] / (1 - 0.9 ** state["t"]) / (state["v"].sqrt() + 1e-8))


class SGD(Toy):
    """Its decay has the wrong sign."""

    def move(self, p, g, group, i):
        p.sub_(group["lr"] * (g - group["weight_decay"] * p))


class DecaysInsideTheSign(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * (g + group["weight_decay"] * p).sign())


class CoarseInSinglePrecision(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * ((g * 5).round() / 5 if p.dtype is torch.float32 else g))


class DependsOnPosition(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] / (i + 1) * g)


class CountsRows(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * g * min(1, p.shape[0]))


class DividesByTheLargest(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * g / g.abs().max())


class MovesACopyOfStrided(Toy):
    def move(self, p, g, group, i):
        p.contiguous().view(-1).sub_(group["lr"] * g.contiguous().view(-1))


class PutsANewTensorInPlace(Toy):
    def move(self, p, g, group, i):
        p.data = p.data - group["lr"] * g


class StuckAtZero(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * p.norm() * g)


class DividesByNorm(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * g / g.norm())


class AbsentIsZero(Toy):
    def visit(self, p, group, i):
        self.move(p, torch.zeros_like(p) if p.grad is None else p.grad, group, i)


class CountsForAll(Toy):
    """One count a group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["t"] = group.get("t", 0) + 1
        return super().step(closure)

    def move(self, p, g, group, i):
        p.sub_(group["lr"] / group["t"] * g)


class DecaysInTheGradient(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * g.add_(p, alpha=group["weight_decay"]))


class ForgetsItsCount(Toy):
    t = 0

    def step(self, closure=None):
        self.t += 1
        return super().step(closure)

    def move(self, p, g, group, i):
        p.sub_(group["lr"] / self.t * g)


class KeepsAnObject(Toy):
    def move(self, p, g, group, i):
        self.state[p]["path"] = ROOT
        super().move(p, g, group, i)


class LosesAnAttribute(Toy):
    def __init__(self, params, lr=0.01, weight_decay=0.0):
        super().__init__(params, lr, weight_decay)
        self.factor = 1.0  # torch's own __getstate__ does not know it

    def move(self, p, g, group, i):
        p.sub_(self.factor * group["lr"] * g)


class LosesTheLoss(Toy):
    def step(self, closure=None):
        super().step(closure)


class ClearsByHalf(Toy):
    def zero_grad(self, set_to_none=True):
        if not set_to_none:
            super().zero_grad(set_to_none=False)


class SquaresInHalf(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * g * g / (g * g + 1))


class FollowsTheFirstGroup(Toy):
    def move(self, p, g, group, i):
        super().move(p, g, self.param_groups[0], i)


# For each check an optimizer that is broken in it, and one that does what is asked.
CASES = {
    "takes a step": (NeverSteps, Toy),
    "published rule": (Adam, torch.optim.Adam),
    "published rule with decay": (SGD, torch.optim.SGD),
    "length of the first step": (LAMB, descend.optim.LAMB),
    "float32": (CoarseInSinglePrecision, Toy),
    "order of the weights": (DependsOnPosition, Toy),
    "0-d tensor": (CountsRows, Toy),
    "empty tensor": (DividesByTheLargest, Toy),
    "non-contiguous tensor": (MovesACopyOfStrided, Toy),
    "overlapping tensor": (PutsANewTensorInPlace, Toy),
    "zero weights": (StuckAtZero, Toy),
    "NaN in a gradient": (Toy, torch.optim.Rprop),
    "infinity in a gradient": (Toy, torch.optim.Rprop),
    "fp16 zero gradients": (DividesByNorm, Toy),
    "fp16 large gradients": (SquaresInHalf, Toy),
    "bf16 small updates": (Toy, descend.optim.SGD),
    "no gradient": (AbsentIsZero, Toy),
    "count without gradient": (CountsForAll, Counting),
    "frozen": (AbsentIsZero, Toy),
    "frozen later": (Toy, descend.optim.SGD),
    "caller's gradients": (DecaysInTheGradient, Toy),
    "state round trip": (ForgetsItsCount, Counting),
    "state file": (KeepsAnObject, Counting),
    "state by name": (Adam, descend.optim.Adam),
    "deepcopy": (LosesAnAttribute, Toy),
    "closure": (LosesTheLoss, Toy),
    "add_param_group": (ForgetsItsCount, Counting),
    "zero_grad": (ClearsByHalf, Toy),
    "options of a group": (FollowsTheFirstGroup, Toy),
    "misspelt group key": (Toy, descend.optim.SGD),
    "rate of a group": (Toy, descend.optim.SGD),
    "decay of a group": (Toy, descend.optim.SGD),
    "same weight twice": (Toy, descend.optim.SGD),
}
ONLY_DEVIATES = {"frozen later"}


@pytest.fixture(scope="module")
def reports():
    """Reports that several tests look at, each made once."""
    made = {}

    def report(build):
        if build not in made:
            made[build] = examine(build)
        return made[build]

    return report


@pytest.mark.parametrize("check", CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check, reports):
    broken, sound = CASES[check]
    wanted = Verdict.DEVIATION if check in ONLY_DEVIATES else Verdict.FAIL
    assert reports(broken)[check].verdict is wanted, reports(broken)[check]
    assert reports(sound)[check].verdict is Verdict.OK, reports(sound)[check]


def test_every_check_has_a_case(reports):
    names = {finding.check for finding in reports(descend.optim.SGD).findings}
    assert names == set(CASES)


class FollowsItsDefaults(Toy):
    def move(self, p, g, group, i):
        super().move(p, g, {**group, "weight_decay": self.defaults["weight_decay"]}, i)


class SharesMomentum(Toy):
    """The momentum of the last group for all."""

    def __init__(self, params, lr=0.01, weight_decay=0.0, momentum=0.9):
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def move(self, p, g, group, i):
        b = self.state[p]["b"] = self.param_groups[-1]["momentum"] * self.state[p].get("b", 0 * g) + g
        p.sub_(group["lr"] * b)


class KeepsTheGradientAsMomentum(Toy):
    def move(self, p, g, group, i):
        state = self.state[p]
        state["b"] = state["b"].mul_(0.9).add_(g) if "b" in state else g
        p.sub_(group["lr"] * state["b"])


class ClipsInPlace(Toy):
    def move(self, p, g, group, i):
        super().move(p, g.clamp_(-10, 10), group, i)


class StopsAtNone(Toy):
    @torch.no_grad()
    def step(self, closure=None):
        for i, p in enumerate(self.param_groups[0]["params"]):
            if p.grad is None:
                break
            self.visit(p, self.param_groups[0], i)


class ForgetsTheRate(Toy):
    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["lr"] = self.defaults["lr"]


class AsksTwice(Toy):
    def step(self, closure=None):
        if closure is not None:
            closure()
        return super().step(closure)


class LeavesSingleNumbersOut(Toy):
    def move(self, p, g, group, i):
        if p.numel() > 1:
            super().move(p, g, group, i)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (FollowsTheFirstGroup, "options of a group", "the lr of a group acts on the other; the weight_decay of a"),
        (FollowsItsDefaults, "options of a group", "the weight_decay of a group is not used"),
        (SharesMomentum, "options of a group", "the momentum of a group acts on the other"),
        (KeepsTheGradientAsMomentum, "caller's gradients", "overwritten in step 2, those of step 1"),
        (ClipsInPlace, "caller's gradients", "3 of 3 gradients were overwritten in step 3"),
        (StopsAtNone, "no gradient", "weights beside it, which have gradients, did not move"),
        (ForgetsTheRate, "state round trip", "apart in displacement"),
        (AsksTwice, "closure", "evaluated the closure 2 times"),
        (LeavesSingleNumbersOut, "0-d tensor", "neither moved"),
    ],
)
def test_other_ways_to_break_a_check_are_caught(broken, check, words, reports):
    finding = reports(broken)[check]
    assert finding.verdict is Verdict.FAIL
    assert words in finding.seen


class RestsAtFirst(Toy):
    """Takes no step before the eleventh, as AdaShift."""

    def move(self, p, g, group, i):
        state = self.state[p]
        state["t"] = state.get("t", 0) + 1
        if state["t"] > 10:
            super().move(p, g, group, i)


class MatricesAlone(Toy):
    def move(self, p, g, group, i):
        if p.ndim != 2:
            raise ValueError("matrices alone")
        super().move(p, g, group, i)


class MakesItsRate(Toy):
    """A rate of its own, whatever `lr` says."""

    def move(self, p, g, group, i):
        super().move(p, g, {**group, "lr": 0.01}, i)


def test_what_a_rule_does_by_design_is_no_failure(reports):
    for check in ("zero weights", "0-d tensor", "no gradient"):
        assert reports(RestsAtFirst)[check].verdict is Verdict.OK
    assert reports(MatricesAlone)["0-d tensor"].seen == "takes no vector of one either: matrices alone"
    assert reports(MatricesAlone)["0-d tensor"].verdict is Verdict.NOT_APPLICABLE
    assert reports(MakesItsRate)["options of a group"].verdict is Verdict.OK


def test_a_lamb_whose_first_step_is_10_times_too_long_is_reported(reports):
    seen = reports(LAMB)["length of the first step"].seen
    assert "4x3: 10" in seen
    assert "10 x as long" in reports(LAMB)["published rule"].seen
    assert "first differs at step 1" in reports(LAMB)["published rule"].seen


def test_torch_adam_writes_nan_on_zero_fp16_gradients(reports):
    finding = reports(torch.optim.Adam)["fp16 zero gradients"]
    assert finding.verdict is Verdict.FAIL
    assert finding.seen == "29 of 29 weights became NaN or infinite"


def test_torch_loads_a_state_for_the_wrong_weights(reports):
    assert reports(torch.optim.Adam)["state by name"].verdict is Verdict.FAIL


@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RMSprop", "Rprop", "SGD"])
def test_torch_follows_the_published_rule(name, reports):
    """So the references here agree with an implementation that is not ours."""
    assert reports(getattr(torch.optim, name))["published rule"].verdict is Verdict.OK


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
    finding = examine(build, **args)["published rule"]
    assert finding.verdict is Verdict.DEVIATION
    assert words in finding.seen


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
        ({"coupled": True}, "AdamW", "the decay stands in the gradient"),
        ({"decays": False}, "AdamW", "the weight decay is ignored"),
        ({"decays": False}, "Adam", "the weight decay is ignored"),
    ],
)
def test_a_known_mistake_is_named(changes, rule, words):
    finding = examine(type("Wrong", (Moments,), changes), rule=rule, weight_decay=0.01)["published rule"]
    assert finding.verdict is Verdict.FAIL
    assert finding.seen.startswith(words)


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
    finding = examine(build, rule=rule, lr=1e-4, weight_decay=0.01)["published rule"]
    assert finding.verdict is Verdict.FAIL
    assert finding.seen.startswith(words)


def test_a_small_mistake_is_distinguished_from_low_precision():
    small = examine(LeakingSum, rule="AdaGrad")["published rule"]
    assert small.verdict is Verdict.FAIL
    for dtype in (torch.bfloat16, torch.float16):
        rounded = examine(type("Rounded", (Moments,), {"kept": dtype}), rule="AdamW")["published rule"]
        assert rounded.verdict is Verdict.DEVIATION
        assert "with low precision somewhere" in rounded.seen


@pytest.mark.parametrize("options", [{"maximize": True, "weight_decay": 0.1}, {"fused": True}])
def test_torch_follows_the_published_rule_under_its_own_options(options):
    """A fused kernel writes over the memory behind an expanded weight; that must be nobody else's."""
    report = examine(torch.optim.SGD, momentum=0.9, **options)
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
    wrong = examine(MisplacesEps, rule="AdaGrad")["published rule"]
    assert wrong.verdict is Verdict.FAIL
    assert wrong.seen.endswith("with eps=0.01")
    variant = examine(PutsEpsInside, rule="AdaGrad")["published rule"]
    assert variant.verdict is Verdict.DEVIATION
    assert variant.seen.startswith("known variant: ε inside the root")
    assert "with single precision somewhere" in examine(torch.optim.NAdam)["published rule"].seen


def test_the_step_where_paths_part_is_named():
    """A rate outside the buffer shows only after the rate has changed, at the sixth step here."""
    finding = examine(torch.optim.SGD, momentum=0.9, nesterov=True, rule="NAG")["published rule"]
    assert "first differs at step 6, after the rate changed" in finding.seen


def test_an_unknown_rule_is_no_failure(reports):
    finding = reports(Toy)["published rule"]
    assert finding.verdict is Verdict.NOT_APPLICABLE
    assert finding.seen == "no published rule known by this name"
    assert examine(Toy, rule="sgd")["published rule"].verdict is Verdict.OK


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
    finding = examine(LimitsTheNorm, rule="LAMB")["length of the first step"]
    assert finding.verdict is Verdict.DEVIATION
    assert "their norm is limited" in finding.seen
    assert examine(descend.optim.LAMB, upper_bound=10.0)["length of the first step"].verdict is Verdict.OK
    assert examine(descend.optim.LAMB, lower_bound=5.0)["length of the first step"].verdict is Verdict.OK


def test_vectors_left_out_of_scaling_are_a_variant():
    class VectorsApart(Toy):
        def move(self, p, g, group, i):
            ratio = 1e-3 * p.norm() / g.norm() if p.ndim > 1 else 1.0
            b = self.state[p]["b"] = 0.9 * self.state[p].get("b", 0.0) + group["lr"] * ratio * g
            p.sub_(b)

    report = examine(VectorsApart, rule="LARS")
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
    report = examine(ScaledWhereDecayed, rule="LARS")
    assert report["length of the first step"].verdict is Verdict.DEVIATION
    assert report["length of the first step"].seen.startswith(
        "1 x with weight decay; tensors without it are not scaled"
    )
    assert report["published rule with decay"].verdict is Verdict.OK


def test_adabelief_as_its_authors_rectify_it_is_a_variant():
    class AdaBelief(Toy):
        def move(self, p, g, group, i):
            s = self.state[p]
            t = s["t"] = s.get("t", 0) + 1
            m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
            v = s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * (g - m) ** 2 + 1e-16
            most = 2 / 0.001 - 1
            rho = most - 2 * t * 0.999**t / (1 - 0.999**t)
            d = m / (1 - 0.9**t)
            if rho >= 5:
                r = (rho - 4) / (most - 4) * (rho - 2) / rho * most / (most - 2)
                d = (r * (1 - 0.999**t)) ** 0.5 * d / (v.sqrt() + 1e-16)
            p.sub_(group["lr"] * d)

    assert "known variant: rectified as RAdam" in examine(AdaBelief)["published rule"].seen


def test_a_function_that_builds_one_is_examined_by_the_name_of_what_it_builds():
    report = examine(lambda params: torch.optim.Adam(params, lr=0.02, betas=(0.8, 0.99)))
    assert report["published rule"].verdict is Verdict.OK
    assert report["published rule"].expected.startswith("Adam:")


def test_noise_of_the_wrong_size_is_caught():
    class SGLD(Toy):
        def move(self, p, g, group, i):
            p.sub_(group["lr"] / 2 * g - 0.9 * group["lr"] ** 0.5 * torch.randn_like(p))

    assert examine(SGLD)["published rule"].verdict is Verdict.FAIL
    assert examine(descend.optim.SGLD)["published rule"].verdict is Verdict.OK


def test_what_cannot_be_examined_is_said():
    assert examine(torch.optim.LBFGS).findings[0].verdict is Verdict.NOT_APPLICABLE
    assert examine(torch.optim.SparseAdam).findings[0].seen == "not examined: a step of it needs sparse gradients"


class WantsClosure(Toy):
    def step(self, closure=None):
        if closure is None:
            raise ValueError("this optimizer wants a closure")
        return super().step(closure)


class WantsGraph(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * torch.autograd.grad(g.sum(), p, retain_graph=True)[0])

    def step(self, closure=None):
        with torch.enable_grad():
            return super().step(closure)


class WantsALoss(Toy):
    """Takes the loss alone from its closure, after the backward pass."""

    def step(self, closure=None):
        if closure is None:
            raise ValueError("this optimizer wants a closure")
        with torch.no_grad():
            closure()
        return super().step()


class Never(Toy):
    def step(self, closure=None):
        raise ValueError("never")


def test_a_step_that_needs_more_than_gradients_is_distinguished_from_one_that_fails():
    assert examine(WantsClosure).findings[0].seen == "not examined: a step of it needs a closure"
    assert examine(WantsClosure).passed
    assert examine(WantsALoss).findings[0].seen == "not examined: a step of it needs a closure"
    assert examine(Never).findings[0].verdict is Verdict.FAIL
    assert "never" in examine(Never).findings[0].seen


def test_mistakes_of_the_caller_are_errors():
    with pytest.raises(RuleError, match="did you mean 'betas'"):
        examine(torch.optim.Adam, beta=(0.9, 0.99))
    with pytest.raises(RuleError, match="did you mean 'LAMB'"):
        examine(torch.optim.Adam, rule="lambda")
    with pytest.raises(RuleError, match="did you mean 'AdamW'"):
        load("torch.optim:AdamWW")
    with pytest.raises(RuleError, match="no_such_module"):
        load("no_such_module:Adam")
    with pytest.raises(RuleError, match="name=value"):
        arguments(["lr"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("def f(:", "importing 'broken' raised SyntaxError"),
        ("raise SystemExit(7)", "importing 'broken' raised SystemExit: 7"),
        ("1 / 0", "importing 'broken' raised ZeroDivisionError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_error(text, words, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuleError, match=words):
        load("broken:Adam")


def test_what_builds_nothing_to_examine_is_an_error():
    class Needs(Toy):
        def __init__(self, params, must, *, other):
            super().__init__(params)

    class Stubborn(Toy):
        def __init__(self, params):
            raise ValueError("no luck")

    with pytest.raises(RuleError, match="Needs cannot be built without other: "):
        examine(Needs, must=1)
    assert examine(Needs, must=1, other=2)["takes a step"].verdict is Verdict.OK
    with pytest.raises(RuleError, match="Stubborn cannot be built over a list of one matrix: ValueError: no luck"):
        examine(Stubborn)
    with pytest.raises(RuleError, match=r"Adam\(lr=-1.0\) cannot be built"):
        examine(torch.optim.Adam, lr=-1.0)
    with pytest.raises(RuleError, match=r"list builds a list, which is no torch.optim.Optimizer"):
        examine(list)


def test_a_rate_that_is_marked_as_required_is_given():
    class Marked(Toy):
        def __init__(self, params, lr=required):
            torch.optim.Optimizer.__init__(self, params, {"lr": lr, "weight_decay": 0.0})

    assert examine(Marked)["takes a step"].verdict is Verdict.OK


def test_what_an_optimizer_prints_stays_out_of_the_table(capsys):
    class Talks(Toy):
        def __init__(self, params, lr=0.01):
            sys.stdout.write("hello")
            super().__init__(params, lr)

        def move(self, p, g, group, i):
            sys.stdout.write("moving")
            super().move(p, g, group, i)

    examine(Talks)
    assert capsys.readouterr().out == ""


def test_arguments_are_literals_or_text():
    assert arguments(["lr=0.1 betas=(0.9,0.99)", "mode=fast"]) == {"lr": 0.1, "betas": (0.9, 0.99), "mode": "fast"}


def test_every_rule_of_ours_has_an_independent_reference():
    assert set(PUBLISHED) == set(descend.optim.names())


def test_nothing_global_is_touched():
    before = torch.random.get_rng_state()
    examine(torch.optim.SGD)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_table_ends_with_counts(reports):
    lines = str(reports(torch.optim.SGD)).splitlines()
    assert lines[0].split() == ["check", "expected", "seen", "verdict"]
    assert lines[-1].startswith("SGD: 23 ok")
    assert max(map(len, lines)) < 170


def test_a_survey_takes_every_class_of_a_module_once():
    module = ModuleType("mine")
    module.Toy = module.Alias = Toy
    module.NeedsMore = type("NeedsMore", (Toy,), {"__init__": lambda self, params, model: None})
    module.Optimizer = torch.optim.Optimizer
    toy, needs = sorted(survey(module), key=lambda report: report.title == "NeedsMore")
    assert toy.title == "Toy"
    assert needs.line.startswith("NeedsMore: not examined: NeedsMore cannot be built without model")
    assert needs.passed


FAIR_PART = ("adamw", "ftrl", "lamb", "lars", "sgd", "sgld")


def _our_report(name):
    face = type(descend.optim.create(name, [torch.zeros(1)]))
    report = examine(face)
    assert {finding.verdict for finding in report.findings} <= {Verdict.OK, Verdict.NOT_APPLICABLE}, f"\n{report}"


@pytest.mark.parametrize("name", FAIR_PART)
def test_ours_conform(name):
    _our_report(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in descend.optim.names() if name not in FAIR_PART])
def test_all_others_of_ours_conform(name):
    _our_report(name)


def _python_with_pytorch_optimizer():
    """An interpreter that has it: `DESCEND_PYTORCH_OPTIMIZER`, or this one."""
    python = os.environ.get("DESCEND_PYTORCH_OPTIMIZER", sys.executable)
    found = subprocess.run([python, "-c", "import pytorch_optimizer"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("pytorch_optimizer is not installed; DESCEND_PYTORCH_OPTIMIZER may name a Python that has it")
    return python


@pytest.mark.slow
def test_the_lamb_of_pytorch_optimizer_takes_a_first_step_10_times_too_long():
    command = [_python_with_pytorch_optimizer(), "-m", "descend", "conformance", "pytorch_optimizer:Lamb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("length of the first step"))
    assert "4x3: 10," in line
    assert line.endswith("FAIL")
