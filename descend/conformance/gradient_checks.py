"""What absent, zero, frozen and non-finite gradients do, and whether gradients are left as they came."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch

from descend.conformance.candidate import Candidate, CandidateRun, gap
from descend.conformance.report import CheckOutcome, deviation, fail, not_applicable, ok

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "absent_count",
    "absent_untouched",
    "bfloat16_moves",
    "frozen",
    "frozen_later",
    "gradients_kept",
    "half_large",
    "half_zeros",
    "infinity",
    "nan",
]


def nan(subject: Candidate) -> CheckOutcome:
    """One NaN in one gradient, then two clean steps."""
    return _poisoned(subject, float("nan"))


def infinity(subject: Candidate) -> CheckOutcome:
    """One infinity in one gradient, then two clean steps."""
    return _poisoned(subject, float("inf"))


def _poisoned(subject: Candidate, value: float) -> CheckOutcome:
    trial = CandidateRun(subject, subject.weights(torch.float32))
    trial.step(*subject.gradients(1, torch.float32))
    before, bad = trial.values, subject.gradients(2, torch.float32)
    bad[0].view(-1)[0] = value
    said = "the step was taken"
    try:
        trial.step(*bad)
    except Exception as problem:
        if not _same(trial.values, before):
            return fail(f"raised {type(problem).__name__} after weights had changed")
        said = f"raised {type(problem).__name__} with the weights as before"
    for t in (3, 4):
        trial.step(*subject.gradients(t, torch.float32))
    lost = sum(int((~value.isfinite()).sum()) for value in trial.values)
    total = sum(value.numel() for value in trial.values)
    if lost:
        return fail(f"{lost} of {total} weights are not finite two clean steps later")
    return ok(f"all weights finite two clean steps later; {said}")


def half_zeros(subject: Candidate) -> CheckOutcome:
    """Gradients of zeros for fp16 weights: where the rule rests in double precision, it must rest in half precision."""
    after: dict[torch.dtype, list[Tensor]] = {}
    for dtype in (torch.float64, torch.float16):
        trial = CandidateRun(subject, [w.half().to(dtype) for w in subject.weights()], **subject.without_decay())
        for _ in range(2):
            trial.step(*(torch.zeros_like(p) for p in trial.params))
        after[dtype] = trial.values
    lost = sum(int((~value.isfinite()).sum()) for value in after[torch.float16])
    total = sum(value.numel() for value in after[torch.float16])
    if lost:
        return fail(f"{lost} of {total} weights became NaN or infinite")
    if not _same([value.half() for value in after[torch.float64]], [w.half() for w in subject.weights()]):
        return not_applicable("the rule itself moves weights without a gradient; all stayed finite")
    if _same(after[torch.float16], [w.half() for w in subject.weights()]):
        return ok("unchanged to the last bit")
    return fail("the weights changed")


def half_large(subject: Candidate) -> CheckOutcome:
    """Gradients of 1,000 for fp16 weights: their square is infinite there, and the weights must move all the same."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    first = _moved_by(subject, torch.float64, subject.lr, 1)
    if not 0 < first < math.inf:
        return not_applicable("its first step does not move")
    lr = subject.lr * 0.02 / first
    full, low = (_moved_by(subject, dtype, lr, 3) for dtype in (torch.float64, torch.float16))
    if not 0 < full < 1:
        return not_applicable(f"in float64 the weights of 1 move by {full:.3g}")
    seen = f"moved by {low:.4g}, in float64 by {full:.4g}"
    return ok(seen) if abs(low - full) <= 0.05 * full + 3 * 2**-11 else fail(seen)


def _moved_by(subject: Candidate, dtype: torch.dtype, lr: float, steps: int) -> float:
    """How far weights of 1 move on average under gradients of 1,000."""
    trial = CandidateRun(subject, [torch.ones(4, 3, dtype=dtype)], **subject.without_decay())
    trial.set_rate(lr)
    for _ in range(steps):
        trial.step(torch.full((4, 3), 1e3, dtype=dtype))
    return float((trial.values[0].double() - 1).abs().mean())


def absent_untouched(subject: Candidate) -> CheckOutcome:
    """No gradient for one tensor: weight, decay and state stay as they are."""
    trial = CandidateRun(subject, subject.weights(), **subject.with_decay())
    trial.step(*subject.gradients(1))
    before, state = trial.values[0], copy.deepcopy(trial.optimizer.state_dict()["state"].get(0))
    others = trial.values[1:]
    trial.step(None, *subject.gradients(2)[1:])
    if not torch.equal(trial.values[0], before):
        return fail("the weight without a gradient changed")
    if any(torch.equal(a, b) for a, b in zip(trial.values[1:], others, strict=True)) and subject.first_move == 1:
        return fail("weights beside it, which have gradients, did not move")
    if not _same_state(state, trial.optimizer.state_dict()["state"].get(0)):
        return fail("its state changed")
    return ok("weight and state unchanged to the last bit")


def absent_count(subject: Candidate) -> CheckOutcome:
    """After a step without a gradient a tensor continues as if that step had not been."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    with_gap, without = (CandidateRun(subject, subject.weights()) for _ in range(2))
    last = (2, 3)
    with_gap.step(*subject.gradients(1))
    with_gap.step(None, *subject.gradients(last[0])[1:])
    with_gap.step(*subject.gradients(last[1]))
    without.step(*subject.gradients(1))
    without.step(*subject.gradients(last[1]))
    error = gap(with_gap.values[:1], without.values[:1], subject.weights()[:1])
    if error <= 1e-12:
        return ok("its next step is its second")
    return fail(f"its next step is {100 * error:.2g} % off: the step without a gradient was counted")


def frozen(subject: Candidate) -> CheckOutcome:
    """A tensor that is not trained, from the start."""
    weights = subject.weights()
    trial = CandidateRun(subject, weights, **subject.with_decay())
    trial.params[0].requires_grad_(False)
    for t in (1, 2):
        trial.step(None, *subject.gradients(t)[1:])
    if not torch.equal(trial.values[0], weights[0]):
        return fail("it changed")
    state = trial.optimizer.state_dict()["state"].get(0)
    return deviation(f"unchanged, with state: {', '.join(state)}") if state else ok("unchanged, and without state")


def frozen_later(subject: Candidate) -> CheckOutcome:
    """A tensor frozen after its backward pass, so that a gradient is left over."""
    trial = CandidateRun(subject, subject.weights())
    trial.step(*subject.gradients(1))
    before = trial.values[0]
    trial.params[0].requires_grad_(False)
    trial.step(*subject.gradients(2))
    return ok("unchanged") if torch.equal(trial.values[0], before) else deviation("moved by the gradient left over")


def gradients_kept(subject: Candidate) -> CheckOutcome:
    """The caller's gradients: other code logs or clips them after the step."""
    trial = CandidateRun(subject, subject.weights(), **subject.with_decay())
    given: list[tuple[int, Tensor, Tensor]] = []  # step, the gradient, and what it was: some are kept and written later
    for t, size in enumerate((1.0, 1.0, 1e3), start=1):  # the third is one that is clipped where anything is
        wanted = [size * g for g in subject.gradients(t)]
        trial.step(*wanted)
        kept = [p.grad for p in trial.params]
        if any(g is None for g in kept):
            return fail("they were taken away")
        given += [(t, g, w) for g, w in zip(kept, wanted, strict=True) if g is not None]
        changed = [of for of, g, w in given if not torch.equal(g, w)]
        if changed:
            later = f", those of step {changed[0]}" if changed[0] < t else ""
            return fail(f"{len(changed)} of {len(wanted)} gradients were overwritten in step {t}{later}")
    return ok("unchanged to the last bit")


def bfloat16_moves(subject: Candidate) -> CheckOutcome:
    """200 steps, each too small for a bfloat16 weight of 1 to show, against the same in float32."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    probe = CandidateRun(subject, [torch.ones(4, 3)], **subject.without_decay())
    probe.step(torch.ones(4, 3))
    first = float((probe.values[0] - 1).abs().mean())
    if first == 0:
        return not_applicable("its first step does not move")
    ends: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        trial = CandidateRun(subject, [torch.ones(4, 3, dtype=dtype)], **subject.without_decay())
        trial.set_rate(subject.lr * 1e-3 / first)  # half a unit in the last place of 1 in bfloat16 is 2e-3 downwards
        for _ in range(200):
            trial.step(torch.ones(4, 3, dtype=dtype))
        ends[dtype] = float(trial.values[0].double().mean())
    full, low = ends[torch.float32], ends[torch.bfloat16]
    if not abs(full - 1) > 0.02:
        return not_applicable(f"in float32 the weight moves from 1 to {full:.4f} only")
    seen = f"from 1 to {low:.4g}, in float32 to {full:.4g}"
    return ok(seen) if abs(low - full) <= 0.01 * abs(full - 1) + 2**-8 * abs(full) else fail(seen)


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _same_state(one: object, other: object) -> bool:
    """Whether two saved states are equal to the last bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_state, one, other))
    return type(one) is type(other) and one == other
