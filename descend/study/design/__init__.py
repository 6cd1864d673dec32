"""The description of a study: spaces, arms, points, targets, presets, lints. Importing it imports no torch."""

from descend.study.design.arm import Arm, arm
from descend.study.design.lint import Remark, lint, lint_edges
from descend.study.design.needs import Needs
from descend.study.design.presets import PRESETS, preset
from descend.study.design.sampling import points, seed_of
from descend.study.design.space import Dimension, choice, integer, linear, log, one_minus_log
from descend.study.design.study import Study, Target, make_study, read_study

__all__ = [
    "PRESETS",
    "Arm",
    "Dimension",
    "Needs",
    "Remark",
    "Study",
    "Target",
    "arm",
    "choice",
    "integer",
    "linear",
    "lint",
    "lint_edges",
    "log",
    "make_study",
    "one_minus_log",
    "points",
    "preset",
    "read_study",
    "seed_of",
]
