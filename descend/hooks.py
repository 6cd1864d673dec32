"""Functions of upper rooms that methods of lower rooms call. This module imports nothing of ours.

`Model.to_torch` is a method of a graph to its users, and builds torch modules, which the room of graphs does not know.
`descend/__init__.py`, which may import every room, says where such a function is; the method calls it by `hook`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["hook", "provide", "registered"]

_LOADERS: dict[str, Callable[[], Callable[..., Any]]] = {}


def provide(name: str, load: Callable[[], Callable[..., Any]]) -> None:
    """Register a function.

    Args:
        name: What `hook` is called with.
        load: Imports the function, when it is first needed.
    """
    _LOADERS[name] = load


def hook(name: str) -> Callable[..., Any]:
    """The function that was registered under a name.

    Raises:
        KeyError: there is none, which is a mistake of this package.
    """
    return _LOADERS[name]()


def registered(name: str) -> Callable[..., Any] | None:
    """The function that was registered under a name; None where no upper room has one."""
    return _LOADERS[name]() if name in _LOADERS else None
