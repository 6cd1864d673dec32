"""What applies a rule to weights: settings, the plain update, faster runners, state and its saving.

settings   what a group of weights may be told, checked
prepare    from what torch holds to one task a tensor: who takes part, with which gradient
plain      what one update means
"""

from descend.optim.engine.plain import step_plain
from descend.optim.engine.prepare import Task
from descend.optim.engine.settings import Settings

__all__ = ["Settings", "Task", "step_plain"]
