"""Strategies: where parameters live and how ranks communicate; one file each."""
