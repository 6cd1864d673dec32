"""Update rules on a quadratic, one coordinate at a time: linear maps of (θ, what the rule remembers).

s ← F s + w ξ          so the second moments C = E[s sᵀ] obey   C ← F C Fᵀ + (c/B) w wᵀ

SGD          θ ← θ − η g
heavy ball   v ← β v + g,  θ ← θ − η v
Nesterov     v ← β v + g,  θ ← θ − η (β v + g)
averaged     a ← γ a + (1 − γ) θ, and the risk is that of a
preconditioned by H^p, as Adam is once its second moments have settled: the same on h^(1−p), c h^(−p), θ h^(p/2)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import ConfigurationError, nearest
from descend.study.simulate.problem import Modes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOMENTA", "Method", "method"]

MOMENTA = ("sgd", "heavy_ball", "nesterov")
_ALIASES = {"momentum": "heavy_ball", "heavyball": "heavy_ball", "nag": "nesterov"}


@dataclass(frozen=True)
class Method:
    """An update rule, without its numbers.

    Args:
        momentum: "sgd", "heavy_ball" or "nesterov".
        averaged: Whether the running average of the iterates is what counts.
        preconditioner: p, from 0 (none) to 1 (Newton).
    """

    momentum: str = "sgd"
    averaged: bool = False
    preconditioner: float = 0.0

    def __post_init__(self) -> None:
        if self.momentum not in MOMENTA:
            close = nearest(self.momentum, (*MOMENTA, *_ALIASES))
            raise ConfigurationError(f"no rule '{self.momentum}'{close or ';'} there are {', '.join(MOMENTA)}")
        if not 0 <= self.preconditioner <= 1:
            raise ConfigurationError(f"preconditioner is {self.preconditioner!r}; expected a power from 0 to 1")

    @property
    def remembers(self) -> bool:
        """Whether there is a momentum buffer."""
        return self.momentum != "sgd"

    @property
    def name(self) -> str:
        """As `method` reads it: `heavy_ball+average:0.5`."""
        power = f":{self.preconditioner:g}" if self.preconditioner else ""
        return f"{self.momentum}{'+average' if self.averaged else ''}{power}"

    def modes(self, modes: Modes) -> Modes:
        """The problem as the rule sees it; the risk is the same in these coordinates."""
        power = modes.h**self.preconditioner
        return Modes(modes.h / power, modes.c / power, modes.start * power, modes.weight)

    def stable_below(self, h: float, beta: float) -> float:
        """The learning rate at which the coordinate of curvature h begins to grow."""
        if self.momentum == "nesterov":
            return 2 * (1 + beta) / (h * (1 + 2 * beta))
        return 2 * (1 + beta) / h

    def system(
        self, h: NDArray[np.float64], rate: NDArray[np.float64], beta: NDArray[np.float64], gamma: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """F and w of the equations above.

        Args:
            h: (modes,).
            rate: η, (settings,).
            beta: β, (settings,).
            gamma: γ, (settings,).

        Returns:
            F (k, k, settings, modes) and w (k, settings, modes), over (θ[, v][, a]).
        """
        eta, b, y = (x[:, None] + 0 * h for x in (rate, beta, gamma))
        if self.momentum == "sgd":
            rows, noise = [[1 - eta * h]], [-eta]
        else:
            reach = 1 + b if self.momentum == "nesterov" else 1 + 0 * b
            pull = b * b if self.momentum == "nesterov" else b
            rows = [[1 - eta * h * reach, -eta * pull], [h + 0 * eta, b]]
            noise = [-eta * reach, 1 + 0 * b]
        if self.averaged:
            rows = [[*row, 0 * b] for row in rows]
            rows.append([(1 - y) * entry for entry in rows[0][:-1]] + [y])
            noise.append((1 - y) * noise[0])
        return np.array(rows), np.array(noise)

    def begin(self, start: NDArray[np.float64], settings: int) -> NDArray[np.float64]:
        """C before the first step: nothing in the buffer, the average at the start."""
        size = 1 + self.remembers + self.averaged
        moments = np.zeros((size, size, settings, len(start)))
        places = [0, size - 1] if self.averaged else [0]
        for row in places:
            for column in places:
                moments[row, column] = start
        return moments

    @property
    def counts(self) -> int:
        """Which entry of s has the risk: θ, or the average behind everything else."""
        return -1 if self.averaged else 0


def method(rule: str | Method) -> Method:
    """A rule from its name: `sgd`, `heavy_ball`, `nesterov`, with `+average` and `:POWER` of a preconditioner.

    Raises:
        ConfigurationError: there is no such rule.
    """
    if isinstance(rule, Method):
        return rule
    text = str(rule).strip().lower().replace("-", "_").replace(" ", "_")
    found = re.fullmatch(r"(\w+?)(\+(?:average|ema))?(?::(\d+(?:\.\d*)?|\.\d+))?", text)
    if found is None:
        raise ConfigurationError(f"rule '{rule}' is not of the form NAME[+average][:POWER], such as heavy_ball:0.5")
    name = _ALIASES.get(found[1], found[1])
    return Method(name, averaged=found[2] is not None, preconditioner=float(found[3] or 0))
