"""LBANN's names over this package."""
