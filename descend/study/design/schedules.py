"""Schedules by name, with their lengths as fractions of the run, so that one description serves every budget.

    constant
    linear                 warmup_fraction, final_fraction
    cosine                 warmup_fraction, final_fraction
    polynomial             warmup_fraction, warmup_power, decay_power, initial_fraction, final_fraction
    trapezoid              warmup_fraction, decay_fraction, final_fraction
    bert                   warmup_fraction, decay_power; with its jump

`initial_fraction` and `final_fraction` are parts of the peak, which is the arm's `lr`. Warm-ups are rounded to whole
steps. A schedule that warms up begins above 0: the rate of the first update is that of step 1 of the warm-up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import is_number, shown
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.optim.schedules import Schedule

__all__ = ["SCHEDULES", "check_schedule", "make_schedule"]

SCHEDULES: dict[str, dict[str, float]] = {
    "constant": {},
    "linear": {"warmup_fraction": 0.0, "final_fraction": 0.0},
    "cosine": {"warmup_fraction": 0.0, "final_fraction": 0.0},
    "polynomial": {
        "warmup_fraction": 0.05,
        "warmup_power": 1.0,
        "decay_power": 2.0,
        "initial_fraction": 0.0,
        "final_fraction": 0.0,
    },
    "trapezoid": {"warmup_fraction": 0.05, "decay_fraction": 0.2, "final_fraction": 0.0},
    "bert": {"warmup_fraction": 0.1, "decay_power": 1.0},
}


def check_schedule(name: Any, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a schedule's name and its options.

    Args:
        name: Of the schedule.
        options: Values by name; a list stands for several of them.
    """
    if not isinstance(name, str) or name not in SCHEDULES:
        close = nearest(str(name), SCHEDULES)
        return [f"there is no schedule '{name}'{close or ';'} there are {', '.join(SCHEDULES)}"]
    known = SCHEDULES[name]
    found = [
        f"schedule '{name}' has no option '{option}'{nearest(option, known) or ';'} it has {', '.join(known) or 'none'}"
        for option in options
        if option not in known
    ]
    for option, given in options.items():
        for value in cast("list[Any]", given) if isinstance(given, list) else [given]:
            if option in known and (wrong := _wrong(option, value)):
                found.append(f"schedule '{name}': {option} is {shown(value)}; expected {wrong}")
                break
    return found


def _wrong(option: str, value: Any) -> str | None:
    """What was expected of an option with this value."""
    number = is_number(value) and math.isfinite(value)
    if option.endswith("_fraction"):
        return None if number and 0 <= value <= 1 else "a part from 0 to 1"
    return None if number and value > 0 else "a number above 0"


def make_schedule(name: str, options: Mapping[str, float], peak: float, steps: int) -> Schedule:
    """The schedule of a run.

    Args:
        name: One of `SCHEDULES`.
        options: Those that differ from the defaults.
        peak: Its highest rate.
        steps: Updates of the run.

    Raises:
        ConfigurationError: the name or an option is unknown, or a fraction is out of range.
    """
    from descend.optim import schedules as made

    if problems := check_schedule(name, options):
        raise ConfigurationError(problems)
    value = {**SCHEDULES[name], **options}
    warmup = round(value.get("warmup_fraction", 0.0) * steps)
    final = value.get("final_fraction", 0.0) * peak
    rising = 1 if warmup else 0  # the first update is one step up the warm-up, and not a step of rate 0
    if name == "constant":
        return made.Constant(peak)
    if name == "bert":
        return made.Bert(peak, warmup, steps, value["decay_power"]).shifted(rising)
    if name == "trapezoid":
        decay = round(value["decay_fraction"] * steps)
        return made.Trapezoid(peak, warmup, max(steps - warmup - decay, 0), decay, final=final).shifted(rising)
    if name == "cosine":
        up = made.Ramp(0.0, peak, warmup)
        return up.then(made.Cosine(peak, steps - warmup, final), at_step=warmup).shifted(rising)
    power = value.get("decay_power", 1.0)
    return made.PiecewisePolynomial(
        peak,
        warmup,
        steps,
        initial=value.get("initial_fraction", 0.0) * peak,
        final=final,
        warmup_power=value.get("warmup_power", 1.0),
        decay_power=power,
    ).shifted(rising)
