"""Calls of a user's module, with errors that name the layer and the inputs, and a warning about random numbers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import DataError, DescendError, warn
from descend.torch_private import batch_norm_class, instance_norm_class, version_counter
from descend.train.memory import out_of_memory
from descend.train.patches.dropout import advanced, marks_drawn, unsupported_dropout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from descend.experiment.field_roles import FieldRoles
    from descend.train.micro_batch import MicroBatch

__all__ = ["ModuleCall"]


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
