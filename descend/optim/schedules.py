"""Learning-rate schedules: pure functions of the number of updates already applied.

    step 0 is the first update; a schedule of n steps reaches its final rate at step n and holds it for ever.
    Every length is in steps (updates), every rate in the units of the rule's learning rate.

A schedule is a frozen value, so it prints as what it is, compares by value, and needs no saving: a run that continues
asks it for the next step. Schedules compose: `a.then(b, at_step=100)`, `0.5 * a`, `a.shifted(10)`. `curve` gives the
points of a plot and `lint` what looks like a mistake.

Source of the piecewise polynomial: Nado et al. 2021, https://arxiv.org/abs/2102.06356; of the schedule with a jump: the
BERT code, whose decay clock starts at 0 and not where the warm-up ends.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from descend.arguments import is_finite
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Bert",
    "Constant",
    "Cosine",
    "Joined",
    "LargeBatchWarmup",
    "MultiStep",
    "PiecewisePolynomial",
    "Polynomial",
    "Ramp",
    "Scaled",
    "Schedule",
    "ScheduleFinding",
    "Shifted",
    "Step",
    "Trapezoid",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupPolynomial",
    "lint",
]

Shape = Literal["linear", "power2", "sqrt", "jump"]
SHAPES = ("linear", "power2", "sqrt", "jump")


def shaped(x: float, shape: str) -> float:
    """How far a warm-up of this shape is at the part x of its length, both from 0 to 1."""
    if x >= 1:
        return 1.0
    return {"linear": x, "power2": x * x, "sqrt": math.sqrt(max(x, 0.0)), "jump": 0.0}[shape]


def _check(owner: object, *, rates: tuple[str, ...] = (), steps: tuple[str, ...] = (), shape: str = "linear") -> None:
    problems: list[str] = []
    title = type(owner).__name__
    for name in (*rates, *steps):
        value = getattr(owner, name)
        if not is_finite(value) or value < 0:
            problems.append(f"{title}: {name} must be a number >= 0, got {value!r}")
        elif name in steps and value != int(value):
            problems.append(f"{title}: {name} counts steps and must be whole; it is {value!r}")
        elif not isinstance(value, (int, float)):  # one of NumPy's, whose own arithmetic may be of low precision
            object.__setattr__(owner, name, int(value) if isinstance(value, Integral) else float(value))
    if shape not in SHAPES:
        close = nearest(str(shape), SHAPES)
        problems.append(f"{title}: shape must be one of {', '.join(SHAPES)}, got {shape!r}{close}")
    if problems:
        raise RuleError(problems)


def _check_parts(owner: object, *, schedules: tuple[str, ...], steps: tuple[str, ...] = ()) -> None:
    """Refuse what is not a schedule, and a shift or a place that is not a finite number; below 0 is a delay."""
    title, problems = type(owner).__name__, list[str]()
    for name in (*schedules, *steps):
        value = getattr(owner, name)
        if name in schedules and not isinstance(value, Schedule):
            problems.append(f"{title}: {name} must be a schedule of descend.optim.schedules, got {value!r}")
        if name in steps and not is_finite(value):
            problems.append(f"{title}: {name} must be a number of steps, got {value!r}")
    if problems:
        raise RuleError(problems)


class Schedule(metaclass=StrictKeywords):
    """A rate for every step. Subclasses are frozen dataclasses and define `rate`."""

    said_instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("warmup_steps", "warmup", "num_warmup_steps"),
        "a warm-up and a way down are one schedule in WarmupCosine, WarmupLinear and WarmupPolynomial",
    )

    def rate(self, step: int) -> float:
        """The rate after `step` updates have been applied; below 0, where a delayed schedule waits, that of step 0."""
        raise NotImplementedError

    @property
    def length(self) -> int | None:
        """The step from which on the rate stays as it is; None if it never does."""
        raise NotImplementedError

    def __call__(self, step: int) -> float:
        """The rate of the update that follows `step` updates."""
        return self.rate(step)

    def curve(self, steps: int) -> list[tuple[int, float]]:
        """The points (step, rate) of a run of `steps` updates, for a plot."""
        return [(step, self.rate(step)) for step in range(steps)]

    def then(self, schedule: Schedule, at_step: int) -> Joined:
        """This schedule up to `at_step`, from there on another that starts at its own step 0.

        Raises:
            RuleError: `schedule` is none, or at_step is not an integer >= 0.
        """
        if not is_finite(at_step) or at_step < 0 or at_step % 1:
            raise RuleError(f"then: at_step must be an integer >= 0, got {at_step!r}")
        return Joined(self, Shifted(schedule, -at_step), at_step)

    def shifted(self, by_steps: int) -> Shifted:
        """This schedule as it will be `by_steps` later; a negative number delays it."""
        return Shifted(self, by_steps)

    def __mul__(self, factor: float) -> Scaled:
        """This schedule with every rate times `factor`."""
        return Scaled(self, factor)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Constant(Schedule):
    """One rate for ever."""

    value: float

    def __post_init__(self) -> None:
        _check(self, rates=("value",))

    def rate(self, step: int) -> float:
        """The value."""
        return self.value

    @property
    def length(self) -> int:
        """0: it never changes."""
        return 0


@dataclass(frozen=True)
class Step(Schedule):
    """`initial` times `factor` after each `every_steps` steps, not below `floor`."""

    initial: float
    every_steps: int
    factor: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self, rates=("initial", "factor", "floor"), steps=("every_steps",))
        if self.every_steps < 1:
            raise RuleError(f"Step: every_steps must be an integer >= 1, got {self.every_steps!r}")

    def rate(self, step: int) -> float:
        """initial · factor^⌊step / every_steps⌋."""
        falls = max(step, 0) // self.every_steps
        if not falls:
            return self.initial
        try:
            return max(self.floor, self.initial * self.factor**falls)
        except OverflowError:  # a factor above 1; `lint` and the engine refuse an infinite rate by name
            return math.inf if self.initial else self.floor

    @property
    def length(self) -> int | None:
        """Where the floor is reached, if it ever is."""
        if self.factor == 1 and self.initial >= self.floor:
            return 0
        if self.initial == 0 or (self.factor <= 1 and self.initial <= self.floor) or self.factor == 0:
            return self.every_steps
        if self.factor > 1 or self.floor == 0:
            return None
        return math.ceil(math.log(self.floor / self.initial) / math.log(self.factor)) * self.every_steps


@dataclass(frozen=True)
class MultiStep(Schedule):
    """`initial` times `factor` from each of the steps `at_steps` on."""

    initial: float
    at_steps: tuple[int, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check(self, rates=("initial", "factor"))
        try:
            steps = [
                int(at) if isinstance(at, float) and at.is_integer() else operator.index(at) for at in self.at_steps
            ]
        except TypeError:
            raise RuleError(f"MultiStep: at_steps must be integers >= 0, got {self.at_steps!r}") from None
        object.__setattr__(self, "at_steps", tuple(steps))
        if steps != sorted(set(steps)) or any(at < 0 for at in steps):
            raise RuleError(f"MultiStep: at_steps must rise and be at least 0; they are {self.at_steps!r}")

    def rate(self, step: int) -> float:
        """initial · factor^(how many of at_steps have been reached)."""
        return self.initial * self.factor ** sum(max(step, 0) >= at for at in self.at_steps)

    @property
    def length(self) -> int:
        """The last of at_steps."""
        return max(self.at_steps, default=0)


@dataclass(frozen=True)
class Ramp(Schedule):
    """From `initial` to `final` in `steps` steps: x, x², √x, or a jump at the end."""

    initial: float
    final: float
    steps: int
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        _check(self, rates=("initial", "final"), steps=("steps",), shape=self.shape)

    def rate(self, step: int) -> float:
        """initial + (final − initial) shape(step / steps)."""
        step = max(step, 0)
        if step >= self.steps:
            return self.final
        return self.initial + (self.final - self.initial) * shaped(step / self.steps, self.shape)

    @property
    def length(self) -> int:
        """Its steps."""
        return self.steps


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From `initial` to `final` in `steps` steps: final + (initial − final)(1 − step/steps)^power."""

    initial: float
    steps: int
    final: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _check(self, rates=("initial", "final", "power"), steps=("steps",))

    def rate(self, step: int) -> float:
        """The polynomial."""
        step = max(step, 0)
        if step >= self.steps:
            return self.final
        return self.final + (self.initial - self.final) * (1 - step / self.steps) ** self.power

    @property
    def length(self) -> int:
        """Its steps."""
        return self.steps


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine wave from `initial` to `final` in `steps` steps; with `repeats` it rises again, as torch's does."""

    initial: float
    steps: int
    final: float = 0.0
    repeats: bool = False

    def __post_init__(self) -> None:
        _check(self, rates=("initial", "final"), steps=("steps",))

    def rate(self, step: int) -> float:
        """final + (initial − final)(1 + cos(π step/steps))/2."""
        if self.steps == 0 or (step >= self.steps and not self.repeats):
            return self.final
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * max(step, 0) / self.steps)) / 2

    @property
    def length(self) -> int | None:
        """Its steps, unless it repeats."""
        return None if self.repeats else self.steps


@dataclass(frozen=True)
class PiecewisePolynomial(Schedule):
    """A polynomial up and a polynomial down, with a power each.

        t ≤ t_w   initial + (peak − initial)(t/t_w)^warmup_power
        t > t_w   final + (peak − final)((T − t)/(T − t_w))^decay_power

    Args:
        peak: Rate at step t_w.
        warmup_steps: t_w.
        steps: T, where `final` is reached.
        initial: Rate at step 0.
        final: Rate from step T on.
        warmup_power: Power of the way up.
        decay_power: Power of the way down.
        extra_decay_steps: Added to T − t_w in the fraction; 1 is how two public implementations of the schedule count,
            which then never reach `final` before step T + 1.
    """

    peak: float
    warmup_steps: int
    steps: int
    initial: float = 0.0
    final: float = 0.0
    warmup_power: float = 1.0
    decay_power: float = 2.0
    extra_decay_steps: int = 0

    def __post_init__(self) -> None:
        _check(
            self,
            rates=("peak", "initial", "final", "warmup_power", "decay_power"),
            steps=("warmup_steps", "steps", "extra_decay_steps"),
        )
        if self.warmup_steps > self.steps:
            raise RuleError(
                f"PiecewisePolynomial: warmup_steps {self.warmup_steps} exceeds steps {self.steps}, the sum of both"
            )

    def rate(self, step: int) -> float:
        """The two polynomials."""
        step = max(step, 0)
        if step < self.warmup_steps:
            x = step / self.warmup_steps
            return self.initial + (self.peak - self.initial) * x**self.warmup_power
        end = self.steps + self.extra_decay_steps
        if step >= end:
            return self.final
        x = (end - step) / (end - self.warmup_steps)
        return self.final + (self.peak - self.final) * x**self.decay_power

    @property
    def length(self) -> int:
        """T."""
        return self.steps + self.extra_decay_steps


@dataclass(frozen=True)
class Trapezoid(Schedule):
    """Up, level, down ("warm-up, stable, decay"): `warmup_steps`, `stable_steps`, `decay_steps`, all straight."""

    peak: float
    warmup_steps: int
    stable_steps: int
    decay_steps: int
    initial: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(self, rates=("peak", "initial", "final"), steps=("warmup_steps", "stable_steps", "decay_steps"))

    def rate(self, step: int) -> float:
        """The three pieces."""
        step = max(step, 0)
        if step < self.warmup_steps:
            return self.initial + (self.peak - self.initial) * step / self.warmup_steps
        past = step - self.warmup_steps - self.stable_steps
        if past < 0:
            return self.peak
        if past >= self.decay_steps:
            return self.final
        return self.peak + (self.final - self.peak) * past / self.decay_steps

    @property
    def length(self) -> int:
        """The sum of the three."""
        return self.warmup_steps + self.stable_steps + self.decay_steps


@dataclass(frozen=True)
class _Warmup(Schedule):
    """What the schedules with a warm-up share; subclasses define `fall`."""

    peak: float
    steps: int
    warmup_steps: int
    initial: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(self, rates=("peak", "initial", "final"), steps=("steps", "warmup_steps"))
        if self.warmup_steps > self.steps:
            raise RuleError(
                f"{type(self).__name__}: warmup_steps {self.warmup_steps} exceeds steps {self.steps}, which counts the "
                "warm-up too"
            )

    def fall(self, x: float) -> float:
        """How much of the way down is left at the part x of it, both from 0 to 1."""
        raise NotImplementedError

    def rate(self, step: int) -> float:
        """The two pieces."""
        step = max(step, 0)
        if step >= self.steps:
            return self.final
        if step < self.warmup_steps:
            return self.initial + (self.peak - self.initial) * step / self.warmup_steps
        x = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return self.final + (self.peak - self.final) * self.fall(x)

    @property
    def length(self) -> int:
        """T."""
        return self.steps


@dataclass(frozen=True)
class WarmupCosine(_Warmup):
    """A straight warm-up, then half a cosine wave down; `steps` is the length of both together.

        t < t_w   initial + (peak − initial) t / t_w
        t ≥ t_w   final + (peak − final) fall((t − t_w) / (T − t_w)),   fall(x) = (1 + cos πx) / 2

    Args:
        peak: Rate at step t_w.
        steps: T, the length of the whole schedule, warm-up included.
        warmup_steps: t_w, at most T; 0 begins at the peak.
        initial: Rate at step 0. With 0 the first update changes nothing, as in most public implementations.
        final: Rate from step T on.

    Raises:
        RuleError: a rate or a number of steps is negative or no number, or the warm-up is longer than the whole.
    """

    def fall(self, x: float) -> float:
        """(1 + cos πx) / 2."""
        return (1 + math.cos(math.pi * x)) / 2


@dataclass(frozen=True)
class WarmupLinear(_Warmup):
    """As `WarmupCosine`, with a straight way down, fall(x) = 1 − x."""

    def fall(self, x: float) -> float:
        """1 − x."""
        return 1 - x


@dataclass(frozen=True)
class WarmupPolynomial(_Warmup):
    """As `WarmupCosine`, with a polynomial way down, fall(x) = (1 − x)^power."""

    power: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, rates=("power",))

    def fall(self, x: float) -> float:
        """(1 − x)^power."""
        return (1 - x) ** self.power


@dataclass(frozen=True)
class Bert(Schedule):
    """The schedule of the BERT code: a straight warm-up, then peak · (1 − t/T)^power.

    Its decay clock starts at step 0, so the rate falls from peak to peak · (1 − t_w/T)^power where the warm-up ends.

    Args:
        peak: Rate that the warm-up goes to.
        warmup_steps: t_w.
        steps: T, where the rate reaches 0.
        power: Power of the way down.
        jump: False starts the decay clock at t_w, so that there is no fall.
    """

    peak: float
    warmup_steps: int
    steps: int
    power: float = 1.0
    jump: bool = True

    def __post_init__(self) -> None:
        _check(self, rates=("peak", "power"), steps=("warmup_steps", "steps"))

    def rate(self, step: int) -> float:
        """The two pieces."""
        step = max(step, 0)
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if step >= self.steps:
            return 0.0
        start = 0 if self.jump else self.warmup_steps
        return self.peak * (1 - (step - start) / (self.steps - start)) ** self.power

    @property
    def length(self) -> int:
        """T, or the warm-up if that is longer."""
        return max(self.steps, self.warmup_steps)


@dataclass(frozen=True)
class LargeBatchWarmup(Schedule):
    """LBSGD's factor on the rate, from 1 to `batch_scale`: 1 + (batch_scale − 1) shape(n / warmup_steps).

    n = step + 1 counts the update that the rate is for. With at most one warm-up step it is `batch_scale` at once.
    """

    batch_scale: float
    warmup_steps: float
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        _check(self, rates=("batch_scale", "warmup_steps"), shape=self.shape)

    def rate(self, step: int) -> float:
        """The factor."""
        n = step + 1
        if n >= self.warmup_steps:
            return float(self.batch_scale)
        if self.warmup_steps <= 1:
            return 1.0
        return 1 + (self.batch_scale - 1) * shaped(max(n, 0) / self.warmup_steps, self.shape)

    @property
    def length(self) -> int:
        """The warm-up, counted from its first update."""
        return max(math.ceil(self.warmup_steps) - 1, 0)


@dataclass(frozen=True)
class Joined(Schedule):
    """One schedule before `at_step` and another from there on, both asked for the step itself."""

    first: Schedule
    second: Schedule
    at_step: int

    def __post_init__(self) -> None:
        _check_parts(self, schedules=("first", "second"), steps=("at_step",))

    def rate(self, step: int) -> float:
        """The one that is on."""
        return self.first.rate(step) if step < self.at_step else self.second.rate(step)

    @property
    def length(self) -> int | None:
        """That of the second."""
        last = self.second.length
        return None if last is None else max(last, self.at_step)


@dataclass(frozen=True)
class Shifted(Schedule):
    """Another schedule, asked for `by_steps` more."""

    schedule: Schedule
    by_steps: int

    def __post_init__(self) -> None:
        _check_parts(self, schedules=("schedule",), steps=("by_steps",))

    def rate(self, step: int) -> float:
        """The other one's rate at step + by_steps."""
        return self.schedule.rate(step + self.by_steps)

    @property
    def length(self) -> int | None:
        """That of the other, seen from here."""
        last = self.schedule.length
        return None if last is None else max(last - self.by_steps, 0)


@dataclass(frozen=True)
class Scaled(Schedule):
    """Another schedule with every rate times `factor`."""

    schedule: Schedule
    factor: float

    def __post_init__(self) -> None:
        _check_parts(self, schedules=("schedule",))
        _check(self, rates=("factor",))

    def rate(self, step: int) -> float:
        """The product."""
        return self.factor * self.schedule.rate(step)

    @property
    def length(self) -> int | None:
        """That of the other."""
        return self.schedule.length


@dataclass(frozen=True)
class ScheduleFinding:
    """Something about a schedule that is often a mistake.

    Attributes:
        kind: "zero first step", "jump", "rising at the end", "rises after its end", "length", "all zero", "not a rate".
        step: Where it shows.
        text: One sentence with the numbers.
    """

    kind: str
    step: int
    text: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


def lint(schedule: Schedule, steps: int, *, jump: float = 0.1) -> list[ScheduleFinding]:
    """What looks like a mistake when a run of `steps` updates uses this schedule.

    Args:
        schedule: The schedule.
        steps: Updates in the run.
        jump: Change from one step to the next that counts as a jump, as a part of the largest rate.

    Returns:
        Findings in the order of their steps; none for a schedule that fits the run.

    Raises:
        RuleError: It is not a schedule; steps is not an integer >= 1, or jump none above 0.
    """
    if not isinstance(cast("object", schedule), Schedule):
        raise RuleError(f"lint takes a schedule of descend.optim.schedules and got {schedule!r}")
    if not isinstance(cast("object", steps), int) or steps < 1:
        raise RuleError(f"lint: a run has at least 1 step, and steps is {steps!r}")
    if not is_finite(jump) or jump <= 0:
        raise RuleError(f"lint: jump must be a number > 0, got {jump!r}")
    rates = [rate for _, rate in schedule.curve(steps)]
    bad = [step for step, rate in enumerate(rates) if not math.isfinite(rate) or rate < 0]
    if bad:
        text = f"the rate is {rates[bad[0]]!r}; {len(bad)} of {steps} steps are like this"
        return [ScheduleFinding("not a rate", bad[0], text)]
    peak = max(rates)
    if peak == 0:
        return [ScheduleFinding("all zero", 0, f"the rate is 0 in all {steps} steps: nothing is learned")]
    found = [*_at_the_start(rates), *_jumps(rates, peak, jump), *_at_the_end(schedule, rates)]
    return sorted(found, key=lambda finding: finding.step)


def _at_the_start(rates: list[float]) -> list[ScheduleFinding]:
    if rates[0] > 0:
        return []
    zeros = next(step for step, rate in enumerate(rates) if rate > 0)
    subject = (
        f"the first {zeros} updates have rate 0 and change" if zeros > 1 else "the first update has rate 0 and changes"
    )
    return [ScheduleFinding("zero first step", 0, f"{subject} nothing; begin the warm-up above 0")]


def _jumps(rates: list[float], peak: float, jump: float) -> list[ScheduleFinding]:
    return [
        ScheduleFinding(
            "jump",
            step,
            f"the rate goes from {before:.6g} to {after:.6g}, {abs(after - before) / peak:.0%} of its peak",
        )
        for step, (before, after) in enumerate(itertools.pairwise(rates), start=1)
        if abs(after - before) > jump * peak * (1 + 1e-9)  # a part of exactly `jump`, rounded up, is no jump
    ]


def _at_the_end(schedule: Schedule, rates: list[float]) -> list[ScheduleFinding]:
    steps, last = len(rates), len(rates) - 1
    found: list[ScheduleFinding] = []
    if steps > 1 and rates[-1] > rates[-2]:
        text = f"the rate still rises when the run ends: its warm-up is longer than the {steps} steps"
        found.append(ScheduleFinding("rising at the end", last, text))
    beyond = [schedule.rate(step) for step in range(steps, 2 * steps + 1)]
    if not found and max(beyond) > rates[-1] * (1 + 1e-9):
        at = steps + beyond.index(max(beyond))
        text = f"past the end the rate rises again, from {rates[-1]:.6g} to {max(beyond):.6g} at step {at}"
        found.append(ScheduleFinding("rises after its end", last, text))
    length = schedule.length
    if length is not None and length > steps:
        text = f"the schedule is {length} steps long and the run has {steps}, so it is cut at rate {rates[-1]:.6g}"
        found.append(ScheduleFinding("length", last, text))
    if length is not None and 0 < length < steps * 0.9 and rates[-1] < max(rates) * 1e-3:
        text = f"the schedule ends after {length} of {steps} steps and the rest has rate {rates[-1]:.6g}"
        found.append(ScheduleFinding("length", length, text))
    return found
