"""`Optimizer.state` as torch has it, which notices when a value is replaced.

Weights and state are held in arenas, which a step reads. A user who writes `optimizer.state[p]["m"] = other`, or
`optimizer.state[p] = {...}`, means the next step to start from there.

The step counts of an arena, `state[param]["step"]`, are views of one tensor.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.torch_private import version_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.optim.engine.step_inputs import Entry

__all__ = ["Changes", "State", "StateEntry", "StepCounts"]


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


class StepCounts:
    """The step counts of the parameters of an arena.

    Attributes:
        values: Of each parameter: (parameters,), float64, on the CPU.
        common: The count where all parameters have the same, else None.
    """

    def __init__(self, count: int) -> None:
        self.values = torch.zeros(count, dtype=torch.float64, device="cpu")
        # The same memory for NumPy: writes through it do not advance torch's version counter, so that the version
        # changes only when a count is written from outside.
        self._numbers = self.values.numpy()
        self.common: int | None = 0
        self._version = version_counter(self.values)

    def adopt(self, i: int, entry: Entry) -> None:
        """Take over the count of parameter i; its entry becomes a view of `values`."""
        self.values[i] = entry["step"]
        entry["step"] = self.values[i]

    def refresh(self) -> None:
        """Follow counts that were written from outside, as by `optimizer.state[p]["step"].fill_(0)`."""
        if version_counter(self.values) != self._version:
            self._recount()

    def _recount(self) -> None:
        first = self.values[0]
        self.common = int(first) if bool((self.values == first).all()) else None
        self._version = version_counter(self.values)

    def advance(self, absent: Sequence[int]) -> None:
        """Count an update of every parameter but those."""
        self._numbers += 1.0
        if absent:
            self._numbers[list(absent)] -= 1.0
            self._recount()
        elif self.common is not None:
            self.common += 1

    def retreat(self, absent: Sequence[int]) -> None:
        """Take back the last `advance`: that update was left out."""
        self._numbers -= 1.0
        self._numbers[list(absent)] += 1.0
        self._recount()

    def take(self, counts: Tensor) -> None:
        """Take over counts that a device kept."""
        self._numbers[:] = counts.cpu().numpy()
        self._recount()
