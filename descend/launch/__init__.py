"""Starting ranks, and knowing which one this process is; one file a scheduler. Nothing here needs torch."""

from descend.launch.place import ALONE, Place, place, timeout_seconds

__all__ = ["ALONE", "Place", "place", "timeout_seconds"]
