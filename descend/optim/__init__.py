"""Optimizers: rules written as their equations, and the engine that applies them."""
