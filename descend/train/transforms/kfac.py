"""K-FAC as a training algorithm. `FactorSettings` has its numbers and schedules, `curvature.py` does the work.

For a layer s = W a + b, a₊ = (a, 1), g the gradient of a sample's objective by s, and a mini-batch of n samples:

    A ← ρ A + (1 − ρ) Σ a₊ a₊ᵀ / n            G ← ρ G + (1 − ρ) Σ g gᵀ / (n T)         T positions a sample, 1 unless
                                                                                     it is a convolution
    Ā = A + π λ_A I        Ḡ = G + λ_G / π I      π = √((tr A / dim A) / (tr G / dim G)), or 1
    ∇ ← c Ḡ⁻¹ ∇ Ā⁻¹                              ∇ the gradient of (W, b) as one matrix
    ∇ ← ∇ · min(1, √(κ / (‖∇‖² lr²)))             W and b apart

and then the weights' own rule makes its step with ∇. The first averages are those of the first mini-batch.

Source: Martens and Grosse 2015, https://arxiv.org/abs/1503.05671, section 6.3 for π; Grosse and Martens 2016,
https://arxiv.org/abs/1602.01407 for convolutions; damping over time and κ = 0.001 as in LBANN, after Osawa et al. 2019,
https://arxiv.org/abs/1811.12019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, Unsupported, nearest
from descend.train.algorithms import BatchedIterativeOptimizer, TrainingAlgorithm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run
    from descend.train.stopping import Stop

__all__ = ["KFAC", "FactorSettings", "FirstOrderAlgorithm"]


# ---- settings of K-FAC's Kronecker factors, and how damping and intervals change over the steps
#
#     damping      λ ← (1 − α) λ + α target each step, with α = 2 log₁₀(first / target) / damping_warmup_steps
#     interval     from the first number to the second in a straight line
#
# `kfac.py` has the equations that they enter. Damping over time as in LBANN, after Osawa et al. 2019,
# https://arxiv.org/abs/1811.12019.

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


@dataclass(frozen=True)
class FirstOrderAlgorithm(TrainingAlgorithm):
    """Base of algorithms that change the gradients of mini-batch descent; its limits are theirs.

    Args:
        name: A name for this algorithm in logs.
        first_order_optimizer: What makes the steps, and when to stop.
    """

    name: str = "first-order algorithm"
    first_order_optimizer: BatchedIterativeOptimizer = field(default_factory=BatchedIterativeOptimizer)

    @property
    def stop(self) -> Stop | None:
        """The criterion, where it is of a form that has no text."""
        return self.first_order_optimizer.stop

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        return self.first_order_optimizer.epochs(default)

    def criterion(self) -> Stop | None:
        """See `TrainingAlgorithm.criterion`."""
        return self.first_order_optimizer.criterion()

    def until(self, stop: Stop) -> Self:
        """See `TrainingAlgorithm.until`."""
        return replace(self, first_order_optimizer=self.first_order_optimizer.until(stop))


@dataclass(frozen=True)
class KFAC(FactorSettings, FirstOrderAlgorithm):
    """Mini-batch descent whose gradients are multiplied by inverse Kronecker factors of the Fisher matrix.

    Fully connected and convolution layers have factors: in a graph, and in any nn.Module whose parameters reach
    `torch.nn.functional.linear` or `conv1d` to `conv3d` with one group. All other weights go to their rule as they are;
    a line says which. Factors are sums over samples and counts, so micro-batches change nothing. Samples, and in a
    fully connected layer positions, whose error signal is zero do not count: ignored labels for example.

    Args:
        name: A name for this algorithm in logs.
        first_order_optimizer: What makes the steps, and when to stop.
        damping_act: λ_A: one number, or two, of which the first falls to the second: λ ← (1 − α) λ + α target each
            step, with α = 2 log₁₀(first / target) / damping_warmup_steps.
        damping_err: λ_G, likewise.
        damping_warmup_steps: See `damping_act`.
        kronecker_decay: ρ, above 0 and below 1.
        use_pi: Balance the dampings by π.
        update_intervals: Steps from one update of factors and inverses to the next: one number, or two, of which the
            first goes to the second in a straight line.
        update_interval_steps: Over how many steps it does.
        compute_interval: New inverses only in steps whose number is a multiple of it.
        inverse_strategy: Which ranks invert: "all" of them every factor, "each" those of some layers, "root" the first
            one; the others are given what they have not made. The results are the same.
        disable_layers: Names of layers, spaces between, that go to their rule as they are.
        learning_rate_factor: c.
        use_eigen_decomposition: Invert by eigenvalues instead of Cholesky's factors.
        gradient_bound: κ; math.inf leaves gradients as large as they are. It is our own.
        print_time: Print how long each step's factors, inverses and products took.
        print_matrix: Print the factors at each update.
        print_matrix_summary: Print their sizes, extremes and norms.
        damping_bn_act: Accepted, and said to have no effect: batch norm goes to its rule as it is.
        damping_bn_err: Likewise.
        learning_rate_factor_gru: Likewise for GRU layers.
        distribute_precondition_compute: Accepted, and without effect: every rank multiplies all gradients.
        enable_copy_errors: A matter of LBANN's memory; without effect.
        enable_copy_activations: Likewise.
        kfac_use_interval: Refused.

    Raises:
        ConfigurationError: a number is out of range or a strategy unknown; all of them are named.
        Unsupported: `kfac_use_interval` is set.
    """

    message: ClassVar[str] = "KFAC"

    name: str = "K-FAC"
    damping_bn_act: Numbers = ""
    damping_bn_err: Numbers = ""
    learning_rate_factor_gru: float = 0.0
    distribute_precondition_compute: bool = False
    enable_copy_errors: bool = False
    enable_copy_activations: bool = False
    kfac_use_interval: str = ""

    def __post_init__(self) -> None:
        for name in ("damping_bn_act", "damping_bn_err"):
            object.__setattr__(self, name, as_text(getattr(self, name)))
        object.__setattr__(self, "first_order_optimizer", replace(self.first_order_optimizer, name=self.name))
        if self.kfac_use_interval:
            raise Unsupported(
                f"KFAC: kfac_use_interval={self.kfac_use_interval!r} is not supported, because what it means is "
                "not documented; leave it out and every step is preconditioned"
            )
        super().__post_init__()

    def without_effect(self) -> list[str]:
        """Lines about settings that are of no use here."""
        batch_norm = [name for name in ("damping_bn_act", "damping_bn_err") if getattr(self, name)]
        gru = ["learning_rate_factor_gru"] if self.learning_rate_factor_gru else []
        return [f"KFAC: {name} has no effect: such layers go to their rule as they are" for name in (*batch_norm, *gru)]

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        sgd = _Unnamed(own.pop("first_order_optimizer"))
        return {**own, "sgd": sgd}

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> KFAC:
        """The algorithm from the fields of a text; a zero is a default."""
        own = {name: value for name, value in given.items() if value and name != "sgd"}
        inner = {"first_order_optimizer": given["sgd"]} if "sgd" in given else {}
        return cls(**own, **inner)

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.transforms.check_finite import CheckFinite  # torch comes in here, not with a description
        from descend.train.transforms.curvature import Curvature

        for line in self.without_effect():
            run.say(line)
        with run.transforms.inserted(Curvature(self, run), after=CheckFinite):
            return self.first_order_optimizer.apply(run)


class _Unnamed:
    """A BatchedIterativeOptimizer in the place that has no room for its name."""

    message: ClassVar[str] = "SGD"

    def __init__(self, algorithm: BatchedIterativeOptimizer) -> None:
        self._algorithm = algorithm

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {name: value for name, value in self._algorithm.to_fields().items() if name != "name"}
