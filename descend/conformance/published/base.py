"""What a published rule is: its constants, and its arithmetic in NumPy's float64.

These are restatements from the papers that share no line with `descend.optim.rules`: a mistake in one of the two shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Constants", "Published", "Start", "Step", "zeros"]

Array = NDArray[np.float64]
Constants = Mapping[str, Any]
Step = Callable[[Array, Array, int, float, float], Array]  # weights, gradient, count from 1, rate, decay -> weights
Start = Callable[[Constants, Array], Step]


@dataclass(frozen=True)
class Published:
    """A rule as its authors wrote it, and the forms of it that are in use under the same name.

    Attributes:
        name: As the authors write it.
        source: Paper, with equation or algorithm.
        start: Makes the step function of one tensor from the constants and its first weights.
        constants: What the rule needs, with the authors' values. "decay_form" is "coupled" (into the gradient),
            "decoupled" (p ← p − lr λ p first) or "own" (the step applies it).
        variants: Known other forms, as words and the constants that they change.
        mistakes: Known ways to get it wrong, likewise.
        noisy: The step draws random numbers; `start` leaves them out.
    """

    name: str
    source: str
    start: Start
    constants: Constants
    variants: Mapping[str, Constants] = field(default_factory=dict)
    mistakes: Mapping[str, Constants] = field(default_factory=dict)
    noisy: bool = False


def zeros(w: Array, count: int) -> list[Array]:
    """So many arrays of zeros shaped like w, for a step function to write into."""
    return [np.zeros_like(w) for _ in range(count)]
