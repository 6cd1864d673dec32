"""Flattens nested samples into named fields, and unflattens them.

(image, label)                       "0", "1"
{"ids": …, "mask": …}                "ids", "mask"
((left, right), {"label": …})        "0/0", "0/1", "1/label"
one tensor                           "0"
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.plain_arrays import plain_tensor, text_hint, widened
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

__all__ = [
    "as_rows",
    "digest_of",
    "fields_of",
    "form_of",
    "nested",
    "part_of",
    "parts_of",
    "samples_as_batches",
    "stored_rows",
]


def fields_of(sample: Any) -> dict[str, Any]:
    """The leaves of a sample, or of a batch, by name.

    Raises:
        DataError: a key is not a string, or contains the slash that separates levels.
    """
    return dict(_walk(sample, ()) if isinstance(sample, (dict, tuple, list)) else [("0", sample)])


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (tuple, list)):
        items = ((str(i), item) for i, item in enumerate(cast("list[Any]", value)))
    elif isinstance(value, dict):
        items = iter(cast("dict[Any, Any]", value).items())
    else:
        yield "/".join(path), value
        return
    for key, item in items:
        if not isinstance(key, str) or "/" in key:
            raise DataError(f"keys of a sample must be strings without '/', got {key!r}")
        yield from _walk(item, (*path, key))


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Unflatten: the top level by name, and within it tuples and dictionaries as they were."""
    top: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = name.split("/")
        place = top
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return {key: _as_tuple(value) for key, value in top.items()}


def _as_tuple(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _as_tuple(item) for key, item in cast("dict[str, Any]", value).items()}
    return tuple(items.values()) if all(key.isdecimal() for key in items) else items


def form_of(value: Any) -> str:
    """Shape and type of an array or a tensor; the name of its type for anything else; "a number" for all numbers."""
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return "a number"
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value).__name__
    return f"{tuple(shape)} {str(value.dtype).removeprefix('torch.')}"


def as_rows(batch: Any, place: str, count: int | None = None) -> dict[str, Tensor]:
    """A batch as named tensors of one length, in types that torch computes with; see `descend.data.plain_arrays`.

    Args:
        batch: Tensors, arrays or numbers, nested.
        place: The name of the batch in errors.
        count: Number of samples, where it is known.

    Raises:
        DataError: a leaf is not an array, or has another length, or a value cannot be used.
    """
    return {name: widened(values) for name, values in stored_rows(batch, place, count, stored=False).items()}


def stored_rows(batch: Any, place: str, count: int | None = None, *, stored: bool = True) -> dict[str, Tensor]:
    """As `as_rows`, with unsigned integers in their own type.

    Args:
        batch: As for `as_rows`.
        place: As for `as_rows`.
        count: As for `as_rows`.
        stored: Whether what is computed is a copy of the rows, so that arrays that cannot be written to need none.
    """
    import torch

    rows: dict[str, Tensor] = {}
    for name, value in fields_of(batch).items():
        if not isinstance(value, (torch.Tensor, np.ndarray)) or value.ndim == 0:
            raise DataError(
                f"{place}: field '{name}' must be a tensor or an array with an entry for each sample, got "
                f"{_kind_of(value)}; remove it, or turn it into numbers with collate_fn"
            )
        try:
            rows[name] = plain_tensor(name, value, copied=stored)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
    lengths = {name: len(value) for name, value in rows.items()}
    if not rows or len({*lengths.values(), *([] if count is None else [count])}) > 1:
        wanted = "of one length" if count is None else f"of length {count}"
        raise DataError(f"{place}: the fields must be {wanted}, got lengths {lengths}")
    return rows


def samples_as_batches(data: Any) -> str | None:
    """What is wrong with a list or a tuple that was meant as samples, where it would be taken as a list of batches.

    Returns:
        What it is and what to write; None where it may be a list of batches.
    """
    if isinstance(data, tuple) and data:
        for place, part in enumerate(cast("tuple[Any, ...]", data)):
            if hasattr(type(part), "to_numpy"):
                return f"part {place} is a {type(part).__name__}: pass part.to_numpy(), float columns as float32"
            if isinstance(part, list) and isinstance(_first_leaf(cast("Any", part)), (str, bool, int, float)):
                texts = any(isinstance(one, str) for one in cast("list[Any]", part))
                text = text_hint(cast("list[Any]", part)) if texts else "pass torch.tensor(part)"
                return f"part {place} is a list of Python values: {text}"
    if isinstance(data, list) and data:
        leaves = fields_of(cast("Any", data[0]))
        if any(isinstance(one, (str, bool, int, float)) or getattr(one, "ndim", 1) == 0 for one in leaves.values()):
            return (
                "a list is taken as mini-batches, and its first entry is a single sample: pass tensors of all samples, "
                "such as (torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples]))"
            )
    return None


def _first_leaf(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = cast("Any", value[0])
    return value


def digest_of(fields: Mapping[str, Any]) -> str:
    """A hash of the names and the content of arrays, tensors or texts, the same in every process."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(fields):
        values = fields[name]
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        array = np.asarray(values)
        content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
        digest.update(name.encode() + content)
    return digest.hexdigest()


def spread(count: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Up to so many of `count` positions, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def parts_of(kind: np.dtype[Any]) -> Iterator[tuple[str, ...]]:
    """The places of the parts of a structured type, whose parts may be such types; () of another type."""
    if kind.base.names is None:
        yield ()
    for part in kind.base.names or ():
        for below in parts_of(kind.base[part]):
            yield part, *below


def part_of(whole: np.dtype[Any], parts: Sequence[str]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of a part of a structured type."""
    shape, kind = whole.shape, whole.base
    for part in parts:
        shape, kind = shape + kind[part].shape, kind[part].base
    return shape, kind


def _kind_of(value: Any) -> str:
    return "one number, as of a single sample" if hasattr(value, "ndim") else f"a {type(value).__name__}"
