"""The task of an nn.Module: its inputs, its loss and its metrics as numerators and denominators."""

from __future__ import annotations

import inspect
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from descend.data.nested_fields import nested
from descend.errors import ConfigurationError, DataError, DescendError, nearest
from descend.experiment.accumulated_metrics import AccumulatedMetric
from descend.experiment.labels import LabelCheck
from descend.experiment.losses import FunctionLoss, TorchLoss, looked_at
from descend.train.memory import out_of_memory
from descend.train.objective import Losses, Task
from descend.train.patches.dropout import unsupported_dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from descend.experiment.losses import Loss
    from descend.experiment.patched_module import TrainingPatches
    from descend.train.micro_batch import MicroBatch
    from descend.train.objective import Accumulated, Ratio

__all__ = ["TARGET_NAMES", "ModuleTask"]

TARGET_NAMES = ("target", "targets", "label", "labels", "response", "responses", "y")


class ModuleTask(Task):
    """A user's module with its objective and metrics. The module is called and otherwise not changed.

    Args:
        module: Called with the inputs of samples: by position from tuples, by name from dictionaries.
        loss: The objective.
        metrics: Further measurements, by name.
        targets: Names of the fields that are targets, or how many of the last ones are. None: of a tuple the last
            entry, of a dictionary the one named target, label, response or y; a single tensor is its own target.
        autocast: The dtype of torch's autocast; None computes in the dtype of the weights.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss,
        metrics: Mapping[str, Loss],
        targets: int | Sequence[str] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.module = module
        self.units: Mapping[str, str] = {name: "%" for name in metrics if name == "accuracy"}
        self.computed = {name: m.compute for name, m in metrics.items() if isinstance(m, AccumulatedMetric)}
        self._loss = loss
        self._metrics = metrics
        self._targets = targets
        self._autocast = autocast
        self._names: tuple[list[str], list[str]] | None = None  # inputs, targets
        self._by_name = False
        self._nested = False
        self._needs_targets = True
        self._labels: LabelCheck | None = None
        self._part: MicroBatch | None = None
        self._cut_before = False
        self._before_forward: Callable[[MicroBatch], None] = lambda micro_batch: None

    def patch(self, patches: TrainingPatches) -> None:
        """Train with patches of the module, see `descend.experiment.patched_module`."""
        self.micro_batch_unit, self.running_statistics = patches.unit, patches.running
        self.needs_lockstep, self._before_forward = patches.in_turns, patches.begin

    def _begin(self, part: MicroBatch) -> None:
        """Set the micro-batch of the next forward pass; check the targets of a batch at its first micro-batch.

        Raises:
            DataError: the loss cannot take a target.
            ConfigurationError: it is not known which fields are targets.
        """
        if self._names is None:
            self._nested = any("/" in name for name in part.fields)
            self._settle(part.fields)
        self._part = part
        if self._labels and part.start == 0:
            self._labels.check(part.batch)

    def losses(self, micro_batch: MicroBatch) -> Losses:
        """See `descend.train.objective.Task.losses`."""
        self._before_forward(micro_batch)
        self._begin(micro_batch)
        fields = micro_batch.fields
        inputs, names = self._names or ([], [])
        values = nested(fields) if self._nested else fields
        targets = [values[name] for name in names]
        device = next(iter(fields.values())).device.type
        with torch.autocast(device, self._autocast) if self._autocast else nullcontext():
            output = self._call_of_part(values, inputs)
            if self._labels and self._part and self._labels.learn(output):
                self._labels.check(self._part.batch)
            count = len(next(iter(fields.values())))
            objective = self._objective(output, targets, count)
            return Losses(objective, self._measured(output, targets, count))

    def predict(self, part: MicroBatch) -> Any:
        """The output of the module for a micro-batch. Target fields are not used and may be missing."""
        self._needs_targets = False
        if self._names is None:
            self._settle(part.fields)
        inputs, _ = self._names or ([], [])
        device = next(iter(part.fields.values())).device.type
        with torch.autocast(device, self._autocast) if self._autocast else nullcontext():
            return self._call(nested(part.fields), inputs)

    def pass_through(self, fields: Mapping[str, Tensor]) -> None:
        """Run the module on samples; used to observe its layers."""
        if self._names is None:
            self._nested = any("/" in name for name in fields)
            self._settle(fields)
        self._call(nested(fields), self._names[0] if self._names else [])

    def _objective(self, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
        if isinstance(self._loss, FunctionLoss) and self._part and count < self._part.batch.size:
            self._loss.look_at_parts(output, targets, count)
        try:
            return looked_at(self._loss, output, targets, count)
        except (IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, DescendError):
                raise
            if self._labels and self._part:
                self._labels.check(self._part.batch, refused=True)
            asynchronous = str(error).startswith("CUDA error")  # may come from an earlier kernel
            if isinstance(self._loss, TorchLoss) and not asynchronous and not out_of_memory(error):
                raise DataError(self._loss.refusal(output, targets, error)) from error
            raise

    def _measured(self, output: Any, targets: Sequence[Tensor], count: int) -> dict[str, Ratio | Accumulated]:
        if not self._metrics:
            return {}
        with torch.no_grad():
            return {
                name: metric.accumulated(output, targets)
                if isinstance(metric, AccumulatedMetric)
                else looked_at(metric, output, targets, count)
                for name, metric in self._metrics.items()
            }

    def _call_of_part(self, values: Mapping[str, Any], inputs: Sequence[str]) -> Any:
        """The output for a micro-batch; checks the first split training batch for random numbers drawn by functions."""
        part = self._part
        if self._cut_before or part is None or part.count == part.batch.size or not self.module.training:
            return self._call(values, inputs)
        self._cut_before = True
        before = _states_of_generators(part.fields)
        output = self._call(values, inputs)
        if before != _states_of_generators(part.fields) and not unsupported_dropout(self.module):
            warnings.warn(
                f"{type(self.module).__name__} draws random numbers with functions, such as "
                "torch.nn.functional.dropout or torch.rand, so they depend on the micro-batch size: use layers such as "
                "nn.Dropout, whose draws do not",
                stacklevel=2,
            )
        return output

    def _call(self, values: Mapping[str, Any], inputs: Sequence[str]) -> Any:
        try:
            if self._by_name:
                return self.module(**{name: values[name] for name in inputs})
            return self.module(*[values[name] for name in inputs])
        except Exception as error:  # any error of a user's module is raised unchanged, with a note
            if "dtype" in str(error) and (wrong := self._wrong_type(values, inputs)):
                raise DataError(f"{wrong} ({error})") from error
            if not isinstance(error, DescendError) and not out_of_memory(error):
                error.add_note(self._where(error, values, inputs))
            raise

    def _where(self, error: BaseException, values: Mapping[str, Any], inputs: Sequence[str]) -> str:
        """The layer that raised an error, and the inputs of the module."""
        names = {id(module): name for name, module in self.module.named_modules()}
        layer, trace = self.module, error.__traceback__
        while trace:
            inner = trace.tb_frame.f_locals.get("self")
            layer = inner if id(inner) in names and isinstance(inner, torch.nn.Module) else layer
            trace = trace.tb_next
        name = f"'{names[id(layer)]}', a " if names[id(layer)] else "the module, a "
        given = ", ".join(f"{name} {_described(values[name])}" for name in inputs)
        return f"Raised in {name}{type(layer).__name__}; inputs of the module: {given}"

    def _wrong_type(self, values: Mapping[str, Any], inputs: Sequence[str]) -> str | None:
        """The message about an input whose dtype is not that of the weights; None if there is none."""
        types = {p.dtype for p in self.module.parameters() if p.is_floating_point()}
        for name in inputs:
            x = values[name]
            if isinstance(x, torch.Tensor) and types and x.dtype not in types:
                weights = ", ".join(sorted(_name_of(kind) for kind in types))
                return (
                    f"field '{name}' is {_name_of(x.dtype)} and the weights of {type(self.module).__name__} are "
                    f"{weights}: convert the data, for example with .to(torch.{weights.split(', ')[0]})"
                )
        return None

    def _settle(self, fields: Mapping[str, Tensor]) -> None:
        """Determine which fields are inputs and which are targets."""
        names = list(nested(fields))
        by_place = all(name.isdecimal() for name in names)
        targets = self._target_names(names, by_place)
        inputs = [name for name in names if name not in targets]
        if not targets and names == ["0"] and self._wants_a_target():
            targets = ["0"]  # a single tensor is its own target, as for an autoencoder
        if not inputs:
            raise ConfigurationError(f"all fields ({', '.join(names)}) are targets, and the module needs an input")
        self._by_name = not by_place and self._takes(inputs)
        self._names = (inputs, targets)
        if isinstance(self._loss, TorchLoss):
            on_cpu = all(values.is_cpu for values in fields.values())
            self._labels = LabelCheck(self._loss, [name for name in targets if name not in inputs], on_cpu)

    def _wants_a_target(self) -> bool:
        """Whether the loss needs a target where a sample is one tensor."""
        if not self._needs_targets:
            return False
        if isinstance(self._loss, FunctionLoss):
            return self._targets is None and self._loss.takes_a_target()
        return self._loss.targets > 0

    def _target_names(self, names: list[str], by_place: bool) -> list[str]:
        wanted = self._targets
        if isinstance(wanted, int) or (wanted is None and by_place):
            count = self._loss.targets if wanted is None else wanted
            if wanted is None and len(names) == 1:
                count = 0
            if count > len(names):
                raise ConfigurationError(f"a sample has the fields {', '.join(names)}, and {count} targets are needed")
            return names[len(names) - count :]
        if wanted is not None:
            for name in wanted:
                if name not in names:
                    raise ConfigurationError(
                        f"targets: a sample has no field '{name}'; it has {', '.join(names)}{nearest(name, names)}"
                    )
            return list(wanted)
        found = [name for name in names if name in TARGET_NAMES]
        if self._needs_targets and len(found) != min(1, self._loss.targets):
            raise ConfigurationError(
                f"which fields are targets is not clear from their names ({', '.join(names)}): pass targets=['...']"
            )
        return found

    def _takes(self, inputs: list[str]) -> bool:
        """Whether `forward` takes the inputs by name; a single input may have any name."""
        parameters = inspect.signature(self.module.forward).parameters
        if all(name in parameters for name in inputs):
            return True
        if len(inputs) == 1:
            return False
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return True
        unknown = next(name for name in inputs if name not in parameters)
        raise ConfigurationError(
            f"a sample has the field '{unknown}' and {type(self.module).__name__}.forward takes "
            f"{', '.join(parameters)}{nearest(unknown, parameters)}; rename it, or drop it from the data"
        )


def _described(value: Any) -> str:
    """Shape and dtype of a field, for messages."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {_name_of(value.dtype)}"
    return type(value).__name__


def _name_of(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _states_of_generators(fields: Mapping[str, Tensor]) -> list[bytes]:
    """The states of torch's global generators."""
    states = [torch.get_rng_state()]
    states += [torch.cuda.get_rng_state(x.device) for x in list(fields.values())[:1] if x.is_cuda]
    return [state.numpy().tobytes() for state in states]
