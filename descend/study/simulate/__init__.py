"""The noisy quadratic model: steps to a target at every batch size, exactly and in seconds.

    steps_to_target("heavy_ball", 4096)         the fewest steps over rates and momenta
    tuned("heavy_ball", 4096)                   the same, with the setting, and whether it lies on an edge
    sample("sgd", 64, [0.1], steps=100, ...)    single runs, with their noise drawn

Source: Zhang et al. 2019, https://arxiv.org/abs/1907.04164
"""

from descend.study.simulate.draw import plot, table
from descend.study.simulate.exact import SimulationSettings, first_hit, risk_curve
from descend.study.simulate.method import MOMENTA, Method, method
from descend.study.simulate.problem import Modes, Quadratic
from descend.study.simulate.sampled import sample
from descend.study.simulate.tuned import (
    AVERAGES,
    MOMENTA_TRIED,
    MOMENTUM_RATES,
    RATES,
    Tuned,
    steps_to_target,
    tuned,
)

__all__ = [
    "AVERAGES",
    "MOMENTA",
    "MOMENTA_TRIED",
    "MOMENTUM_RATES",
    "RATES",
    "Method",
    "Modes",
    "Quadratic",
    "SimulationSettings",
    "Tuned",
    "first_hit",
    "method",
    "plot",
    "risk_curve",
    "sample",
    "steps_to_target",
    "table",
    "tuned",
]
