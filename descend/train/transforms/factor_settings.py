"""Settings of K-FAC's Kronecker factors, and how damping and intervals change over the steps.

    damping      λ ← (1 − α) λ + α target each step, with α = 2 log₁₀(first / target) / damping_warmup_steps
    interval     from the first number to the second in a straight line

`kfac.py` has the equations that they enter. Damping over time as in LBANN, after Osawa et al. 2019,
https://arxiv.org/abs/1811.12019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, nearest

__all__ = ["Damping", "FactorSettings", "Numbers", "UpdateInterval", "as_text"]

Numbers = str | float | Sequence[float]

_STRATEGIES = ("all", "each", "root")
_POSITIVE = (
    "damping_warmup_steps",
    "update_interval_steps",
    "compute_interval",
    "learning_rate_factor",
    "gradient_bound",
)


@dataclass(frozen=True)
class Damping:
    """A damping that falls.

    Args:
        first: λ before the first step.
        target: What it falls to.
        steps: Over about how many steps.
    """

    first: float
    target: float
    steps: int

    def at(self, step: int) -> float:
        """λ of update number `step`, from 1."""
        if self.first == self.target:
            return self.first
        alpha = 2 * math.log10(self.first / self.target) / self.steps
        return self.target + (self.first - self.target) * (1 - alpha) ** step


@dataclass(frozen=True)
class UpdateInterval:
    """Steps from one update of the factors to the next.

    Args:
        first: At the first step.
        target: From step `steps` + 1 on.
        steps: Over how many steps it changes.
    """

    first: float
    target: float
    steps: int

    def at(self, step: int) -> int:
        """The interval at update number `step`, from 1."""
        return int(self.first + (self.target - self.first) * min((step - 1) / self.steps, 1.0))


@dataclass(frozen=True)
class FactorSettings:
    """What the preconditioner needs to know; the arguments are those of `KFAC`.

    Raises:
        ConfigurationError: a number is out of range or a strategy unknown; all of them are named.
    """

    damping_act: Numbers = "0.03"
    damping_err: Numbers = "0.03"
    damping_warmup_steps: int = 100
    kronecker_decay: float = 0.99
    use_pi: bool = False
    update_intervals: Numbers = "1"
    update_interval_steps: int = 1
    compute_interval: int = 1
    inverse_strategy: str = "all"
    disable_layers: str = ""
    learning_rate_factor: float = 1.0
    use_eigen_decomposition: bool = False
    gradient_bound: float = 0.001
    print_time: bool = False
    print_matrix: bool = False
    print_matrix_summary: bool = False

    def __post_init__(self) -> None:
        for name in ("damping_act", "damping_err", "update_intervals"):
            object.__setattr__(self, name, as_text(getattr(self, name)))
        for name in ("damping_warmup_steps", "kronecker_decay"):
            if getattr(self, name) == 0 and not refused(Deviation.KFAC_ZEROS, f"K-FAC: {name} is 0"):
                object.__setattr__(self, name, getattr(FactorSettings, name))
        if problems := [*self._wrong_numbers(), *self._wrong_choices()]:
            raise ConfigurationError([f"KFAC: {problem}" for problem in problems])

    def dampings(self) -> tuple[Damping, Damping]:
        """λ_A and λ_G."""
        of_a, of_g = _ends(self.damping_act), _ends(self.damping_err)
        return Damping(*of_a, self.damping_warmup_steps), Damping(*of_g, self.damping_warmup_steps)

    def interval(self) -> UpdateInterval:
        """Steps from one update of the factors to the next."""
        return UpdateInterval(*_ends(self.update_intervals), self.update_interval_steps)

    def _wrong_numbers(self) -> list[str]:
        problems = [
            f"{name} is {getattr(self, name)!r}; expected a number above 0"
            for name in _POSITIVE
            if not getattr(self, name) > 0
        ]
        for name in ("damping_act", "damping_err", "update_intervals"):
            problems += _wrong_list(name, str(getattr(self, name)), falling=name != "update_intervals")
        if not 0 < self.kronecker_decay < 1:
            problems.append(
                f"kronecker_decay is {self.kronecker_decay!r}; expected above 0 and below 1 (0.99 is usual)"
            )
        return problems

    def _wrong_choices(self) -> list[str]:
        if self.inverse_strategy in _STRATEGIES:
            return []
        hint = nearest(self.inverse_strategy, _STRATEGIES)
        return [f"inverse_strategy is {self.inverse_strategy!r}; expected all, each or root{hint}"]


def as_text(value: Numbers) -> str:
    """Numbers as LBANN's text has them: spaces between."""
    if isinstance(value, str):
        return value
    return " ".join(repr(number) for number in (value if isinstance(value, Sequence) else (value,)))


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def _ends(value: Numbers) -> tuple[float, float]:
    """The first and the last of one or two numbers."""
    found = _numbers(str(value))
    return found[0], found[-1]


def _wrong_list(name: str, text: str, falling: bool) -> list[str]:
    """What is wrong with one or two numbers above 0."""
    try:
        found = _numbers(text)
    except ValueError:
        found = []
    if len(found) not in (1, 2) or not all(0 < number < math.inf for number in found):
        return [f"{name} is {text!r}; expected one or two numbers above 0, spaces between, such as '3e-2'"]
    if falling and found[0] < found[-1]:
        return [f"{name} is {text!r}; expected the first number to fall to the second"]
    if not falling and any(number < 1 for number in found):
        return [f"{name} is {text!r}; expected integers of at least 1"]
    return []
