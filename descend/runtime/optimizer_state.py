"""Optimizer state for checkpoints: tensors and plain values, keyed by parameter name.

safetensors stores tensors and JSON the rest: `flatten` separates the two in a nested state and `unflatten` joins them
again. An optimizer's state is keyed by the names of the module's parameters, in whatever order its groups list them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from descend.errors import StorageError, table
from descend.files import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["flatten", "optimizer_state", "restore_optimizer", "unflatten"]

_TENSOR = "tensor:"  # prefix of a string that stands for a tensor
_TEXT = "text:"  # prefix of every other string, so that none is mistaken for a tensor


def flatten(value: Any, path: str = "") -> tuple[dict[str, torch.Tensor], Any]:
    """Separate the tensors of a nested state from its plain values.

    Args:
        value: Dictionaries with strings or integers as keys, lists, tuples, tensors, numbers, strings, None.
        path: Prefix of the tensors' names.

    Returns:
        The tensors by path such as "conv1_kernel/m", and the same structure with these paths in place of the tensors,
        serializable as JSON.

    Raises:
        StorageError: a value is neither a tensor nor plain.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _flatten(value, path, tensors)


def _flatten(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return _TENSOR + path
    if isinstance(value, str):
        return _TEXT + value
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(key): _flatten(item, _join(path, key), tensors) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_flatten(item, f"{path}/{i}", tensors) for i, item in enumerate(cast("list[Any]", value))]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise StorageError(f"state '{path}' is a {type(value).__name__}, which no checkpoint can hold")


def _join(path: str, key: Any) -> str:
    """The path of an entry; a slash in a key is escaped, so that no two entries have the same path."""
    part = escape(str(key))
    return f"{path}/{part}" if path else part


def unflatten(plain: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of `flatten`, except that keys come back as strings and tuples as lists.

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
            raise StorageError(f"the saved state refers to a tensor '{name}' that the checkpoint does not hold")
        return tensors[name]
    return plain


def optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> dict[str, Any]:
    """An optimizer's state dict, keyed by parameter name.

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
    """Load the result of `optimizer_state` into an optimizer, by parameter name.

    Args:
        optimizer: An optimizer of the same kind over the same parameters, in any order and any groups.
        names: The name of each of its parameters.
        saved: What `optimizer_state` returned.
        keep_options: Options of groups that keep their present values.

    Raises:
        StorageError: the saved state is damaged; or a parameter is missing, extra or of another shape, as a table in
            the message says. The optimizer is unchanged then.
    """
    _check_saved(saved)
    now = [names[p] for group in optimizer.param_groups for p in group["params"]]
    held = {name: group for group in saved["groups"] for name in group["weights"]}
    rows = [(name, "trained", "not there") for name in now if name not in held]
    rows += [(name, "not there", "trained") for name in held if name not in now]
    rows += _mismatches(optimizer, names, saved["weights"])
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
        _restore_dtypes(optimizer, names, saved["weights"])


def _check_saved(saved: Any) -> None:
    """Refuse a saved state of another structure, as a damaged or edited file may hold.

    Raises:
        StorageError: it has no groups of names or no entries by name.
    """
    groups = saved.get("groups") if isinstance(saved, dict) else None
    entries = saved.get("weights") if isinstance(saved, dict) else None
    good = isinstance(groups, list) and isinstance(entries, dict)
    good = good and all(isinstance(entry, dict) for entry in cast("dict[Any, Any]", entries).values())
    for group in cast("list[Any]", groups) if good else ():
        names = group.get("weights") if isinstance(group, dict) else None
        good = good and isinstance(names, list) and all(isinstance(name, str) for name in cast("list[Any]", names))
    if not good:
        raise StorageError(
            "the saved optimizer state is damaged: it has no groups and entries by name; use an older checkpoint, or "
            "pass reset_optimizer=True (--reset-optimizer) to begin with an empty state"
        )


def _mismatches(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Parameters whose saved entries have other shapes, as rows of a table.

    An optimizer may keep entries of any shape; only if no entry of a parameter fits, the state is surely another's.
    """
    rows: list[tuple[str, str, str]] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            entries = [e for e in saved.get(names[p], {}).values() if isinstance(e, torch.Tensor) and e.dim()]
            if entries and p.dim() and not any(_may_fit(e.shape, p.shape) for e in entries):
                rows.append((names[p], str(tuple(p.shape)), str(tuple(entries[0].shape))))
    return rows


def _may_fit(entry: torch.Size, weights: torch.Size) -> bool:
    """Whether an entry may belong to a parameter: each dimension is equal or 1, or the number of dimensions differs."""
    return len(entry) != len(weights) or all(a in (1, b) for a, b in zip(entry, weights, strict=True))


def _restore_dtypes(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]
) -> None:
    """Restore the dtypes of saved entries: torch casts most of them to the dtype of their parameter on loading."""
    for p, state in optimizer.state.items():
        entries = saved.get(names[p], {})
        for key, value in state.items():
            entry = entries.get(key)
            if isinstance(entry, torch.Tensor) and isinstance(value, torch.Tensor) and entry.dtype != value.dtype:
                state[key] = entry.to(value.device)


def _like(value: Any, present: Any) -> Any:
    """A restored option as the type of the present one: JSON has no tuples."""
    return tuple(value) if isinstance(present, tuple) else value
