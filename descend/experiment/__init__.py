"""A whole run as one value: its parts joined, its text, and `run`."""
