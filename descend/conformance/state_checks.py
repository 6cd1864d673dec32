"""Can training be stopped and continued, and does an optimizer fit into a torch loop: saving, copying, closures."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any

import torch

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, first_line, gap
from descend.conformance.report import CheckOutcome, fail, not_applicable, ok

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["added_group", "by_name", "closure", "deep_copy", "round_trip", "safe_file", "zero_grad"]

BEFORE, AFTER = 3, 3  # steps on each side of the break


def _ran(subject: Candidate, steps: int) -> CandidateRun:
    trial = CandidateRun(subject, subject.weights())
    for t in range(1, steps + 1):
        trial.step(*subject.gradients(t))
    return trial


def _continued(trial: CandidateRun, subject: Candidate, first: int) -> list[Tensor]:
    trial.count = first - 1
    for t in range(first, first + AFTER):
        trial.step(*subject.gradients(t))
    return trial.values


def _saved(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def round_trip(subject: Candidate) -> CheckOutcome:
    """Save after three steps, load into a fresh optimizer, three more: the same bits as without the break.

    The rate is another by then than the one that the fresh optimizer was built with, as under any schedule.
    """
    stopped, whole = _ran(subject, BEFORE), _ran(subject, BEFORE)
    for trial in (stopped, whole):
        trial.set_rate(subject.lr / 2)
    wanted = _continued(whole, subject, BEFORE + 1)
    content = io.BytesIO(_saved(stopped.optimizer.state_dict()))
    try:
        state = torch.load(content, weights_only=True)
    except Exception:
        state = copy.deepcopy(stopped.optimizer.state_dict())  # that it cannot be read safely is a line of its own
    resumed = CandidateRun(subject, stopped.values)
    resumed.optimizer.load_state_dict(state)
    values = _continued(resumed, subject, BEFORE + 1)
    if all(torch.equal(a, b) for a, b in zip(values, wanted, strict=True)):
        return ok("the same bits")
    return fail(f"{gap(values, wanted, subject.weights()):.0e} apart in displacement")


def safe_file(subject: Candidate) -> CheckOutcome:
    """A saved state that torch reads without running code."""
    content = io.BytesIO(_saved(_ran(subject, 2).optimizer.state_dict()))
    try:
        torch.load(content, weights_only=True)
    except Exception as problem:
        return fail(f"{type(problem).__name__}: {first_line(problem)}")
    return ok("read, tensors and plain values alone")


def by_name(subject: Candidate) -> CheckOutcome:
    """Names were given; a model lists its weights in another order when the state is loaded."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    names, starts = ("first", "second"), [draw((4, 3), i) for i in range(2)]
    gradients = [[draw((4, 3), 10 * t + i) for i in range(2)] for t in range(BEFORE + 1)]
    try:
        whole = CandidateRun(subject, starts, names=names)
    except OptionRefused as problem:
        return not_applicable(f"takes no names: {problem}")
    for each in gradients[:-1]:
        whole.step(*each)
    state, halfway = copy.deepcopy(whole.optimizer.state_dict()), whole.values
    if not state["state"]:
        return not_applicable("there is no state")
    turned = CandidateRun(subject, halfway[::-1], names=names[::-1])
    try:
        turned.optimizer.load_state_dict(state)
    except Exception as problem:
        return ok(f"refused: {type(problem).__name__}: {first_line(problem)}")
    whole.step(*gradients[-1])
    turned.count = BEFORE
    turned.step(*gradients[-1][::-1])
    error = gap(turned.values[::-1], whole.values, halfway)
    if error <= 1e-12:
        return ok("state follows the name")
    return fail("state follows the position: loaded in silence for the wrong weights")


def deep_copy(subject: Candidate) -> CheckOutcome:
    """A copy of weights and optimizer goes the same way, and leaves the original alone."""
    trial = _ran(subject, BEFORE)
    twin = copy.deepcopy(trial)
    before = trial.values
    copied = _continued(twin, subject, BEFORE + 1)
    if not all(torch.equal(a, b) for a, b in zip(trial.values, before, strict=True)):
        return fail("a step of the copy moved the original")
    own = _continued(trial, subject, BEFORE + 1)
    if all(torch.equal(a, b) for a, b in zip(copied, own, strict=True)):
        return ok("the same bits, apart from each other")
    return fail(f"{gap(copied, own, before):.0e} apart in displacement")


def closure(subject: Candidate) -> CheckOutcome:
    """`step(closure)` runs it with gradients enabled, returns its loss and uses its gradients."""
    plain = CandidateRun(subject, subject.weights())
    plain.step(*plain.values)
    trial = CandidateRun(subject, subject.weights())
    losses: list[float] = []

    def loss() -> Tensor:
        trial.optimizer.zero_grad()
        value = torch.stack([(p * p).sum() / 2 for p in trial.params]).sum()  # its gradient is the weights
        value.backward()
        losses.append(float(value))
        return value

    wanted = float(sum((w * w).sum() / 2 for w in subject.weights()))
    got = trial.apply(loss)
    got = got.detach() if isinstance(got, torch.Tensor) else got
    if got is None or abs(float(got) - wanted) > 1e-9 * wanted:
        return fail(f"returned {got!r} for a loss of {wanted:.6g}")
    if len(losses) != 1:
        return fail(f"evaluated the closure {len(losses)} times, of which one is enough")
    error = gap(trial.values, plain.values, plain.starts)
    return ok("the loss, and the same step") if error <= 1e-9 else fail(f"another step: {error:.0e} apart")


def added_group(subject: Candidate) -> CheckOutcome:
    """A group added after two steps: it moves like new, and the others go on."""
    if subject.noisy:
        return not_applicable("it draws random numbers in the order of the list")
    trial, alone = _ran(subject, 2), _ran(subject, 2)
    weights, g = draw((4, 3), 50), draw((4, 3), 51)
    fresh = CandidateRun(subject, [weights])
    added = torch.nn.Parameter(weights.clone())
    trial.optimizer.add_param_group({"params": [added]})
    added.grad = g.clone()
    trial.step(*subject.gradients(3))
    alone.step(*subject.gradients(3))
    fresh.step(g)
    if gap(trial.values, alone.values, trial.starts) > 1e-9:
        return fail("the weights of the first group moved otherwise than without it")
    error = gap([added.detach()], fresh.values, [weights])
    return ok("it moves like new") if error <= 1e-9 else fail(f"its first step is {100 * error:.2g} % off")


def zero_grad(subject: Candidate) -> CheckOutcome:
    """`zero_grad()` takes gradients away, `zero_grad(set_to_none=False)` writes zeros."""
    trial = _ran(subject, 1)
    trial.optimizer.zero_grad(set_to_none=False)
    if any(p.grad is None or bool(p.grad.any()) for p in trial.params):
        return fail("set_to_none=False left gradients that are not zero")
    trial.step(*subject.gradients(2))
    trial.optimizer.zero_grad()
    left = sum(p.grad is not None for p in trial.params)
    return fail(f"{left} gradients are left") if left else ok("zeros, and none")
