"""File formats, one a file."""
