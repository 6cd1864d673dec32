"""Layers, weights, objective and metrics as plain values, and their text. No torch."""
