"""Populations of trainers: LTFB, its exchange strategies, and what carries them out."""
