"""What the loop needs of a model: numerators, denominators and nothing else.

A mean is never taken before everything has been summed. A loss over a part of a batch is a numerator (a sum over
samples, or over whatever the loss counts) and a denominator (how much was counted); parts and ranks are added, and one
division at the end gives the value and the gradient of the one big batch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch

from descend.machine import as_double, for_double

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from descend.runtime import Communicator
    from descend.train.micro_batch import MicroBatch
    from descend.train.strategies.buffers import RunningStatistics

__all__ = ["Accumulated", "Losses", "Ratio", "Reduction", "Task", "Totals"]

Reduction = Literal["sum", "max", "min", "cat"]


class Ratio(NamedTuple):
    """A value that adds up: numerator over denominator.

    Attributes:
        numerator: A 0-d tensor; differentiable where it is the objective.
        denominator: A 0-d tensor or a number, without gradient.
    """

    numerator: torch.Tensor
    denominator: torch.Tensor | float


class Accumulated(NamedTuple):
    """State of a metric that is not a ratio, such as the counts of an F1 score; it adds up by the names of its parts.

    Attributes:
        parts: Tensors by "REDUCTION NAME", such as "sum true_positives" or "cat scores". Parts of two micro-batches
            become one by their reduction: elementwise sum, maximum or minimum, or concatenation.
    """

    parts: Mapping[str, torch.Tensor]


class Losses(NamedTuple):
    """What one forward pass gives."""

    objective: Ratio
    metrics: Mapping[str, Ratio | Accumulated]


class Task:
    """A module and what it is trained for.

    Attributes:
        module: What is trained.
        units: The unit of each metric that has one.
        computed: How the value of each metric with an `Accumulated` state follows from the parts of that.
        micro_batch_unit: In training, micro-batches are made of whole units of so many samples; None where a
            mini-batch cannot be split.
        running_statistics: Those of batch norm, where each rank has groups of samples of its own.
        needs_lockstep: Whether forward passes of all ranks communicate, so that all ranks need as many.
        functions: The user's own functions that it calls, by what they are for; their code must be that of all ranks.
    """

    module: torch.nn.Module
    units: Mapping[str, str] = MappingProxyType({})
    computed: Mapping[str, Callable[[Mapping[str, torch.Tensor]], float]] = MappingProxyType({})
    micro_batch_unit: int | None = 1
    running_statistics: Sequence[RunningStatistics] = ()
    needs_lockstep: bool = False
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({})

    def losses(self, micro_batch: MicroBatch) -> Losses:
        """The forward pass over a micro-batch."""
        raise NotImplementedError(f"{type(self).__name__} defines no losses()")

    def penalty(self) -> torch.Tensor | None:
        """The part of the objective that depends on parameters alone, counted once a step; a 0-d tensor or None."""
        return None

    def external_metrics(self, directory: Path | None) -> Mapping[str, float]:
        """Metrics that the module does not compute, given the run directory; asked on rank zero after each epoch."""
        return {}


class Totals:
    """Sums of ratios over the mini-batches of a pass, in float64, added one after the other in the order of `add`.

    No step waits for a device to have its part added. On a CPU an addition of tensors takes longer than one of plain
    numbers, so terms are collected and read many at once, when the sums are asked for or many are waiting.
    """

    _AT_ONCE = 16  # thousands of small tensors among large ones that come and go would take memory

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._sums: dict[str, tuple[torch.Tensor | float, torch.Tensor | float]] = {}
        self._put_by: dict[str, list[tuple[torch.Tensor | float, torch.Tensor | float]]] = {}
        self._accumulated: dict[str, dict[str, list[torch.Tensor]]] = {}  # more than one tensor only to concatenate
        for name, value in (state or {}).items():
            if isinstance(value, dict):
                parts = cast("dict[str, Any]", value).items()
                self._accumulated[name] = {key: [torch.as_tensor(part, dtype=torch.float64)] for key, part in parts}
            else:
                self._sums[name] = (float(value[0]), float(value[1]))

    def add(self, name: str, ratio: Ratio) -> None:
        """Add one ratio to the total called `name`."""
        numerator, denominator = ratio
        if isinstance(denominator, torch.Tensor) and denominator.requires_grad:
            denominator = denominator.detach()
        if numerator.requires_grad:
            numerator = numerator.detach()
        some = self._put_by.get(name)
        if some is None:
            some = self._put_by[name] = []
        some.append((numerator, denominator))
        if len(some) >= self._AT_ONCE:
            self._add(name)

    def add_losses(self, losses: Losses) -> None:
        """Add the objective and the metrics of a micro-batch."""
        self.add("objective", losses.objective)
        for name, value in losses.metrics.items():
            if isinstance(value, Accumulated):
                self._accumulate(name, {key: [as_double(part.detach())] for key, part in value.parts.items()})
            else:
                self.add(name, value)

    def _accumulate(self, name: str, parts: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Reduce the state of a metric with the one so far."""
        own = self._accumulated.setdefault(name, {})
        for key, some in parts.items():
            if key not in own or key.startswith("cat "):
                own.setdefault(key, []).extend(some)
            else:
                own[key] = [_reduced(key, own[key][0], some[0])]

    def copy(self) -> Totals:
        """The same sums, which what is added to these does not change."""
        other = Totals()
        other._sums = dict(self._sums)
        other._put_by = {name: list(some) for name, some in self._put_by.items()}
        other._accumulated = {
            name: {key: list(some) for key, some in parts.items()} for name, parts in self._accumulated.items()
        }
        return other

    def join(self, other: Totals) -> None:
        """Add what `other` holds."""
        for name, parts in other._accumulated.items():
            self._accumulate(name, parts)
        for name, pair in other._sums.items():
            self._put_by.setdefault(name, []).append(pair)
        for name, some in other._put_by.items():
            mine = self._put_by.setdefault(name, [])
            mine += some
            if len(mine) >= self._AT_ONCE or not _on_cpu(some[0][0]):
                self._add(name)

    def state(self) -> dict[str, Any]:
        """The sums, (2,) float64 each: numerator and denominator; of an accumulated metric its parts by name.

        Waits for the device.
        """
        for name in list(self._put_by):
            self._add(name)
        pairs = {
            name: torch.tensor([float(numerator), float(denominator)], dtype=torch.float64)
            for name, (numerator, denominator) in self._sums.items()
        }
        for parts in self._accumulated.values():
            for key, some in parts.items():
                parts[key] = [torch.cat([part.cpu() for part in some])] if len(some) > 1 else [some[0].cpu()]
        accumulated = {name: {key: some[0] for key, some in parts.items()} for name, parts in self._accumulated.items()}
        return {**pairs, **accumulated}

    def plain(self) -> dict[str, Any]:
        """The same with lists in place of tensors, as `Totals` takes it too."""
        return {name: _listed(value) for name, value in self.state().items()}

    def over(self, process: Communicator) -> Totals:
        """The same summed over all ranks, each of which may have counted other things."""
        if process.world_size == 1:
            return self
        everything = Totals()
        for state in process.all_gather_object(self.plain()):
            everything.join(Totals(state))
        return everything

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted in the objective: its numerator and denominator are 0. Waits for the device."""
        self.state()
        return self._sums.get("objective", (0.0, 0.0)) == (0.0, 0.0)

    def values(
        self, computed: Mapping[str, Callable[[Mapping[str, torch.Tensor]], float]] = MappingProxyType({})
    ) -> dict[str, float]:
        """Each total as one number; NaN where nothing was counted. Waits for the device.

        Args:
            computed: See `Task.computed`.
        """
        return {
            name: float(computed[name](value)) if isinstance(value, dict) else float(value[0] / value[1])
            for name, value in self.state().items()
        }

    def _add(self, name: str) -> None:
        """Add what was put by for `name`."""
        some = self._put_by.pop(name)
        numerator, denominator = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (
            _added(numerator, [pair[0] for pair in some]),
            _added(denominator, [pair[1] for pair in some]),
        )


def _reduced(key: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    other = other.to(one.device)
    if key.startswith("sum "):
        return one + other
    return torch.maximum(one, other) if key.startswith("max ") else torch.minimum(one, other)


def _listed(value: Any) -> Any:
    return {key: part.tolist() for key, part in value.items()} if isinstance(value, dict) else value.tolist()


def _on_cpu(value: torch.Tensor | float) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_cpu


def _added(total: torch.Tensor | float, terms: Sequence[torch.Tensor | float]) -> torch.Tensor | float:
    """Terms added to a total one after the other, in float64; a plain number where nothing has to be waited for."""
    for term in terms:
        if isinstance(term, torch.Tensor) and not (term.is_cpu or term.is_cuda):
            term = for_double(term)
        if isinstance(total, torch.Tensor) or not isinstance(term, torch.Tensor):
            total = total + term  # a total of float64 makes the sum one, whatever the term is
        else:
            total = total + (term.item() if term.is_cpu else term.double())
    return total
