"""First values of weights: a function of the run's seed and the weights' name, whatever the order they are made in."""

from __future__ import annotations
