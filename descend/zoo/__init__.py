"""Models and small data sets that ship with the package."""
