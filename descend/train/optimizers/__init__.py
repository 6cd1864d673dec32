"""Optimizers around an optimizer, and their state by the names of parameters."""
