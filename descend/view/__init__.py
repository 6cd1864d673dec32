"""`descend view`: pages of runs and studies on 127.0.0.1 that follow what is written."""

from descend.view.server import serve

__all__ = ["serve"]
