"""Does every kind of tensor get the same treatment: any order, any number of dimensions, any layout, zero weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, first_line, gap
from descend.conformance.report import CheckOutcome, fail, not_applicable, ok

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["empty", "non_contiguous", "order", "overlapping", "scalar", "zero_weights"]

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
    """The same weights listed the other way round."""
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
