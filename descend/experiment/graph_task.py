"""The task of a graph: its objective and metrics as sums over samples and numbers of samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError
from descend.graph import BatchNormalization, EntrywiseBatchNormalization
from descend.graph.variants import ACTIVATIONS, origins, replaceable, shown_kind, variant
from descend.runtime import generator, seed_of
from descend.train.objective import Losses, Ratio, Task
from descend.train.strategies.buffers import RunningStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from descend.data import Batch
    from descend.graph import Plan
    from descend.graph.variants import Form
    from descend.lower import LoweredModel
    from descend.train.micro_batch import MicroBatch

__all__ = ["GraphTask"]


class GraphTask(Task):
    """The objective and the metrics of a graph.

    Every term of an LBANN objective is a scalar per sample, so the numerator of a batch is the sum of the scaled terms
    and its denominator the number of samples.

    Args:
        module: The lowered graph; its forward pass returns the value of each term and metric layer, (samples, 1).
        plan: The checked graph.
        seed: Seed of the random numbers of its layers.
        autocast: The dtype of torch's autocast; None computes in the dtype of the weights.
        unit: In training, micro-batches are made of whole units of so many samples; None where none can be split.
        external: Metrics that the graph does not compute, given the run directory.
    """

    def __init__(
        self,
        module: LoweredModel,
        plan: Plan,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        unit: int | None = 1,
        external: Callable[[Path | None], Mapping[str, float]] = lambda directory: {},
    ) -> None:
        self.module: LoweredModel = module  # pyright: ignore[reportIncompatibleVariableOverride]  # a graph, always
        self.micro_batch_unit, self._external = unit, external
        self.running_statistics = running_statistics_of(plan)
        self._autocast = autocast
        if autocast is not None:
            module.widen()
        self._seed = seed
        self._place: dict[str, int] = {}
        self.units = {metric.name: metric.unit for metric in plan.metrics if metric.unit}
        self._described = self._plan = plan
        self._form: Form = {}

    def _begin(self, part: MicroBatch) -> None:
        """Set the samples of the next forward pass, of which the draws of random layers are a function."""
        mode = "training" if self.module.training else "evaluation"
        seed = seed_of(self._seed, mode, part.step, part.batch.epoch, part.batch.step)
        self._place = {"seed": seed, "position": part.position, "batch_size": part.batch.size}

    def form(self) -> Form:
        """What stands in the place of layers, by their names."""
        return dict(self._form)

    def take_form(self, form: Form, draws: Callable[[str], torch.Generator] | None = None) -> None:
        """Let other layers stand in some places; all others are as described. Weights that stay keep their values.

        Args:
            form: What stands where; see `descend.graph.variants`.
            draws: Gives each new parameter, by name, the generator of its initial values; None where they will be
                overwritten.

        Raises:
            ConfigurationError: the graph has no such layer, or that cannot stand there.
        """
        if form == self._form:
            return
        plan = variant(self._described, form)
        self.module.rebuild(plan, draws or partial(generator, self._seed, "replaced weights"))
        self._plan, self._form = plan, dict(form)

    def kind(self, name: str) -> str:
        """What stands in the place of a layer, in words."""
        return shown_kind(self._described, self._form, name)

    def replaced_by(self) -> dict[str, str]:
        """For weights that the graph was not described with: those in whose place, or behind which, they stand."""
        return origins(self._described, self._plan)

    def mutate(self, kinds: Sequence[str], draws: torch.Generator) -> tuple[Form, str, str, str]:
        """Draw another layer for the place of one; nothing is changed yet.

        Args:
            kinds: "activation", "convolution" or both, of which one that the graph has is drawn.
            draws: Where random numbers come from.

        Returns:
            The form to take, the name of the layer, and what stands there before and after, in words.

        Raises:
            ConfigurationError: the graph has none.
        """
        choices = {kind: found for kind, found in self.replaceable(kinds).items() if found}
        of_kind = _drawn(list(choices.values()), draws)
        name = _drawn(list(of_kind), draws)
        form: Form = {**self._form, name: _drawn(of_kind[name], draws)}
        before, after = (shown_kind(self._described, each, name) for each in (self._form, form))
        return form, name, before, after

    def replaceable(self, kinds: Sequence[str]) -> dict[str, dict[str, list[Any]]]:
        """What else may stand in the places of layers, by kind and name.

        Raises:
            ConfigurationError: the graph has no such layer.
        """
        possible = replaceable(self._described)
        now = {name: self._form.get(name, kind) for name, kind in possible.activations.items()}
        activations = {name: [kind for kind in ACTIVATIONS if kind != now[name]] for name in now}
        convolutions = {
            name: [choice for choice in choices if choice != self._form.get(name)]
            for name, choices in possible.convolutions.items()
        }
        found: dict[str, dict[str, list[Any]]] = {"activation": activations, "convolution": convolutions}
        chosen = {kind: found[kind] for kind in kinds}
        if not any(chosen.values()):
            needs = {
                "activation": f"one of {', '.join(ACTIVATIONS)}",
                "convolution": "a convolution with trained weights that can have a kernel of 3, 5, 7 or 9",
            }
            asked = " or ".join(needs[kind] for kind in kinds)
            raise ConfigurationError(f"nothing can be replaced by a mutation: the model must have {asked}")
        return chosen

    def external_metrics(self, directory: Path | None) -> Mapping[str, float]:
        """See `descend.train.objective.Task.external_metrics`."""
        return self._external(directory)

    def losses(self, micro_batch: MicroBatch) -> Losses:
        """See `descend.train.objective.Task.losses`."""
        self._begin(micro_batch)
        fields = micro_batch.fields
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


def _drawn(choices: Sequence[Any], draws: torch.Generator) -> Any:
    return choices[int(torch.randint(len(choices), (), generator=draws))]


def running_statistics_of(plan: Plan) -> list[RunningStatistics]:
    """The running statistics of a graph, by the names of its weights."""
    unit = plan.batch_norm_group_size

    def groups(batch: Batch) -> int:
        return -(-len(batch.ids) // unit) if unit else 1

    found: list[RunningStatistics] = []
    for planned in plan.layers:
        layer = planned.layer
        if isinstance(layer, BatchNormalization):
            found.append(RunningStatistics(tuple(planned.weights[2:4]), float(layer.setting("decay")), None, groups))
        elif isinstance(layer, EntrywiseBatchNormalization):
            found.append(RunningStatistics(tuple(planned.weights[:2]), float(layer.decay), None, groups))
    return found
