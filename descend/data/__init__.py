"""Readers: files to samples to batches of named fields."""
