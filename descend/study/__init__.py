"""Studies: which optimizer, which rate, which batch size, fairly, and "cannot rank" when that is the truth.

compare(model, loss, data, arms, ...)    all of it in one call
Study, read_study, run_study             a study as a value, from a file, to its end
Task                                     what is trained
Arm, log, one_minus_log, choice, ...     what is compared, and what of it is searched over
analysis                                 the statistics, pure functions over numbers
simulate                                 the noisy quadratic model, whose answers are known
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descend.study import analysis as analysis
    from descend.study import simulate as simulate
    from descend.study.comparing import compare as compare
    from descend.study.comparing import read_directory as read_directory
    from descend.study.comparing import run_study as run_study
    from descend.study.design import Arm as Arm
    from descend.study.design import Study as Study
    from descend.study.design import Target as Target
    from descend.study.design import choice as choice
    from descend.study.design import integer as integer
    from descend.study.design import linear as linear
    from descend.study.design import lint as lint
    from descend.study.design import log as log
    from descend.study.design import one_minus_log as one_minus_log
    from descend.study.design import preset as preset
    from descend.study.design import read_study as read_study
    from descend.study.follow_up import minimize_difference as minimize_difference
    from descend.study.follow_up import swap_setting as swap_setting
    from descend.study.phases import FineTuning as FineTuning
    from descend.study.phases import PretrainingPhase as PretrainingPhase
    from descend.study.results import Comparison as Comparison
    from descend.study.task import StudyTask as StudyTask
    from descend.study.task import Task as Task

# Where each public name lives. It is fetched when it is first used, so that the command line needs no torch.
_ROOMS = ("analysis", "simulate")
_NAMES = {
    "Arm": "design",
    "Comparison": "results",
    "FineTuning": "phases",
    "PretrainingPhase": "phases",
    "Study": "design",
    "Target": "design",
    "StudyTask": "task",
    "Task": "task",
    "choice": "design",
    "integer": "design",
    "linear": "design",
    "lint": "design",
    "log": "design",
    "minimize_difference": "follow_up",
    "one_minus_log": "design",
    "preset": "design",
    "compare": "comparing",
    "read_directory": "comparing",
    "read_study": "design",
    "run_study": "comparing",
    "swap_setting": "follow_up",
}

__all__ = [
    "Arm",
    "Comparison",
    "FineTuning",
    "PretrainingPhase",
    "Study",
    "StudyTask",
    "Target",
    "Task",
    "analysis",
    "choice",
    "compare",
    "integer",
    "linear",
    "lint",
    "log",
    "minimize_difference",
    "one_minus_log",
    "preset",
    "read_directory",
    "read_study",
    "run_study",
    "simulate",
    "swap_setting",
]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module."""
    if name in _ROOMS:
        return importlib.import_module(f"descend.study.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"descend.study.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'descend.study' has no attribute '{name}'")
