"""Gradient transforms: what happens to whole gradients between backward pass and update; one file each."""
