"""A checked graph as one torch module: its layers in topological order, its weights under their own names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, GraphError
from descend.graph import (
    BatchNormalization,
    Convolution,
    CrossEntropy,
    Deconvolution,
    FullyConnected,
    Identity,
    Relu,
    Softmax,
    Split,
)
from descend.lower import (
    activations,
    indexing,
    integers,
    losses,
    mathematics,
    normalization,
    operators,
    sources,
    transforms,
)
from descend.lower import linear_and_convolution as learning
from descend.lower.formats import WIDE, in_transform, widened
from descend.lower.forward_context import ForwardContext, register_draws
from descend.lower.initialize import initial_values
from descend.lower.registry import lowering

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from descend.graph import Plan, PlannedLayer, PlannedWeights
    from descend.lower.registry import Forward

__all__ = ["LoweredModel", "PlainModule", "lower"]

FAMILIES = (
    activations,
    indexing,
    integers,
    learning,
    losses,
    mathematics,
    normalization,
    operators,
    sources,
    transforms,
)  # importing them registers their kinds


def lower(
    plan: Plan,
    generator: Callable[[str], torch.Generator],
    outputs: Iterable[str] | None = None,
    *,
    channels_last: bool = False,
) -> LoweredModel:
    """Make a module of a checked graph.

    Args:
        plan: What `descend.graph.check` returned.
        generator: Gives each parameter, by name, the generator that its initial values are drawn from.
        outputs: Layers whose outputs the module returns; what they do not need is left out. None: the layers that the
            objective and the metrics read, with every layer computed.
        channels_last: Whether images and the kernels of their convolutions are held with their channels last in memory.
            The numbers are the same to rounding.

    Raises:
        Unsupported: a kind of layer is not lowered yet; every such layer is named.
        GraphError: listed first values do not match their weights, or an output is of no layer.
    """
    return LoweredModel(plan, generator, outputs, channels_last)


@dataclass(frozen=True)
class _Instruction:
    """One layer of the program: which slots it reads and which it fills.

    Attributes:
        name: Of the layer.
        forward: Takes what is in the slots it reads.
        inputs: Those slots: the pass where it asks for it, its inputs, its weights.
        outputs: The slots it fills.
        last_uses: Slots that are not read afterwards.
        quick: Does the same faster, by what is known of where its inputs come from.
    """

    name: str
    forward: Forward
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last_uses: tuple[int, ...] = ()
    quick: Forward | None = None


@dataclass(frozen=True)
class _Program:
    """The layers of a plan as instructions over slots.

    Slot 0 is the pass; weights, fields and outputs of layers follow.
    """

    steps: tuple[_Instruction, ...]
    weights: tuple[str, ...]
    fields: Mapping[str, int]
    outputs: Mapping[str, int]
    slots: int
    wants_pass: bool


class LoweredModel(torch.nn.Module):
    """The graph as a torch module. Parameters carry the names of the graph's weights.

    Its forward pass takes the fields of a batch, each (samples, *shape), and returns the output of every layer that was
    asked for, by layer name. `module.train()` and `module.eval()` say how layers act.

    Attributes:
        plan: The checked graph.
        channels_last: Whether images are held with their channels last.
        on_layer: Called with each layer's name and outputs as soon as they are there, where it is set; what it returns
            continues in their place.
    """

    plan: Plan
    on_layer: Callable[[str, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None

    def __init__(
        self,
        plan: Plan,
        generator: Callable[[str], torch.Generator],
        outputs: Iterable[str] | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.plan, self.on_layer, self.channels_last = plan, None, channels_last
        self._outputs = None if outputs is None else tuple(outputs)
        self._program = _compile(plan, self._outputs)
        self._is_widened = False
        self._exchanged: dict[str, PlannedLayer] = {}
        if self._program.wants_pass:
            register_draws()  # torch.compile may come later, from anybody
        for name in self._program.weights:
            weights = plan.weights[name]
            self._own(weights, self._laid_out(initial_values(weights, generator(name))))

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
        """Every parameter by name, trained or not."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def exchange(self, planned: PlannedLayer) -> None:
        """Let a layer compute what `planned` says from now on; its parents, shapes and weights stay."""
        self._exchanged[planned.name] = planned
        forward, _ = lowering(planned)
        steps = (replace(s, forward=forward, quick=None) if s.name == planned.name else s for s in self._program.steps)
        self._program = replace(self._program, steps=tuple(steps))

    def rebuild(self, plan: Plan, generator: Callable[[str], torch.Generator]) -> None:
        """Compute what another graph says from now on.

        Weights that are in both graphs with one shape stay the tensors that they are; others are new, and those that
        the graph does not have are dropped.

        Args:
            plan: The checked graph.
            generator: Gives each new parameter, by name, the generator that its initial values are drawn from.
        """
        before = self.named_weights()
        device = next((tensor.device for tensor in before.values()), None)
        self.plan = plan
        self._program = _compile(plan, self._outputs)
        for planned in self._exchanged.values():
            self.exchange(planned)
        if self._is_widened:
            self.widen()
        self._parameters.clear()
        self._buffers.clear()
        for name in self._program.weights:
            weights, tensor = plan.weights[name], before.get(name)
            if tensor is None or tuple(tensor.shape) != tuple(weights.shape):
                values = self._laid_out(initial_values(weights, generator(name)).to(device))
                self._own(weights, values)
                if tensor is not None:
                    self.named_weights()[name].requires_grad_(tensor.requires_grad)
            elif isinstance(tensor, torch.nn.Parameter):
                self._parameters[name] = tensor
            else:
                self._buffers[name] = tensor

    def widen(self) -> None:
        """Let layers that lose too much in half precision compute in float32, for a forward pass under autocast."""
        self._is_widened = True
        kinds = {planned.name: planned.layer for planned in self.plan.layers}
        steps = (
            replace(step, forward=widened(step.forward), quick=None) if isinstance(kinds[step.name], WIDE) else step
            for step in self._program.steps
        )
        self._program = replace(self._program, steps=tuple(steps))

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
        return self._run(self._program, fields, seed, position, batch_size)

    def fields_of(self, layers: Iterable[str]) -> set[str]:
        """The fields that are needed to compute these layers."""
        return set(_compile(self.plan, tuple(layers)).fields)

    def outputs(
        self,
        layers: Iterable[str],
        fields: Mapping[str, torch.Tensor],
        *,
        position: int = 0,
        batch_size: int | None = None,
    ) -> dict[str, torch.Tensor]:
        """The outputs of layers, by name, of which only their ancestors are computed; arguments as for `forward`."""
        return self._run(_compile(self.plan, tuple(layers)), fields, 0, position, batch_size)

    def _run(
        self,
        program: _Program,
        fields: Mapping[str, torch.Tensor],
        seed: int | None,
        position: int,
        batch_size: int | None,
    ) -> dict[str, torch.Tensor]:
        slots = self._filled(program, fields, seed, position, batch_size)
        if self.on_layer is None:
            _run(program.steps, slots)
        else:
            _run_watched(program.steps, slots, self.on_layer)
        return {name: slots[slot] for name, slot in program.outputs.items()}

    def _filled(
        self,
        program: _Program,
        fields: Mapping[str, torch.Tensor],
        seed: int | None,
        position: int,
        batch_size: int | None,
    ) -> list[Any]:
        """The slots before the first layer."""
        # By torch's tables and not by reference, so that torch.func.functional_call can put other tensors in.
        own, fixed = self._parameters, self._buffers
        slots: list[Any] = [None] * program.slots
        slots[0] = self._pass(fields, seed, position, batch_size) if program.wants_pass else None
        slots[1 : len(program.weights) + 1] = [own[name] if name in own else fixed[name] for name in program.weights]
        for name, slot in program.fields.items():
            slots[slot] = self._laid_out(fields[name])
        return slots

    def _laid_out(self, x: torch.Tensor) -> torch.Tensor:
        """Images and kernels with their channels last in memory, where that is wanted."""
        if not self.channels_last or x.dim() != 4 or in_transform(x):
            return x
        return x.contiguous(memory_format=torch.channels_last)

    def _pass(
        self, fields: Mapping[str, torch.Tensor], seed: int | None, position: int, batch_size: int | None
    ) -> ForwardContext:
        some = next(iter(fields.values()), None)
        if some is None:
            raise ConfigurationError(
                f"model '{self.plan.name}': no Input layer leads to its outputs, so nothing says how many samples they "
                "are for: let a layer of them read an Input layer"
            )
        # Tensors from nowhere are of the format that the module computes in.
        own = (one.dtype for one in chain(self.parameters(), self.buffers()) if one.is_floating_point())
        given = (one.dtype for one in fields.values() if one.is_floating_point())
        dtype = next(own, None) or torch.promote_types(next(given, torch.float16), torch.get_default_dtype())
        return ForwardContext(
            training=self.training,
            seed=torch.randint(2**63 - 1, (1,)).to(some.device) if seed is None else seed,
            position=position,
            samples=len(some),
            batch_size=len(some) if batch_size is None else batch_size,
            dtype=dtype,
            device=some.device,
            group_size=self.plan.batch_norm_group_size,
        )


class PlainModule(LoweredModel):
    """A graph as other people's code calls a module: with tensors, for tensors.

    Its forward pass takes the fields that it needs by position, in the order of the Input layers, or by name, each
    (samples, *shape), and returns the output, or a tuple of several. Random layers draw from torch's global generator.
    """

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # its callers are others
        """Run the layers that the outputs need; see the class.

        Raises:
            ConfigurationError: a field is missing, unknown or given twice.
        """
        names = tuple(self._program.fields)
        given = {**dict(zip(names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(names) or given.keys() != set(names):
            what = [*(["..."] * len(inputs)), *(f"{name}=..." for name in named)]
            raise ConfigurationError(
                f"model '{self.plan.name}' takes {', '.join(names) or 'nothing'} and was given ({', '.join(what)})"
            )
        found = super().forward(given)
        values = tuple(found[name] for name in self._program.outputs)
        return values[0] if len(values) == 1 else values


def _run(steps: Iterable[_Instruction], slots: list[Any]) -> None:
    """Compute all outputs, each dropped after its last reader."""
    for step in steps:
        result = (step.quick or step.forward)(*[slots[i] for i in step.inputs])
        if len(step.outputs) == 1:
            slots[step.outputs[0]] = result
        else:
            for slot, tensor in zip(step.outputs, result, strict=True):
                slots[slot] = tensor
        for slot in step.last_uses:
            slots[slot] = None


def _run_watched(
    steps: Iterable[_Instruction],
    slots: list[Any],
    watch: Callable[[str, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]],
) -> None:
    """The same with hooks that may keep or exchange outputs, so no output is assumed to be known."""
    for step in steps:
        result = step.forward(*[slots[i] for i in step.inputs])
        seen = watch(step.name, (result,) if len(step.outputs) == 1 else tuple(result))
        for slot, tensor in zip(step.outputs, seen, strict=True):
            slots[slot] = tensor
        for slot in step.last_uses:
            slots[slot] = None


def _compile(plan: Plan, outputs: tuple[str, ...] | None) -> _Program:
    """The program of a plan."""
    layers = plan.layers if outputs is None else plan.needed_for(outputs)
    weights = tuple(plan.weights) if outputs is None else tuple(dict.fromkeys(w for one in layers for w in one.weights))
    of_weights = {name: slot for slot, name in enumerate(weights, 1)}
    fields: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}  # (layer, number of its output) to slot
    steps: list[_Instruction] = []
    count = len(weights) + 1
    wants_pass = False
    for planned in layers:
        read = tuple(places[parent] for parent in zip(planned.parents, planned.parent_outputs, strict=True))
        field = getattr(planned.layer, "data_field", None)
        if field is not None:
            read = (fields.setdefault(field, count),)
            count = max(count, read[0] + 1)
        forward, with_pass = lowering(planned)
        wants_pass |= with_pass
        read = (*((0,) if with_pass else ()), *read, *(of_weights[name] for name in planned.weights))
        filled = tuple(range(count, count + len(planned.output_shapes)))
        count += len(filled)
        places.update({(planned.name, number): slot for number, slot in enumerate(filled)})
        steps.append(_Instruction(planned.name, forward, read, filled))
    wanted = {name: places[name, 0] for name in (_wanted(plan) if outputs is None else outputs)}
    kept = {*range(len(weights) + 1), *wanted.values()}
    program = _with_last_uses(_quickened(layers, steps, kept), kept)
    return _Program(program, weights, fields, wanted, count, wants_pass)


# Kinds that can overwrite their input, and kinds whose output is a tensor of its own that their own gradient does not
# ask for; an output that is read once, by one of the first, and comes from one of the second is overwritten.
_OVERWRITING: Mapping[type[Any], Forward] = {Relu: torch.relu_}
_FRESH = (BatchNormalization, Convolution, Deconvolution, FullyConnected)
# Kinds that need not look whether their first input is above 0, kinds whose output is, and kinds that hand it on.
_OF_POSITIVE: Mapping[type[Any], Forward] = {CrossEntropy: losses.cross_entropy_of_positive}
_POSITIVE = (Softmax,)
_PASSING = (Identity, Split)


def _quickened(
    layers: Iterable[PlannedLayer], steps: Iterable[_Instruction], kept: Collection[int]
) -> list[_Instruction]:
    """Instructions that save a tensor or a look at one, where that is safe and no format has to change."""
    pairs = list(zip(layers, steps, strict=True))
    readers = Counter(slot for _, step in pairs for slot in step.inputs)
    fresh: set[int] = set()
    positive: set[int] = set()
    found: list[_Instruction] = []
    for planned, step in pairs:
        first, kind = step.inputs[0] if step.inputs else None, type(planned.layer)
        if first in fresh:
            step = replace(step, quick=None if planned.formats else _OVERWRITING.get(kind))
        elif first in positive:
            step = replace(step, quick=_quick_of_positive(planned))
        if kind in _FRESH and readers[step.outputs[0]] == 1 and step.outputs[0] not in kept:
            fresh.add(step.outputs[0])
        if kind in _POSITIVE or (kind in _PASSING and first in positive):
            positive.update(step.outputs)
        found.append(step)
    return found


def _quick_of_positive(planned: PlannedLayer) -> Forward | None:
    plain = planned.formats or getattr(planned.layer, "use_labels", False)
    return None if plain else _OF_POSITIVE.get(type(planned.layer))


def _wanted(plan: Plan) -> list[str]:
    return [term.layer for term in plan.objective.terms] + [metric.layer for metric in plan.metrics]


def _with_last_uses(steps: list[_Instruction], kept: Iterable[int]) -> tuple[_Instruction, ...]:
    """Instructions that drop each tensor after its last reader, so that an evaluation holds few of them."""
    seen = set(kept)
    program: list[_Instruction] = []
    for step in reversed(steps):
        last = tuple(dict.fromkeys(slot for slot in (*step.inputs, *step.outputs) if slot not in seen))
        seen.update(step.inputs)
        program.append(replace(step, last_uses=last))
    return tuple(reversed(program))
