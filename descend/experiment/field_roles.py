"""Which fields of a sample are inputs of a user's module and which are targets of its loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch

from descend.arguments import is_integer, shown
from descend.data.nested_fields import nested
from descend.errors import ConfigurationError, DataError, nearest
from descend.experiment.losses import FunctionLoss
from descend.runtime.seeds import forked_rng
from descend.torch_private import has_hooks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor, nn

    from descend.experiment.losses import Loss

__all__ = [
    "TARGET_NAMES",
    "FieldRoles",
    "assign_fields",
    "check_fields",
    "checked_targets",
    "classes_of_module",
    "join_columns",
    "remember_classes",
    "takes_one",
]

OF_ARRAY_FILE = "samples"  # the field of a file that holds one array
TARGET_NAMES = ("target", "targets", "label", "labels", "response", "responses", "y")
_CLASSES: WeakKeyDictionary[nn.Module, Mapping[str, Sequence[str]]] = WeakKeyDictionary()


def remember_classes(module: nn.Module, classes: Any) -> None:
    """Note the classes that outputs of a module mean, by field, where training or a checkpoint says them."""
    lists = cast("Mapping[str, Any]", classes) if isinstance(classes, Mapping) else {}
    texts = {name: of for name, of in lists.items() if isinstance(of, list) and all(isinstance(c, str) for c in of)}
    _CLASSES.pop(module, None)
    if texts:
        _CLASSES[module] = texts


def classes_of_module(module: nn.Module) -> Mapping[str, Sequence[str]] | None:
    """The classes of the training data of a module by field, in the order of their numbers; None: not known."""
    inner = getattr(module, "module", module)  # such as that of DistributedDataParallel
    return _CLASSES.get(module) or (_CLASSES.get(inner) if isinstance(inner, torch.nn.Module) else None)


@dataclass(frozen=True)
class FieldRoles:
    """Inputs and targets among the fields of a sample.

    Attributes:
        inputs: Names of the fields that the module is called with, in their order.
        targets: Names of the fields that the loss is called with, in their order.
        by_name: Whether `forward` gets its inputs as keyword arguments.
        is_nested: Whether fields are parts of nested samples ("a/b").
        joined: Whether the inputs are columns of a table, a number each, and `forward` gets them as one (n, columns);
            see `takes_one`.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    by_name: bool
    is_nested: bool
    joined: bool = False

    def values(self, fields: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The entries of a sample by name: tensors, or nested tuples and dictionaries of them."""
        return nested(fields) if self.is_nested else fields

    def call(self, module: nn.Module, values: Mapping[str, Any]) -> Any:
        """The output of a module for the inputs among `values`."""
        if self.joined:
            return module(join_columns(module, [values[name] for name in self.inputs]))
        if self.by_name:
            return module(**{name: values[name] for name in self.inputs})
        return module(*[values[name] for name in self.inputs])


def assign_fields(
    fields: Mapping[str, Tensor],
    module: nn.Module,
    loss: Loss,
    targets: int | Sequence[str] | None = None,
    *,
    needs_targets: bool = True,
) -> FieldRoles:
    """Determine inputs and targets from the fields of a first mini-batch.

    Args:
        fields: The fields by name; decimal names are positions in a tuple.
        module: Called with the inputs: by position from tuples, by name from dictionaries; columns of a table, a number
            each, are one input (n, columns) of a module that takes one.
        loss: Called with the targets.
        targets: Names of the targets, or how many of the last fields are targets. None: of a tuple the last entry, of a
            dictionary the one of `TARGET_NAMES`; a single tensor is its own target.
        needs_targets: False for predictions, whose samples may have no target.

    Raises:
        ConfigurationError: the targets are not known, or `forward` does not take an input.
    """
    names = list(nested(fields))
    by_position = all(name.isdecimal() for name in names)
    found = _targets(names, loss, targets, by_position=by_position, needs_targets=needs_targets)
    inputs = [name for name in names if name not in found]
    if not found and names == ["0"] and needs_targets and _wants_a_target(loss, targets):
        found = ["0"]  # a single tensor is its own target, as for an autoencoder
    if not inputs:
        raise ConfigurationError(f"all fields ({', '.join(names)}) are targets, and the module needs an input")
    joined = takes_one(module, inputs, fields)
    by_name = not by_position and not joined and _takes(module, inputs)
    if not joined and not by_name:
        _check_number(module, inputs, found)
    return FieldRoles(tuple(inputs), tuple(found), by_name, any("/" in name for name in fields), joined)


def checked_targets(targets: Any) -> int | list[str] | None:
    """What a user says about targets: names, one name, how many of the last fields they are, or None.

    Raises:
        ConfigurationError: it is something else.
    """
    if targets is None or (is_integer(targets) and targets >= 0):
        return targets
    names = [targets] if isinstance(targets, str) else targets
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
        raise ConfigurationError(
            f"targets must be names of fields in a list, how many of the last fields are targets, or None, got "
            f"{shown(targets)}"
        )
    return list(cast("list[str]", names))


def check_fields(found: Collection[str], known: Collection[str], where: str = "a batch") -> None:
    """Check that samples have the fields of the first ones; entries of a dictionary may be more.

    Args:
        found: Names of the fields of some samples; decimal names are positions in a tuple.
        known: Those of the first samples that were seen, in training.
        where: What has the samples, for the error.

    Raises:
        DataError: a field is missing, or tuples are longer than those before.
    """
    by_position = all(name.partition("/")[0].isdecimal() for name in (*found, *known))
    if missing := [name for name in known if name not in found] or (by_position and len(found) != len(known)):
        lacking = f" (missing: {', '.join(sorted(missing))})" if isinstance(missing, list) else ""
        raise DataError(
            f"samples of {where} have the fields {', '.join(sorted(found))} and those of the first training batch "
            f"{', '.join(sorted(known))}{lacking}: all samples need the same fields, in training, validation and test"
        )


def _wants_a_target(loss: Loss, targets: int | Sequence[str] | None) -> bool:
    """Whether the loss needs a target where a sample is one tensor."""
    if isinstance(loss, FunctionLoss):
        return targets is None and loss.takes_a_target()
    return loss.targets > 0


def _targets(
    names: list[str], loss: Loss, wanted: int | Sequence[str] | None, *, by_position: bool, needs_targets: bool
) -> list[str]:
    if isinstance(wanted, int) or (wanted is None and by_position):
        count = loss.targets if wanted is None else wanted
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
    if needs_targets and len(found) != min(1, loss.targets):
        raise ConfigurationError(
            f"which fields are targets is not clear from their names ({', '.join(names)}): pass targets=['...']"
        )
    return found


def _check_number(module: nn.Module, inputs: list[str], targets: list[str]) -> None:
    """Refuse more inputs, or fewer, than `forward` takes by position; a hook may change them before."""
    if has_hooks(module):
        return
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # of a compiled module, which does not say what it takes
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        besides = f" beside its {'target' if len(targets) == 1 else 'targets'} {', '.join(targets)}" if targets else ""
        raise ConfigurationError(
            f"a sample has the fields {', '.join(inputs)}{besides}, and {type(module).__name__}.forward{signature} "
            f"cannot be called with them: {error}; targets= says how many of the last fields are targets"
        ) from None


def join_columns(module: nn.Module, columns: Sequence[Tensor]) -> Tensor:
    """Columns of a table, (n,) each, as the one input (n, columns) of a module, in the type of its weights.

    Integers that go straight into an embedding are its indices and stay integers.
    """
    types = [p.dtype for p in module.parameters() if p.is_floating_point()]
    dtype = types[0] if types else torch.get_default_dtype()
    if _begins_with_embedding(module) and all(_is_integer(column) for column in columns):
        dtype = torch.int64
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def takes_one(module: nn.Module, inputs: Sequence[str], fields: Mapping[str, Tensor]) -> bool:
    """Whether inputs are columns of a table, a number each, and `forward` takes one input, under another name.

    One column is such a table, too, where it has a name of the user's: an entry of a tuple and an array in a file of
    its own are arrays. A column of integers stays as it is in a module with an embedding, which takes indices (n,); and
    one whose name `forward` has stays so where that computes with (n,).
    """
    if not inputs or any(name not in fields or fields[name].ndim != 1 for name in inputs):
        return False
    columns = [fields[name] for name in inputs]
    if any(column.is_complex() for column in columns):
        return False
    if len(inputs) == 1:
        is_array = inputs[0].isdecimal() or list(fields) == [OF_ARRAY_FILE]
        if is_array or (_is_integer(columns[0]) and _has_embedding(module)):
            return False
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    variable = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    is_torchs = (getattr(type(module).forward, "__module__", None) or "").startswith("torch.nn.")  # as are its names
    named = not is_torchs and any(p.name in inputs for p in positional)
    if named and len(inputs) == 1:
        named = _computes_with(module, columns[0])
    return len(needed) == 1 and not variable and not named


def _computes_with(module: nn.Module, column: Tensor) -> bool:
    """Whether a module takes a column (n,) without an error; tried with two rows, and nothing of it is kept."""
    rows = column[:1].repeat(2) if len(column) else column.new_zeros(2)
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with forked_rng(), torch.no_grad():
            module(rows)
    except Exception:  # of a user's module
        return False
    else:
        return True
    finally:
        for part, training in before:
            part.training = training


def _is_integer(column: Tensor) -> bool:
    return not column.is_floating_point() and column.dtype is not torch.bool


def _has_embedding(module: nn.Module) -> bool:
    return any(isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for part in module.modules())


def _begins_with_embedding(module: nn.Module) -> bool:
    while type(module).forward is torch.nn.Sequential.forward and len(cast("torch.nn.Sequential", module)):
        module = cast("torch.nn.Sequential", module)[0]
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


def _takes(module: nn.Module, inputs: list[str]) -> bool:
    """Whether `forward` takes the inputs by name; a single input may have any name."""
    parameters = inspect.signature(module.forward).parameters
    if all(name in parameters for name in inputs):
        needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        if missing := [name for name in needed if name not in inputs]:
            raise ConfigurationError(
                f"{type(module).__name__}.forward needs '{missing[0]}' and a sample has {', '.join(inputs)} beside its "
                "targets: add the field to the data, or give the argument a default"
            )
        return True
    if len(inputs) == 1:
        return False
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return True
    unknown = next(name for name in inputs if name not in parameters)
    raise ConfigurationError(
        f"a sample has the field '{unknown}' and {type(module).__name__}.forward takes "
        f"{', '.join(parameters)}{nearest(unknown, parameters)}; rename it, or drop it from the data"
    )
