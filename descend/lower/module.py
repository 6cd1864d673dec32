"""A checked graph as one torch module: its layers in topological order, its weights under their own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import GraphError
from descend.lower.initialize import initial_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.graph import Plan, PlannedWeights
    from descend.lower.registry import Forward

__all__ = ["LoweredModel", "lower"]


@dataclass(frozen=True)
class _Instruction:
    """One layer of the program: which slots it reads, which weights it takes, which slot it fills."""

    layer: str
    forward: Forward
    inputs: tuple[int, ...]
    weights: tuple[str, ...]
    output: int
    last_uses: tuple[int, ...]  # slots that nobody reads afterwards


class LoweredModel(torch.nn.Module):
    """The graph as a torch module. Parameters carry the names of the graph's weights.

    Its forward pass takes the fields of a batch, each (samples, *shape), and returns the output of every layer that the
    objective or a metric names, by layer name.
    """

    def __init__(self, plan: Plan, generator: Callable[[str], torch.Generator]) -> None:
        super().__init__()
        for weights in plan.weights.values():
            self._own(weights, initial_values(weights, generator(weights.name)))
        self._fields, self._program, self._outputs = _compile(plan)

    def _own(self, weights: PlannedWeights, values: torch.Tensor) -> None:
        """Register one tensor under its own name, which may be one that a module has an attribute for."""
        if "." in weights.name:
            raise GraphError(
                f"weights '{weights.name}': a name cannot hold a dot; write '{weights.name.replace('.', '_')}'"
            )
        # Straight into torch's table: register_parameter refuses names such as 'bias' only where an attribute has them.
        if weights.trainable:
            self._parameters[weights.name] = torch.nn.Parameter(values)
        else:
            self._buffers[weights.name] = values

    def named_weights(self) -> dict[str, torch.Tensor]:
        """Every weights object by name, trained or not."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def forward(self, fields: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run every layer once; see the class."""
        slots: list[Any] = [fields[name] for name in self._fields]
        slots.extend([None] * len(self._program))
        parameters, buffers = self._parameters, self._buffers
        for step in self._program:
            weights = [parameters[name] if name in parameters else buffers[name] for name in step.weights]
            slots[step.output] = step.forward(*[slots[i] for i in step.inputs], *weights)
            for slot in step.last_uses:
                slots[slot] = None
        return {name: slots[slot] for name, slot in self._outputs.items()}
