"""What absent, zero, frozen and non-finite gradients do, and whether gradients are left as they came."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, first_line, gap
from descend.conformance.report import CheckOutcome, deviation, fail, not_applicable, ok

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# ---- does every kind of tensor get the same treatment: any order, any number of dimensions, any layout, zero
# weights

STEPS = 3
SAME = 1e-9  # relative: sums may be taken in another order


def _run(subject: Candidate, weights: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> CandidateRun:
    """The trial after these steps."""
    trial = CandidateRun(subject, weights)
    for each in gradients:
        trial.step(*each)
    return trial


def _steps(subject: Candidate) -> int:
    """How many steps it takes to see a matrix move, and one more; STEPS at least."""
    return max(STEPS, (subject.first_move or 0) + 1)


def _judged(error: float) -> CheckOutcome:
    seen = "the same" if error == 0 else f"{error:.0e} apart in displacement"
    return ok(seen) if error <= SAME else fail(seen)


def order(subject: Candidate) -> CheckOutcome:
    """Check the weights listed the other way round."""
    if subject.noisy:
        return not_applicable("it draws random numbers in the order of the list")
    weights, gradients = subject.weights(), [subject.gradients(t) for t in range(1, STEPS + 1)]
    forth = _run(subject, weights, gradients)
    back = _run(subject, weights[::-1], [each[::-1] for each in gradients])
    return _judged(gap(back.values[::-1], forth.values, weights))


def scalar(subject: Candidate) -> CheckOutcome:
    """A tensor without dimensions against the same number as a vector of one."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    start = draw((1,), 0)
    gradients = [draw((1,), t) for t in range(1, _steps(subject) + 1)]
    try:
        vector = _run(subject, [start], [[g] for g in gradients]).values[0]
    except OptionRefused:
        raise
    except Exception as problem:  # of whatever kind: a rule of matrices alone, which a number says nothing about
        return not_applicable(f"takes no vector of one either: {first_line(problem)}")
    number = _run(subject, [start.reshape(())], [[g.reshape(())] for g in gradients]).values[0].reshape(1)
    if torch.equal(vector, start) and torch.equal(number, start) and subject.first_move is not None:
        return fail("neither moved")
    return _judged(gap([number], [vector], [start]))


def empty(subject: Candidate) -> CheckOutcome:
    """A tensor without elements beside ordinary ones, which must move as they do without it."""
    if subject.noisy:
        return not_applicable("it draws random numbers in the order of the list")
    weights, gradients = subject.weights(), [subject.gradients(t) for t in range(1, STEPS + 1)]
    none = torch.zeros((0, 3) if len(subject.shapes) < 3 else (0,), dtype=torch.float64)
    beside = _run(subject, [none, *weights], [[none, *each] for each in gradients])
    return _judged(gap(beside.values[1:], _run(subject, weights, gradients).values, weights))


def non_contiguous(subject: Candidate) -> CheckOutcome:
    """A transposed matrix, with gradients in both layouts, against a contiguous one."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    start, gradients = draw((4, 3), 0), [draw((4, 3), t) for t in range(1, STEPS + 1)]
    wanted = _run(subject, [start], [[g] for g in gradients]).values
    turned = start.T.contiguous().T
    errors: list[float] = []
    for each in (gradients, [g.T.contiguous().T for g in gradients]):
        errors.append(gap(_run(subject, [turned], [[g] for g in each]).values, wanted, [start]))
    return _judged(max(errors))


def overlapping(subject: Candidate) -> CheckOutcome:
    """A weight whose elements share memory, which cannot mean anything."""
    memory = draw((12,), 0)  # as much as a kernel writes that takes no notice, so that it spoils nothing else
    shared = torch.nn.Parameter(memory[:3].expand(4, 3))
    before = shared.detach().clone()
    try:
        optimizer = subject.over([shared])
        shared.grad = draw((4, 3), 1)
        optimizer.step()
    except OptionRefused as problem:
        return ok(f"refused when built: {problem}")
    except Exception as problem:
        same = torch.equal(shared.detach(), before)
        seen = f"raised {type(problem).__name__} at the step: {first_line(problem)}"
        return ok(seen) if same else fail(f"{seen}; the weights had changed by then")
    return fail("accepted, and stepped")


def zero_weights(subject: Candidate) -> CheckOutcome:
    """A matrix of zeros with a gradient, as zero-initialised layers have it."""
    trial = CandidateRun(subject, [torch.zeros(4, 3, dtype=torch.float64)])
    steps = _steps(subject)
    for t in range(1, steps + 1):
        trial.step(draw((4, 3), t))
    moved = float(trial.values[0].norm())
    if not trial.finite:
        return fail("the weights are not finite")
    return ok(f"moved by {moved:.2g} in {steps} steps") if moved > 0 else fail("never moved")
