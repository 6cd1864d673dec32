"""Where weights, state of rules and buffers of many trials lie among the tensors that a step changes.

weights of each update, end to end, (trials, elements) | entries of the state of each rule | buffers by name
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from descend.study.running.stacked_update import Update

__all__ = ["StackLayout", "end_to_end", "one_row_per_trial", "trace_key"]


@dataclass(frozen=True)
class StackLayout:
    """The order of the tensors that a step changes.

    Attributes:
        updates: What is done to the weights in a step.
        shapes: Of each parameter in one trial, by name.
        buffers: Names of the buffers.
        state_types: Class of the state of each update's rule; None for a rule without state.
        entries: Names of the entries of these states that are not None.
    """

    updates: Sequence[Update]
    shapes: Mapping[str, torch.Size]
    buffers: tuple[str, ...]
    state_types: tuple[Any, ...]
    entries: tuple[tuple[str, ...], ...]

    @classmethod
    def begin(
        cls, updates: Sequence[Update], params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[StackLayout, list[Tensor]]:
        """The layout of a stack, and its tensors before the first update.

        Args:
            updates: What is done to the weights in a step.
            params: Stacked parameters by name, (trials, ...), those that no update changes included.
            buffers: Stacked buffers by name.
        """
        weights = [end_to_end([params[name].detach() for name in update.names]) for update in updates]
        states = [_initial_state(update, flat) for update, flat in zip(updates, weights, strict=True)]
        entries = [entries for _, entries in states]
        shapes = {name: p.shape[1:] for name, p in params.items()}
        layout = cls(updates, shapes, tuple(buffers), tuple(kind for kind, _ in states), tuple(map(tuple, entries)))
        return layout, [*weights, *(x for each in entries for x in each.values()), *buffers.values()]

    def split(self, held: Sequence[Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]], dict[str, Tensor]]:
        """Weights and state of each update, and buffers."""
        rest = iter(held[len(self.updates) :])
        states = [{name: next(rest) for name in names} for names in self.entries]
        return list(held[: len(self.updates)]), states, dict(zip(self.buffers, rest, strict=True))

    def by_name(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Trained weights in their shapes, (trials, ...), from those of each update end to end."""
        found: dict[str, Tensor] = {}
        for update, flat in zip(self.updates, weights, strict=True):
            parts = one_row_per_trial(flat).split([self.shapes[name].numel() for name in update.names], dim=1)
            for name, part in zip(update.names, parts, strict=True):
                found[name] = part.reshape(len(flat), *self.shapes[name])
        return found


def _initial_state(update: Update, weights: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Class and stacked entries of the state before the first update."""
    made: list[Any] = []
    for number, flat in enumerate(weights):
        constants = {name: float(values[number]) for name, values in update.constants.items()}
        made.append(dataclasses.replace(cast("Any", update.rule), **constants).init(flat))
    if made[0] is None:
        return None, {}
    names = [name for name, value in made[0]._asdict().items() if value is not None]
    return type(made[0]), {name: torch.stack([getattr(state, name) for state in made]) for name in names}


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """Weights of an update end to end for each trial; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([one_row_per_trial(x) for x in tensors], dim=1)


def one_row_per_trial(x: Tensor) -> Tensor:
    """(trials, elements), with at least one element."""
    return x.flatten(1) if x.ndim > 1 else x[:, None]


def trace_key(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """The properties of its inputs that a trace of operations depends on."""
    return [(x.shape, x.stride(), x.dtype, x.device) for x in tensors]
