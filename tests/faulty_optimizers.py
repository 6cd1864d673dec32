"""Optimizers that are each broken in one way, and what finds it: inputs of the tests of `descend.conformance`."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

import descend.optim
from descend.conformance import Verdict, examine

ROOT = Path(__file__).parents[1]


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


# For each check an optimizer that is broken in it, and one that passes.
RULE_CASES = {
    "published rule": (Adam, torch.optim.Adam),
    "published rule with decay": (SGD, torch.optim.SGD),
    "length of the first step": (LAMB, descend.optim.LAMB),
    "float32": (CoarseInSinglePrecision, Toy),
}
TENSOR_CASES = {
    "order of the weights": (DependsOnPosition, Toy),
    "0-d tensor": (CountsRows, Toy),
    "empty tensor": (DividesByTheLargest, Toy),
    "non-contiguous tensor": (MovesACopyOfStrided, Toy),
    "overlapping tensor": (PutsANewTensorInPlace, Toy),
    "zero weights": (StuckAtZero, Toy),
}
GRADIENT_CASES = {
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
}
STATE_CASES = {
    "state round trip": (ForgetsItsCount, Counting),
    "state file": (KeepsAnObject, Counting),
    "state by name": (Adam, descend.optim.Adam),
    "deepcopy": (LosesAnAttribute, Toy),
    "closure": (LosesTheLoss, Toy),
    "add_param_group": (ForgetsItsCount, Counting),
    "zero_grad": (ClearsByHalf, Toy),
}
GROUP_CASES = {
    "options of a group": (FollowsTheFirstGroup, Toy),
    "misspelt group key": (Toy, descend.optim.SGD),
    "rate of a group": (Toy, descend.optim.SGD),
    "decay of a group": (Toy, descend.optim.SGD),
    "same weight twice": (Toy, descend.optim.SGD),
}
CASES = {
    "takes a step": (NeverSteps, Toy),
    **RULE_CASES,
    **TENSOR_CASES,
    **GRADIENT_CASES,
    **STATE_CASES,
    **GROUP_CASES,
}
ONLY_DEVIATES = {"frozen later"}


@functools.cache
def finding(build, check, **options):
    """What one check finds; with `rule=` and arguments of the optimizer."""
    return examine(build, checks=(check,), **options)[check]


def assert_only_the_broken_one_fails(check):
    """For a key of `CASES`."""
    broken, sound = CASES[check]
    wanted = Verdict.DEVIATION if check in ONLY_DEVIATES else Verdict.FAIL
    assert finding(broken, check).verdict is wanted, finding(broken, check)
    assert finding(sound, check).verdict is Verdict.OK, finding(sound, check)
