"""The update rules, one family a file."""
