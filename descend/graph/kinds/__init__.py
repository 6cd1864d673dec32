"""Layer kinds, one file a family."""
