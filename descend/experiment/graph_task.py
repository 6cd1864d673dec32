"""The task of a graph: its objective and metrics as sums over samples and numbers of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from descend.errors import ConfigurationError
from descend.graph import Elu, Input, LeakyRelu, Relu, Sigmoid, Tanh
from descend.runtime import seed_of
from descend.train.task import Losses, Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.graph import Layer, Plan, PlannedLayer
    from descend.lower import LoweredModel
    from descend.train.micro_batch import MicroBatch

__all__ = ["GraphTask"]

_ACTIVATIONS: Mapping[str, Callable[..., Layer]] = {
    "relu": Relu,
    "tanh": Tanh,
    "elu": Elu,
    "sigmoid": Sigmoid,
    "leaky relu": LeakyRelu,
}


class GraphTask:
    """The objective and the metrics of a graph.

    Every term of an LBANN objective is a scalar per sample, so the numerator of a batch is the sum of the scaled terms
    and its denominator the number of samples.

    Args:
        module: The lowered graph; its forward pass returns the value of each term and metric layer, (samples, 1).
        plan: The checked graph.
        seed: Seed of the random numbers of its layers.
        autocast: The dtype of torch's autocast; None computes in the dtype of the weights.
    """

    def __init__(self, module: LoweredModel, plan: Plan, seed: int = 0, autocast: torch.dtype | None = None) -> None:
        self.module = module
        self._autocast = autocast
        if autocast is not None:
            module.widen()
        self._seed = seed
        self._place: dict[str, int] = {}
        self.units = {metric.name: metric.unit for metric in plan.metrics if metric.unit}
        self._plan = plan
        self._replaced: dict[str, str] = {}

    def begin(self, part: MicroBatch) -> None:
        """Set the samples of the next forward pass, of which the draws of random layers are a function."""
        mode = "training" if self.module.training else "evaluation"
        seed = seed_of(self._seed, mode, part.step, part.batch.epoch, part.batch.step)
        self._place = {"seed": seed, "position": part.position, "batch_size": part.batch.size}

    def form(self) -> dict[str, str]:
        """The replaced activations: new kind by layer name."""
        return dict(self._replaced)

    def take_form(self, form: Mapping[str, str]) -> None:
        """Apply replaced activations: new kind by layer name; all other layers are as described."""
        layers: list[PlannedLayer] = []
        for planned in self._plan.layers:
            name = planned.name
            now = replace(planned, layer=_ACTIVATIONS[form[name]](Input(), name=name)) if name in form else planned
            if form.get(name) != self._replaced.get(name):
                self.module.exchange(now)
            layers.append(now)
        self.module.plan = replace(self._plan, layers=tuple(layers))
        self._replaced = dict(form)

    def activations(self) -> dict[str, str]:
        """The activations that may be replaced, and the current kind of each.

        Raises:
            ConfigurationError: the graph has none.
        """
        now = {
            planned.name: self._replaced.get(planned.name) or kind
            for planned in self._plan.layers
            if (kind := _activation(planned))
        }
        if not now:
            raise ConfigurationError(f"replace_activation: the model must have one of {', '.join(_ACTIVATIONS)}")
        return now

    def replace_activation(self, draws: torch.Generator) -> tuple[str, str, str]:
        """Replace a random activation by another random one; returns the layer, the old kind and the new one.

        Raises:
            ConfigurationError: the graph has none.
        """
        now = self.activations()
        name = list(now)[int(torch.randint(len(now), (), generator=draws))]
        others = [kind for kind in _ACTIVATIONS if kind != now[name]]
        chosen = others[int(torch.randint(len(others), (), generator=draws))]
        self.take_form({**self._replaced, name: chosen})
        return name, now[name], chosen

    def losses(self, fields: Mapping[str, torch.Tensor]) -> Losses:
        """See `descend.train.task.Task.losses`."""
        # A compiled module does not report its layers, so it is not used while they are recorded.
        module = self.module if self.module.on_layer is None else self.module.forward
        if self._autocast is None:
            values = module(fields, **self._place)
        else:
            with torch.autocast(next(iter(fields.values())).device.type, self._autocast):
                values = {name: value.float() for name, value in module(fields, **self._place).items()}
        some = next(iter(fields.values()))
        count = float(len(some))
        terms = [term.scale * values[term.layer].sum() for term in self._plan.objective.terms]
        metrics = {metric.name: Ratio(values[metric.layer].sum(), count) for metric in self._plan.metrics}
        total = (
            torch.stack(terms).sum() if terms else torch.zeros((), device=some.device)
        )  # a model may have metrics alone
        return Losses(Ratio(total, count), metrics)

    def penalty(self) -> torch.Tensor | None:
        """L2 regularization: the sum of scale · Σ w² / 2 over the weights of each term; None without any."""
        weights = self.module.named_weights()
        terms = [
            0.5 * term.scale * weights[name].square().sum() for term in self._plan.objective.l2 for name in term.weights
        ]
        return torch.stack(terms).sum() if terms else None


def _activation(planned: PlannedLayer) -> str | None:
    """The kind of a layer among the replaceable activations; None for any other layer."""
    return next((name for name, kind in _ACTIVATIONS.items() if kind.__name__ == planned.kind), None)
