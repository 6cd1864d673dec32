"""`Optimizer.state` as torch has it, which notices when a value is replaced.

Weights and state are held in arenas, which a step reads. A user who writes `optimizer.state[p]["m"] = other`, or
`optimizer.state[p] = {...}`, means the next step to start from there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Changes", "State", "StateEntry"]


@dataclass
class Changes:
    """Whether anything was put in or taken out since `seen` was set."""

    seen: bool = False


def _noting(name: str) -> Callable[..., Any]:
    """The method of dict by this name, which leaves a note before it acts."""
    method = getattr(dict, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.changes.seen = False
        return method(self, *args, **kwargs)

    return call


class StateEntry(dict[str, Any]):
    """What the engine keeps of one tensor."""

    __slots__ = ("changes",)

    def __init__(self, held: Mapping[str, Any], changes: Changes) -> None:
        super().__init__(held)
        self.changes = changes

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class State(defaultdict[Tensor, Any]):
    """An `Entry` for each tensor."""

    def __init__(self, held: Mapping[Any, Any] | None = None) -> None:
        super().__init__(dict)
        self.changes = Changes()
        self.update(held or {})

    def __missing__(self, p: Tensor) -> StateEntry:
        self[p] = {}
        return self[p]

    def __setitem__(self, p: Any, entry: Any) -> None:
        self.changes.seen = False
        # torch keeps what a user files under a key that is not a tensor, as it is.
        super().__setitem__(p, StateEntry(entry, self.changes) if isinstance(p, Tensor) else entry)

    def update(self, held: Mapping[Any, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # of dict's forms the one that is used
        """Take over entries."""
        for p, entry in held.items():
            self[p] = entry

    def __reduce__(self) -> tuple[Any, ...]:
        held: list[tuple[Any, Any]] = list(self.items())
        return State, ({p: dict(entry) if isinstance(p, Tensor) else entry for p, entry in held},)


_WRITERS = ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update")
for _name in _WRITERS:
    setattr(StateEntry, _name, _noting(_name))
for _name in ("__delitem__", "clear", "pop", "popitem"):
    setattr(State, _name, _noting(_name))
