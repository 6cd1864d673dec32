"""The task of an nn.Module: its calls, its loss and its metrics as numerators and denominators."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import DataError, DescendError, warn
from descend.experiment.accumulated_metrics import AccumulatedMetric
from descend.experiment.field_roles import assign_fields, check_fields, checked_targets
from descend.experiment.labels import LabelCheck
from descend.experiment.losses import FunctionLoss, TorchLoss, looked_at
from descend.torch_private import batch_norm_class, instance_norm_class, version_counter
from descend.train.micro_batch import out_of_memory
from descend.train.objective import Losses, Task
from descend.train.patches.dropout import advanced, marks_drawn, unsupported_dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from descend.experiment.field_roles import FieldRoles
    from descend.experiment.losses import Loss
    from descend.experiment.patched_module import TrainingPatches
    from descend.train.micro_batch import MicroBatch
    from descend.train.objective import Accumulated, Ratio

__all__ = ["ModuleTask"]


class ModuleTask(Task):
    """A user's module with its objective and metrics. The module is called and otherwise not changed.

    Args:
        module: Called with the inputs of samples: by position from tuples, by name from dictionaries.
        loss: The objective.
        metrics: Further measurements, by name.
        targets: Which fields are targets, see `descend.experiment.field_roles.assign_fields`.
        autocast: The dtype of torch's autocast; None computes in the dtype of the parameters.
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
        self.functions = {
            name: part.function for name, part in {"loss": loss, **metrics}.items() if isinstance(part, FunctionLoss)
        }
        self._loss = loss
        self._ratio_of = partial(looked_at, loss) if isinstance(loss, FunctionLoss) else loss.ratio
        self._metrics = metrics
        self._targets = checked_targets(targets)
        self._call = ModuleCall(module, autocast)
        self._roles: FieldRoles | None = None  # known from the first mini-batch, as are
        self._known: frozenset[str] = frozenset()  # the names of its fields
        self._labels: LabelCheck | None = None
        self._before_forward: Callable[[MicroBatch], None] = lambda micro_batch: None

    def patch(self, patches: TrainingPatches) -> None:
        """Train with patches of the module, see `descend.experiment.patched_module`."""
        self.micro_batch_unit, self.running_statistics = patches.unit, patches.running
        self.needs_lockstep, self._before_forward = patches.in_turns, patches.begin

    def losses(self, micro_batch: MicroBatch) -> Losses:
        """See `descend.train.objective.Task.losses`.

        Raises:
            DataError: the loss cannot take a target, or a field of the first mini-batch is missing; targets of a
                mini-batch are checked at its first micro-batch.
            ConfigurationError: it is not known which fields are targets.
        """
        self._before_forward(micro_batch)
        fields = micro_batch.fields
        roles = self._roles or self._roles_of(fields)
        if fields.keys() != self._known:
            check_fields(fields, self._known)
        if self._labels and micro_batch.start == 0:
            self._labels.check(micro_batch.batch)
        values = roles.values(fields)
        targets = [values[name] for name in roles.targets]
        with self._call.precision(fields):
            output = self._call.of_micro_batch(micro_batch, roles, values)
            if self._labels and self._labels.learn(output):
                self._labels.check(micro_batch.batch)
            objective = self._objective(micro_batch, output, targets)
            return Losses(objective, self._measured(micro_batch, output, targets) if self._metrics else {})

    def predict(self, part: MicroBatch) -> Any:
        """The output of the module for a micro-batch. Target fields are not used and may be missing."""
        roles = self._roles_of(part.fields, needs_targets=False)
        with self._call.precision(part.fields):
            return self._call(roles, roles.values(part.fields))

    def pass_through(self, fields: Mapping[str, Tensor]) -> None:
        """Run the module on samples; used to observe its layers."""
        roles = self._roles_of(fields)
        self._call(roles, roles.values(fields))

    def _roles_of(self, fields: Mapping[str, Tensor], *, needs_targets: bool = True) -> FieldRoles:
        """Inputs and targets, determined from the first fields that are seen."""
        if self._roles is None:
            self._roles = assign_fields(fields, self.module, self._loss, self._targets, needs_targets=needs_targets)
            self._known = frozenset(fields)
            if isinstance(self._loss, TorchLoss):
                on_cpu = all(values.is_cpu for values in fields.values())
                checked = [name for name in self._roles.targets if name not in self._roles.inputs]
                self._labels = LabelCheck(self._loss, checked, on_cpu)
        return self._roles

    def _objective(self, part: MicroBatch, output: Any, targets: Sequence[Tensor]) -> Ratio:
        count = next(iter(part.fields.values())).shape[0]  # len() asks whether it is traced
        if isinstance(self._loss, FunctionLoss) and count < part.batch.size:
            self._loss.look_at_parts(output, targets, count)
        try:
            ratio = self._ratio_of(output, targets, count)
            if self._labels and self._labels.all_count and self._labels.loss.divides_by_count:
                # Counted on the host: a denominator on a GPU would take four more launches in each step.
                return ratio._replace(denominator=float(targets[0].numel()))
            return ratio
        except (IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, DescendError):
                raise
            if self._labels:
                self._labels.check(part.batch, refused=True)
            asynchronous = str(error).startswith("CUDA error")  # may come from an earlier kernel
            if isinstance(self._loss, TorchLoss) and not asynchronous and not out_of_memory(error):
                raise DataError(self._loss.refusal(output, targets, error)) from error
            raise

    def _measured(self, part: MicroBatch, output: Any, targets: Sequence[Tensor]) -> dict[str, Ratio | Accumulated]:
        count = next(iter(part.fields.values())).shape[0]  # len() asks whether it is traced
        with torch.no_grad():
            for metric in self._metrics.values():
                if isinstance(metric, FunctionLoss) and metric.metric:
                    metric.look_at_parts(output, targets, count)
            return {
                name: metric.accumulated(output, targets)
                if isinstance(metric, AccumulatedMetric)
                else looked_at(metric, output, targets, count)
                for name, metric in self._metrics.items()
            }


# ---- calls of a user's module, with errors that name the layer and the inputs, and a warning about random numbers


class ModuleCall:
    """Calls a module with the inputs of samples.

    Args:
        module: Called and otherwise not changed.
        autocast: The dtype of torch's autocast; None computes in the dtype of the parameters.
    """

    def __init__(self, module: torch.nn.Module, autocast: torch.dtype | None = None) -> None:
        self.module = module
        self._autocast = autocast
        self._draws_checked = False

    def precision(self, fields: Mapping[str, Tensor]) -> AbstractContextManager[Any]:
        """The autocast context for the device of some fields."""
        if self._autocast is None:
            return _NOTHING
        return torch.autocast(next(iter(fields.values())).device.type, self._autocast)

    def __call__(self, roles: FieldRoles, values: Mapping[str, Any]) -> Any:
        """The output for entries of samples by name.

        Raises:
            DataError: an input has another dtype than the parameters.
        """
        try:
            return roles.call(self.module, values)
        except Exception as error:  # any error of a user's module is raised unchanged, with a note
            if "dtype" in str(error) and (wrong := self._wrong_dtype(roles.inputs, values)):
                raise DataError(f"{wrong} ({error})") from error
            if not isinstance(error, DescendError) and not out_of_memory(error):
                error.add_note(self._where(error, roles, values))
            raise

    def of_micro_batch(self, part: MicroBatch, roles: FieldRoles, values: Mapping[str, Any]) -> Any:
        """The output for a micro-batch; checks the first split training batch for random numbers drawn by functions and
        for buffers that each call changes."""
        if self._draws_checked or part.count == part.batch.size or not self.module.training:
            return self(roles, values)
        self._draws_checked = True
        before, marks, buffers = _generator_states(part.fields), marks_drawn(), _buffers(self.module)
        output = self(roles, values)
        changed = [name for name, now in _buffers(self.module).items() if now != buffers.get(name)]
        if changed:
            warn(
                f"'{changed[0]}' of {type(self.module).__name__} is a buffer that each forward pass changes, so what "
                "follows from it depends on the micro-batch size and on the number of ranks"
            )
        before[0] = advanced(before[0], marks_drawn() - marks)
        if not all(map(torch.equal, before, _generator_states(part.fields))) and not unsupported_dropout(self.module):
            warn(
                f"{type(self.module).__name__} draws random numbers with functions, such as "
                "torch.nn.functional.dropout or torch.rand, so they depend on the micro-batch size: use layers such as "
                "nn.Dropout, whose draws do not"
            )
        return output

    def _where(self, error: BaseException, roles: FieldRoles, values: Mapping[str, Any]) -> str:
        """The layer that raised an error, and the inputs of the module."""
        names = {id(module): name for name, module in self.module.named_modules()}
        layer, trace = self.module, error.__traceback__
        while trace:
            inner = trace.tb_frame.f_locals.get("self")
            layer = inner if id(inner) in names and isinstance(inner, torch.nn.Module) else layer
            trace = trace.tb_next
        name = f"'{names[id(layer)]}', a " if names[id(layer)] else "the module, a "
        given = ", ".join(f"{name} {_described(values[name])}" for name in roles.inputs)
        note = f"Raised in {name}{type(layer).__name__}; inputs of the module: {given}"
        if roles.joined:
            note += f", which it gets as one (n, {len(roles.inputs)})"
        return note

    def _wrong_dtype(self, inputs: Sequence[str], values: Mapping[str, Any]) -> str | None:
        """The message about an input whose dtype is not that of the parameters; None if there is none."""
        types = {p.dtype for p in self.module.parameters() if p.is_floating_point()}
        for name in inputs:
            x = values[name]
            if isinstance(x, torch.Tensor) and types and x.dtype not in types:
                weights = ", ".join(sorted(_name_of(kind) for kind in types))
                return (
                    f"field '{name}' is {_name_of(x.dtype)} and the weights of {type(self.module).__name__} are "
                    f"{weights}: convert the data, for example with .to(torch.{weights.split(', ')[0]}), or with "
                    f".astype('{weights.split(', ')[0]}') where it is an array"
                )
        return None


_NOTHING = nullcontext()


def _described(value: Any) -> str:
    """Shape and dtype of a field, for messages."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {_name_of(value.dtype)}"
    return type(value).__name__


def _name_of(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _generator_states(fields: Mapping[str, Tensor]) -> list[Tensor]:
    """The states of torch's global generators."""
    states = [torch.get_rng_state()]
    states += [torch.cuda.get_rng_state(x.device) for x in list(fields.values())[:1] if x.is_cuda]
    return states


def _buffers(module: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Which tensors the buffers are and how often they were written, but for statistics of norms, of which others tell.

    Those of a layer under `torch.nn.utils.parametrize` are buffers of its parametrization.
    """
    norms = batch_norm_class(), instance_norm_class()
    return {
        f"{prefix}.{name}" if prefix else name: (id(buffer), version_counter(buffer))
        for prefix, part in module.named_modules()
        if not isinstance(part, norms)
        for name, buffer in part.named_buffers(recurse=False)
    }
