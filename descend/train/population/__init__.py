"""Populations of trainers: LTFB, its exchange strategies, and the code that runs them."""
