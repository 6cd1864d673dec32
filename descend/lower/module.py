"""A checked graph as one torch module: its layers in topological order, its weights under their own names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.errors import GraphError
from descend.graph import (
    BatchNormalization,
    ChannelwiseMean,
    ChannelwiseSoftmax,
    Covariance,
    CrossEntropy,
    EntrywiseBatchNormalization,
    InstanceNorm,
    L1Norm,
    L2Norm2,
    LayerNorm,
    LogSoftmax,
    MeanAbsoluteError,
    MeanSquaredError,
    MultiDimReduction,
    OperatorLayer,
    Reduction,
    Softmax,
    Variance,
)
from descend.lower import (
    activations,
    images,
    indexing,
    inputs,
    learning,
    losses,
    mathematics,
    normalization,
    operators,
    recurrent,
    reductions,
    regularization,
    sources,
    tables,
    transforms,
)
from descend.lower.initialize import initial_values
from descend.lower.passes import Pass
from descend.lower.registry import lowering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from descend.graph import Plan, PlannedLayer, PlannedWeights
    from descend.lower.registry import Forward

__all__ = ["LoweredModel", "lower"]

FAMILIES = (
    activations,
    images,
    indexing,
    inputs,
    learning,
    losses,
    mathematics,
    normalization,
    operators,
    recurrent,
    reductions,
    regularization,
    sources,
    tables,
    transforms,
)  # importing them registers their kinds


def lower(plan: Plan, generator: Callable[[str], torch.Generator]) -> LoweredModel:
    """Make a module of a checked graph.

    Args:
        plan: What `descend.graph.check` returned.
        generator: Gives each weights object, by name, the generator that its first values are drawn from.

    Raises:
        Unsupported: a kind of layer is not lowered yet; every such layer is named.
        GraphError: listed first values do not match their weights.
    """
    return LoweredModel(plan, generator)


@dataclass(frozen=True)
class _Instruction:
    """One layer of the program: which slots it reads, which weights it takes, which slots it fills."""

    name: str
    forward: Forward
    with_pass: bool
    inputs: tuple[int, ...]
    weights: tuple[str, ...]
    outputs: tuple[int, ...]
    last_uses: tuple[int, ...] = ()  # slots that nobody reads afterwards


class LoweredModel(torch.nn.Module):
    """The graph as a torch module. Parameters carry the names of the graph's weights.

    Its forward pass takes the fields of a batch, each (samples, *shape), and returns the output of every layer that the
    objective or a metric names, by layer name. `module.train()` and `module.eval()` say how layers act.

    Attributes:
        plan: The checked graph.
        on_layer: Called with each layer's name and outputs as soon as they are there, where it is set; what it returns
            goes on in their place.
    """

    plan: Plan
    on_layer: Callable[[str, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None

    def __init__(self, plan: Plan, generator: Callable[[str], torch.Generator]) -> None:
        super().__init__()
        self.plan, self.on_layer = plan, None
        self._fields, self._program, self._outputs, self._slots = _compile(plan, _wanted(plan))
        self._wants_pass = any(step.with_pass for step in self._program)
        for weights in plan.weights.values():
            self._own(weights, initial_values(weights, generator(weights.name)))

    def _own(self, weights: PlannedWeights, values: torch.Tensor) -> None:
        """Register one tensor under its own name, which may be one that a module has an attribute for."""
        name = weights.name
        if "." in name:
            raise GraphError(f"weights '{name}': a name cannot hold a dot; write '{name.replace('.', '_')}'")
        # Straight into torch's tables: register_parameter refuses names that are attributes of a module.
        if weights.trainable:
            self._parameters[name] = torch.nn.Parameter(values)
        else:
            self._buffers[name] = values

    def named_weights(self) -> dict[str, torch.Tensor]:
        """Every weights object by name, trained or not."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def _watched(self, step: _Instruction, result: Any) -> Any:
        watch = cast("Callable[[str, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]", self.on_layer)
        one = len(step.outputs) == 1
        outputs = watch(step.name, (result,) if one else tuple(result))
        return outputs[0] if one else outputs

    def exchange(self, planned: PlannedLayer) -> None:
        """Let a layer compute what `planned` says from now on; its kind, parents, shapes and weights stay."""
        forward, _ = lowering(planned)
        self._program = tuple(
            replace(step, forward=forward) if step.name == planned.name else step for step in self._program
        )

    def widen(self) -> None:
        """Let layers that lose too much in half precision compute in float32, for a forward pass under autocast."""
        kinds = {planned.name: planned.layer for planned in self.plan.layers}
        self._program = tuple(
            replace(step, forward=_wide(step.forward)) if isinstance(kinds[step.name], _WIDE) else step
            for step in self._program
        )

    def forward(
        self,
        fields: Mapping[str, torch.Tensor],
        *,
        seed: int | None = None,
        position: int = 0,
        batch_size: int | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run every layer once; see the class.

        Args:
            fields: The samples, or the part of a mini-batch that goes through now.
            seed: What the layers' random numbers are a function of; drawn from torch's global generator if None.
            position: Place of the first sample in the whole mini-batch.
            batch_size: Samples of the whole mini-batch; as many as are given if None.

        Raises:
            Unsupported: a layer works on the whole mini-batch and was given a part of it.
            DataError: a layer was given a value that it cannot use.
        """
        at = self._pass(fields, seed, position, batch_size) if self._wants_pass else None
        return self._run(self._program, self._fields, self._outputs, fields, at)

    def fields_of(self, layers: Iterable[str]) -> set[str]:
        """The fields that are needed to compute these layers."""
        return set(self._part(tuple(layers))[1])

    def outputs(
        self,
        layers: Iterable[str],
        fields: Mapping[str, torch.Tensor],
        *,
        position: int = 0,
        batch_size: int | None = None,
    ) -> dict[str, torch.Tensor]:
        """The outputs of layers, by name, of which only their ancestors are computed; arguments as for `forward`."""
        at = self._pass(fields, 0, position, batch_size) if self._wants_pass else None
        return self._run(*self._part(tuple(layers)), fields, at)

    def _part(self, layers: tuple[str, ...]) -> tuple[tuple[_Instruction, ...], dict[str, int], dict[str, int]]:
        """The program of some layers and their ancestors, its fields and outputs."""
        needed = set(layers)
        for planned in reversed(self.plan.layers):
            if planned.name in needed:
                needed.update(planned.parents)
        plan = replace(self.plan, layers=tuple(planned for planned in self.plan.layers if planned.name in needed))
        fields, program, outputs, _ = _compile(plan, layers)
        return program, fields, outputs

    def _run(
        self,
        program: tuple[_Instruction, ...],
        field_slots: Mapping[str, int],
        outputs: Mapping[str, int],
        fields: Mapping[str, torch.Tensor],
        at: Pass | None,
    ) -> dict[str, torch.Tensor]:
        slots: list[Any] = [None] * self._slots
        for name, slot in field_slots.items():
            slots[slot] = fields[name]
        # By torch's tables and not by reference, so that torch.func.functional_call can put other tensors in.
        weights: Mapping[str, Any] = {**self._parameters, **self._buffers}
        for step in program:
            given = [*[slots[i] for i in step.inputs], *[weights[name] for name in step.weights]]
            result = step.forward(at, *given) if step.with_pass else step.forward(*given)
            if self.on_layer is not None:
                result = self._watched(step, result)
            if len(step.outputs) == 1:
                slots[step.outputs[0]] = result
            else:
                for slot, tensor in zip(step.outputs, result, strict=True):
                    slots[slot] = tensor
            for slot in step.last_uses:
                slots[slot] = None
        return {name: slots[slot] for name, slot in outputs.items()}

    def _pass(
        self, fields: Mapping[str, torch.Tensor], seed: int | None, position: int, batch_size: int | None
    ) -> Pass:
        some = next(iter(fields.values()))
        # Tensors from nowhere are of the format that the module computes in.
        like = next((one for one in chain(self.parameters(), fields.values()) if one.is_floating_point()), None)
        return Pass(
            training=self.training,
            seed=int(torch.randint(2**63 - 1, ())) if seed is None else seed,
            position=position,
            samples=len(some),
            batch_size=len(some) if batch_size is None else batch_size,
            dtype=torch.get_default_dtype() if like is None else like.dtype,
            device=some.device,
            group_size=self.plan.batch_norm_group_size,
        )


# Exponentials, logarithms, sums over many entries, statistics; on a CPU autocast itself leaves them in half precision.
_WIDE = (
    BatchNormalization,
    ChannelwiseMean,
    ChannelwiseSoftmax,
    Covariance,
    CrossEntropy,
    EntrywiseBatchNormalization,
    InstanceNorm,
    L1Norm,
    L2Norm2,
    LayerNorm,
    LogSoftmax,
    MeanAbsoluteError,
    MeanSquaredError,
    MultiDimReduction,
    OperatorLayer,
    Reduction,
    Softmax,
    Variance,
)


def _wide(forward: Forward) -> Forward:
    """The same with its tensors in float32 where they are narrower."""
    narrow = (torch.float16, torch.bfloat16)

    def widened(*given: Any) -> Any:
        return forward(*(x.float() if isinstance(x, torch.Tensor) and x.dtype in narrow else x for x in given))

    return widened


def _compile(plan: Plan, layers: Iterable[str]) -> tuple[dict[str, int], tuple[_Instruction, ...], dict[str, int], int]:
    """The program of a plan: fields by slot, instructions, wanted outputs by slot, and the number of slots."""
    fields: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}  # (layer, number of its output) to slot
    steps: list[_Instruction] = []
    count = 0
    for planned in plan.layers:
        read = tuple(places[parent] for parent in zip(planned.parents, planned.parent_outputs, strict=True))
        field = getattr(planned.layer, "data_field", None)
        if field is not None:
            read = (fields.setdefault(field, count),)
            count = max(count, read[0] + 1)
        filled = tuple(range(count, count + len(planned.output_shapes)))
        count += len(filled)
        places.update({(planned.name, number): slot for number, slot in enumerate(filled)})
        steps.append(_Instruction(planned.name, *lowering(planned), read, planned.weights, filled))
    wanted = {name: places[name, 0] for name in layers}
    return fields, _with_last_uses(steps, wanted.values()), wanted, count


def _wanted(plan: Plan) -> list[str]:
    return [term.layer for term in plan.objective.terms] + [metric.layer for metric in plan.metrics]


def _with_last_uses(steps: list[_Instruction], wanted: Iterable[int]) -> tuple[_Instruction, ...]:
    """Instructions that drop each tensor after its last reader, so that an evaluation holds few of them."""
    seen = set(wanted)
    program: list[_Instruction] = []
    for step in reversed(steps):
        last = tuple(dict.fromkeys(slot for slot in (*step.inputs, *step.outputs) if slot not in seen))
        seen.update(step.inputs)
        program.append(replace(step, last_uses=last))
    return tuple(reversed(program))
