"""Optimizers: rules written as their equations, and the engine that applies them."""

from descend.optim import rules
from descend.optim.optimizer import Optimizer, face
from descend.optim.rules.adam import Adam as _Adam
from descend.optim.rules.base import Rule

__all__ = ["Adam", "AdamW", "Optimizer", "Rule", "face", "rules"]

Adam = face(_Adam, lr=1e-3)
AdamW = face(_Adam, name="AdamW", lr=1e-3, weight_decay=0.01, decay="decoupled", doc="Adam with decoupled decay.")
