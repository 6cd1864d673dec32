"""State as tensors and plain values, bound to names.

safetensors keeps tensors, JSON the rest. `flatten` takes a nested state apart and `unflatten` puts it together again;
an optimizer's state is keyed by the names of the module's weights, whatever order its groups list them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from descend.errors import StorageError, table
from descend.filenames import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["flatten", "optimizer_state", "restore_optimizer", "unflatten"]

_TENSOR = "tensor:"  # begins a text that stands for a tensor
_TEXT = "text:"  # begins any other text, so that no text is taken for a tensor


def flatten(value: Any, path: str = "") -> tuple[dict[str, torch.Tensor], Any]:
    """Take a nested state apart.

    Args:
        value: Dictionaries with texts or whole numbers as keys, lists, tuples, tensors, numbers, texts, None.
        path: Prefix of the tensors' names.

    Returns:
        The tensors by path such as "conv1_kernel/m", and the same structure with their names in their places, fit for
        JSON.

    Raises:
        StorageError: something in it is neither a tensor nor plain.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _take(value, path, tensors)


def _take(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return _TENSOR + path
    if isinstance(value, str):
        return _TEXT + value
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(key): _take(item, _below(path, key), tensors) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_take(item, f"{path}/{i}", tensors) for i, item in enumerate(cast("list[Any]", value))]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise StorageError(f"state '{path}' is a {type(value).__name__}, which no checkpoint can hold")


def _below(path: str, key: Any) -> str:
    """The path of an entry; a key with a slash in it stays one part of the path, so that no two paths are equal."""
    part = escape(str(key))
    return f"{path}/{part}" if path else part


def unflatten(plain: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put together what `flatten` took apart. Keys come back as texts and tuples as lists.

    Raises:
        StorageError: a tensor is missing.
    """
    if isinstance(plain, dict):
        return {key: unflatten(item, tensors) for key, item in cast("dict[str, Any]", plain).items()}
    if isinstance(plain, list):
        return [unflatten(item, tensors) for item in cast("list[Any]", plain)]
    if isinstance(plain, str):
        if plain.startswith(_TEXT):
            return plain.removeprefix(_TEXT)
        name = plain.removeprefix(_TENSOR)
        if name not in tensors:
            raise StorageError(f"the saved state names a tensor '{name}' that is not there")
        return tensors[name]
    return plain


def optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> dict[str, Any]:
    """An optimizer's state by weights' names.

    Args:
        optimizer: Any torch optimizer.
        names: The name of each parameter of the module.

    Returns:
        `{"weights": {name: {entry: value}}, "groups": [{"weights": [name, ...], option: value}]}`; options that are not
        plain, such as functions, are left out, since they come from the program and not from a file.
    """
    state = optimizer.state_dict()
    groups: list[dict[str, Any]] = []
    called: dict[int, str] = {}
    skip = ("params", "param_names")
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        called.update({i: names[p] for i, p in zip(saved["params"], group["params"], strict=True)})
        options = {key: value for key, value in saved.items() if key not in skip and _is_plain(value)}
        groups.append({"weights": [names[p] for p in group["params"]], **options})
    return {"weights": {called[i]: entry for i, entry in state["state"].items()}, "groups": groups}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in cast("list[Any]", value))
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    saved: Mapping[str, Any],
    keep_options: Iterable[str] = (),
) -> None:
    """Give an optimizer the state that `optimizer_state` took, by name.

    Args:
        optimizer: An optimizer of the same kind over the same weights, in any order and any groups.
        names: The name of each of its parameters.
        saved: What `optimizer_state` returned.
        keep_options: Options of groups that stay as they are now.

    Raises:
        StorageError: a weights object is missing, extra or of another shape; a table says which. Nothing was changed
            then.
    """
    now = [names[p] for group in optimizer.param_groups for p in group["params"]]
    held = {name: group for group in saved["groups"] for name in group["weights"]}
    rows = [(name, "trained", "not there") for name in now if name not in held]
    rows += [(name, "not there", "trained") for name in held if name not in now]
    rows += _misfits(optimizer, names, saved["weights"])
    if rows:
        what = "the saved optimizer state is of other weights; nothing was changed:"
        raise StorageError(
            table(what, rows, "pass reset_optimizer=True (--reset-optimizer) to begin with an empty state")
        )
    state = optimizer.state_dict()
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    numbers = [i for group in state["param_groups"] for i in group["params"]]
    entries = {i: saved["weights"][name] for i, name in zip(numbers, order, strict=True) if name in saved["weights"]}
    groups: list[dict[str, Any]] = []
    for group, present in zip(optimizer.param_groups, state["param_groups"], strict=True):
        source = held[names[group["params"][0]]] if group["params"] else {}
        skip = {"weights", *keep_options}
        restored = {key: value for key, value in source.items() if key not in skip and key in present}
        groups.append({**present, **{key: _like(value, present[key]) for key, value in restored.items()}})
    optimizer.load_state_dict({"state": entries, "param_groups": groups})
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        _in_saved_types(optimizer, names, saved["weights"])


def _misfits(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Entries shaped like neither their weights nor a number nor what the optimizer holds now, as rows of a table.

    Only where no entry of a weights object fits is it sure to be another's.
    """
    rows: list[tuple[str, str, str]] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            entries = [e for e in saved.get(names[p], {}).values() if isinstance(e, torch.Tensor) and e.dim()]
            if entries and p.dim() and not any(_may_belong(e.shape, p.shape) for e in entries):
                rows.append((names[p], str(tuple(p.shape)), str(tuple(entries[0].shape))))
    return rows


def _may_belong(entry: torch.Size, weights: torch.Size) -> bool:
    """Whether an entry may be of these weights: in each dimension as long as they are, or 1; or of other dimensions."""
    return len(entry) != len(weights) or all(a in (1, b) for a, b in zip(entry, weights, strict=True))


def _in_saved_types(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]
) -> None:
    """Give entries the types that they were saved in: torch loads most of them in the type of their weights."""
    for p, state in optimizer.state.items():
        entries = saved.get(names[p], {})
        for key, value in state.items():
            entry = entries.get(key)
            if isinstance(entry, torch.Tensor) and isinstance(value, torch.Tensor) and entry.dtype != value.dtype:
                state[key] = entry.to(value.device)


def _like(value: Any, present: Any) -> Any:
    """A restored option in the type that it has now: JSON has no tuples."""
    return tuple(value) if isinstance(present, tuple) else value
