"""Schedules at the points where their value is known, and what lint finds in them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.errors import ConfigurationError, RuleError
from descend.optim.schedules import (
    Bert,
    Constant,
    Cosine,
    LargeBatchWarmup,
    MultiStep,
    PiecewisePolynomial,
    Polynomial,
    Ramp,
    Schedule,
    Shifted,
    Step,
    Trapezoid,
    WarmupCosine,
    WarmupLinear,
    WarmupPolynomial,
    lint,
)

LARS_PAPER = PiecewisePolynomial(peak=29.0, warmup_steps=706, steps=2512, final=1e-4, warmup_power=1, decay_power=2)
NESTEROV_PAPER = PiecewisePolynomial(peak=7.05, warmup_steps=706, steps=2512, final=6e-6, warmup_power=2, decay_power=2)

EVERY = [
    Constant(0.1),
    Step(0.1, 4, 0.5, 0.01),
    MultiStep(0.1, (3, 8), 0.3),
    Ramp(0.0, 0.1, 5),
    Ramp(0.0, 0.1, 5, "sqrt"),
    Polynomial(0.1, 20, 0.001, 2),
    Cosine(0.1, 20, 0.002),
    LARS_PAPER,
    Trapezoid(0.1, 3, 5, 4),
    WarmupCosine(0.1, 20, 4, final=0.01),
    WarmupLinear(0.1, 20, 20, initial=0.02),
    WarmupPolynomial(0.1, 20, 0, power=3),
    Bert(0.1, 5, 20),
    Bert(0.1, 5, 20, jump=False),
    LargeBatchWarmup(8, 20, "power2"),
    Ramp(0.0, 0.1, 5).then(Cosine(0.1, 10), 5),
    0.5 * Polynomial(0.1, 20),
    Polynomial(0.1, 20).shifted(-3),
]


@pytest.mark.parametrize(
    "schedule",
    [
        *EVERY,
        Ramp(0.0, 0.1, 0),
        Polynomial(0.1, 0, 0.02),
        Cosine(0.1, 0, 0.02),
        PiecewisePolynomial(0.1, 0, 20),
        PiecewisePolynomial(0.1, 0, 0, final=0.02),
        Trapezoid(0.1, 0, 5, 4),
        Trapezoid(0.1, 0, 5, 0),
        Trapezoid(0.1, 0, 0, 0),
        Bert(0.1, 0, 20),
        Bert(0.1, 0, 20, jump=False),
        MultiStep(0.1, (0, 3)),
    ],
    ids=repr,
)
def test_a_delayed_schedule_waits_at_its_first_rate(schedule):
    if isinstance(schedule, LargeBatchWarmup):  # a factor, whose first update has taken a step of its way already
        assert schedule.shifted(-30)(7) == 1.0
    elif isinstance(schedule, Shifted):
        assert schedule(-30) == schedule.schedule(0)
    else:
        assert [schedule.shifted(-30)(step) for step in (0, 7, 30)] == [schedule(0)] * 3


def test_a_trapezoid_may_be_without_a_way_down():
    assert [Trapezoid(0.1, 2, 3, 0)(step) for step in range(7)] == [0.0, 0.05, 0.1, 0.1, 0.1, 0.0, 0.0]


def test_a_step_that_grows_has_no_length_and_no_error():
    grows = Step(0.1, 3, 2.0, floor=0.5)
    assert grows.length is None
    assert [grows(step) for step in (0, 3, 6, 9)] == [0.1, 0.5, 0.5, 0.8]
    assert grows(10_000) == math.inf
    assert lint(grows, 5_000)[0].kind == "not a rate"
    assert Step(0.1, 3, 1.0, floor=0.5).length == 3


@pytest.mark.parametrize("paper", [LARS_PAPER, NESTEROV_PAPER], ids=["LARS", "Nesterov"])
def test_the_papers_schedule_is_exact_at_its_corners(paper):
    assert paper(0) == 0.0
    assert paper(706) == paper.peak
    assert paper(2512) == paper.final
    assert paper(10**9) == paper.final


def test_the_papers_schedule_between_its_corners():
    """Half-way up with power 2 is a quarter; a third of the way down with power 2 leaves (2/3)²."""
    assert NESTEROV_PAPER(353) == pytest.approx(7.05 / 4)
    third = 706 + (2512 - 706) // 3
    assert NESTEROV_PAPER(third) == pytest.approx(6e-6 + (7.05 - 6e-6) * 4 / 9)


def test_two_implementations_count_one_more_decay_step():
    late = PiecewisePolynomial(29.0, 706, 2512, final=1e-4, extra_decay_steps=1)
    assert late(706) == 29.0
    assert late(2512) == pytest.approx(1e-4 + (29.0 - 1e-4) / 1807**2)
    assert late(2513) == 1e-4


def test_bert_with_and_without_its_jump():
    """At the end of the warm-up the rate falls from peak to peak (1 − t_w/T)."""
    with_jump, without = Bert(1.0, 30, 100), Bert(1.0, 30, 100, jump=False)
    assert with_jump(29) == without(29) == pytest.approx(29 / 30)
    assert with_jump(30) == pytest.approx(0.7)
    assert without(30) == 1.0
    assert with_jump(100) == without(100) == 0.0


def test_mlperfs_bert_falls_by_a_third_at_once():
    """287 warm-up steps of 600, begun 76 steps in: the warm-up ends at step 211 and 48 % of the peak is gone."""
    schedule = Bert(1.0, 287, 600).shifted(76)
    assert schedule(210) == pytest.approx(286 / 287)
    assert schedule(211) == pytest.approx(1 - 287 / 600)


@pytest.mark.parametrize(
    ("shape", "half"), [("linear", 0.5), ("power2", 0.25), ("sqrt", math.sqrt(0.5)), ("jump", 0.0)]
)
def test_warm_up_shapes(shape, half):
    assert Ramp(0.0, 1.0, 10, shape)(5) == pytest.approx(half)
    assert Ramp(0.0, 1.0, 10, shape)(10) == 1.0
    assert LargeBatchWarmup(5, 10, shape)(4) == pytest.approx(1 + 4 * half)


def test_trapezoid():
    schedule = Trapezoid(1.0, 2, 3, 4, final=0.2)
    assert [schedule(t) for t in range(10)] == pytest.approx([0, 0.5, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_cosine():
    assert [Cosine(1.0, 4)(t) for t in (0, 1, 2, 4, 9)] == pytest.approx([1, 0.5 + math.sqrt(0.125), 0.5, 0, 0])
    assert Cosine(1.0, 4, repeats=True)(8) == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
def test_the_last_value_is_held(schedule: Schedule):
    if schedule.length is None:
        return
    assert schedule(schedule.length) == schedule(schedule.length + 1) == schedule(10**7)


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
@settings(max_examples=25)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_it_is_a_function_of_the_step(schedule: Schedule, steps: list[int]):
    """Asked in any order, any number of times, it answers the same; and never a rate below 0."""
    once = {step: schedule(step) for step in steps}
    assert all(schedule(step) == once[step] >= 0 for step in reversed(steps))


def test_composition():
    schedule = 2.0 * Ramp(0.0, 1.0, 4).then(Constant(0.3), 6)
    assert [schedule(t) for t in (0, 2, 5, 6)] == pytest.approx([0, 1, 2, 0.6])
    assert schedule == 2.0 * Ramp(0.0, 1.0, 4).then(Constant(0.3), 6)
    assert Ramp(0.0, 1.0, 4).curve(3) == [(0, 0.0), (1, 0.25), (2, 0.5)]


def kinds(schedule: Schedule, steps: int) -> list[str]:
    return [finding.kind for finding in lint(schedule, steps)]


def test_lint_is_silent_about_a_schedule_that_fits():
    assert lint(Trapezoid(1.0, 20, 50, 30, initial=0.05), 100) == []
    assert lint(Constant(0.1), 100) == []


def test_lint_finds_what_is_wrong():
    assert kinds(LARS_PAPER, 2512) == ["zero first step"]
    assert kinds(Bert(1.0, 287, 600).shifted(76), 524) == ["jump"]
    assert kinds(Ramp(0.1, 1.0, 500), 100) == ["rising at the end", "length"]
    assert kinds(Cosine(1.0, 100, repeats=True), 100) == ["rises after its end"]
    assert kinds(Polynomial(1.0, 1000), 100) == ["length"]
    assert kinds(Polynomial(1.0, 50), 100) == ["length"]
    assert kinds(Constant(0.0), 10) == ["all zero"]
    assert kinds(MultiStep(1.0, (30, 60)), 90) == ["jump"]
    assert kinds(Trapezoid(1.0, 0, 50, 50).then(Ramp(0.0, 1.0, 20), 110), 100) == ["rises after its end", "length"]


def test_a_finding_says_where_and_how_much():
    (finding,) = lint(Bert(1.0, 287, 600).shifted(76), 524)
    assert finding.step == 211
    assert str(finding) == "step 211: the rate goes from 0.996516 to 0.521667, 48% of its peak"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(-1.0), "value must be a number >= 0"),
        (lambda: Constant(10**400), "value must be a number >= 0"),
        (lambda: Step(0.1, 0), "every_steps must be an integer >= 1"),
        (lambda: MultiStep(0.1, (5, 3)), "must rise"),
        (lambda: Ramp(0.0, 1.0, 3, "square"), "shape must be one of"),
        (lambda: Cosine(1.0, 2.5), "counts steps and must be whole"),
        (lambda: PiecewisePolynomial(1.0, 10, 5), "exceeds steps 5"),
        (lambda: lint(Constant(1.0), 0), "at least 1 step"),
    ],
)
def test_what_cannot_be(make, words):
    with pytest.raises(RuleError, match=words):
        make()


def test_the_optimizer_takes_a_schedule():
    import torch

    from descend.optim import SGD

    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = SGD([w], lr=Trapezoid(1.0, 2, 1, 2))
    for _ in range(6):
        w.grad = torch.ones_like(w)
        optimizer.step()
    # by hand: 0 + 0.5 + 1 + 1 + 0.5 + 0
    assert w.item() == pytest.approx(-3.0)


def test_steps_of_exactly_the_limit_are_no_jumps():
    """A tenth of the peak a step: some differences are 0.1 rounded up."""
    assert not [found for found in lint(Trapezoid(1.0, 10, 80, 10, initial=0.1), 100) if found.kind == "jump"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(0.1).then(0.2, 5), "second must be a schedule|schedule must be a schedule"),
        (lambda: Constant(0.1).then(Constant(0.2), -5), "at_step must be an integer >= 0, got -5"),
        (lambda: Constant(0.1).then(Constant(0.2), 3.5), "at_step must be an integer >= 0, got 3.5"),
        (lambda: Constant(0.1).shifted("3"), "by_steps must be a number of steps, got '3'"),
        (lambda: MultiStep(0.1, 5), "at_steps must be integers >= 0, got 5"),
        (lambda: MultiStep(0.1, (3, 5.5)), "at_steps must be integers >= 0"),
        (lambda: MultiStep(0.1, ("3",)), "at_steps must be integers >= 0"),
        (lambda: Ramp(0.1, 0.2, 5, shape=3), "shape must be one of linear"),
        (lambda: lint(0.1, 10), "lint takes a schedule of descend.optim.schedules and got 0.1"),
        (lambda: lint(Constant(0.1), 2.5), "at least 1 step, and steps is 2.5"),
        (lambda: lint(Constant(0.1), 5, jump=-1), "jump must be a number > 0"),
    ],
)
def test_parts_of_another_kind_are_errors(make, words):
    with pytest.raises(RuleError, match=words):
        make()


def test_a_list_of_steps_is_as_good_as_a_tuple():
    assert MultiStep(0.1, [3, 8.0]) == MultiStep(0.1, (3, 8))
    assert hash(MultiStep(0.1, [3, 8])) == hash(MultiStep(0.1, (3, 8)))


def test_numbers_of_numpy_are_numbers():
    schedule = Trapezoid(np.float32(0.5), np.int64(10), np.int32(80), np.float64(10.0))
    assert schedule == Trapezoid(0.5, 10, 80, 10)
    assert type(schedule(3)) is float
    assert Constant(0.1).then(Constant(0.2), np.int64(5))(5) == 0.2


def torch_rates(optimizer, scheduler, steps):
    """The rates that one of torch's schedulers gives to the first updates."""
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("ours", "after"),
    [
        (WarmupCosine(0.4, 20, 5, initial=0.1, final=0.02), ("CosineAnnealingLR", {"T_max": 15, "eta_min": 0.02})),
        (
            WarmupLinear(0.4, 20, 5, initial=0.1),
            ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 15}),
        ),
        (WarmupPolynomial(0.4, 20, 5, initial=0.1, power=3), ("PolynomialLR", {"total_iters": 15, "power": 3})),
    ],
)
def test_a_warmup_and_a_way_down_are_two_schedulers_of_torch_in_a_row(ours, after):
    from torch.optim import lr_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    up = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=5)
    down = getattr(lr_scheduler, after[0])(optimizer, **after[1])
    sequence = lr_scheduler.SequentialLR(optimizer, [up, down], milestones=[5])
    assert [ours(step) for step in range(21)] == pytest.approx(torch_rates(optimizer, sequence, 21), abs=1e-12)
    assert ours.length == 20


def test_a_warmup_longer_than_the_schedule_is_refused():
    with pytest.raises(RuleError, match="WarmupCosine: warmup_steps 30 exceeds steps 20"):
        WarmupCosine(0.1, 20, 30)


def test_a_word_of_other_libraries_is_answered_with_the_schedule_that_has_it():
    with pytest.raises(ConfigurationError, match=r"Cosine has no option 'warmup_steps'; a warm-up .* WarmupCosine"):
        Cosine(0.1, 20, warmup_steps=2)
    with pytest.raises(ConfigurationError, match="Step has no option 'every'; did you mean 'every_steps'"):
        Step(0.1, every=3)
