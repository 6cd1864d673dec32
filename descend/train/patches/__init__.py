"""Patches of a module's layers while it is trained: reproducible dropout and synchronized batch norm."""
