"""The switch between our checks and LBANN's: what LBANN runs and we refuse, and whether it is allowed here.

Every check that is stricter than LBANN asks `refused` before it reports a problem. Outside of `lenient` the answer is
yes. Within it the problem becomes one warning, and the run continues as in LBANN. LBANN's driver alone enters it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING

from descend.errors import warn

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

__all__ = ["Deviation", "allowed", "lenient", "refused"]


class Deviation(Enum):
    """What LBANN runs and we refuse; the value ends the warning: what becomes of it."""

    NOTHING_TO_LEARN = "the weights stay as they are"
    UNUSED_WEIGHTS = "they are left out"
    ZERO_SCALE = "the term counts as 0"
    NESTED_TERMS = "its entries are terms one after the other"
    TWIN_METRICS = "each is measured, the later ones with a number behind the name"
    SETTING_WITHOUT_EFFECT = "it is ignored, as in LBANN"
    SPARE_SLICE_POINTS = "the last pieces are left out"
    RESHAPE_TO_SCALAR = "the output has one entry"
    ONE_SAMPLE_STATISTICS = "its output is 0 and its running variance stays"
    KFAC_ZEROS = "the default holds"
    RATE_AT_EPOCH_ZERO = "no epoch ends with this number, so it is passed over"
    DISTRIBUTED_CHECKPOINT = "the whole state is saved at those intervals"
    CHECKPOINT_WITHOUT_INTERVAL = "it saves nothing"
    NO_SAMPLES_TO_WATCH = "the callback does nothing"
    OLD_TOURNAMENT = "one trainer has no partner"
    SHORT_SAMPLE = "the rest is 0"
    HELD_OUT_BESIDE_READER = "nothing is held out"
    OBJECTIVE_NOT_FINITE = "the run ends as any other"
    CODE_OF_A_READER = "it is run"


_allowed: ContextVar[frozenset[Deviation]] = ContextVar("allowed deviations", default=frozenset())


@contextmanager
def lenient(deviations: Iterable[Deviation] = tuple(Deviation)) -> Generator[None]:
    """Within this block these deviations are warnings; all of them unless some are named."""
    token = _allowed.set(frozenset(deviations))
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed(deviation: Deviation) -> bool:
    """Whether a deviation is allowed here, for what only turns up later, on another thread: it says nothing."""
    return deviation in _allowed.get()


def refused(deviation: Deviation, problem: str) -> bool:
    """Whether a deviation is an error here. Where it is allowed, a warning says what it is and what becomes of it.

    Args:
        deviation: What is deviated from.
        problem: The message of the error, which names the setting and its place.
    """
    if not allowed(deviation):
        return True
    warn(f"{problem}: LBANN allows it, and {deviation.value}")
    return False
