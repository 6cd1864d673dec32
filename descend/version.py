"""The version of this package. This module imports nothing."""

__all__ = ["__version__"]

__version__ = "0.1.0"
