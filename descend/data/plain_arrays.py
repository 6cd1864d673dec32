"""Arrays of any kind as the plain ones that torch computes with; no value changes unseen.

masks              masked values are NaN where numbers have a point, and an error elsewhere
bytes and strides  in the byte order of this machine, and with strides that torch has; what differs is copied
unsigned integers  of 16 bits and more become int64, since torch computes little with them; larger ones are an error
long double        float64; integers that float64 does not have are an error, as are numbers beyond its range
the rest           text, dates, objects and structures are errors that say what to write

`numpy.ma` takes True for a value that is missing, and torch's MaskedTensor for one that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.tables.cells import count_texts
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from descend.data.reader_protocol import Array

__all__ = [
    "NUMBER_CLASSES",
    "columns_of",
    "native",
    "plain_array",
    "plain_collate",
    "plain_convert",
    "plain_sample",
    "plain_tensor",
    "text_hint",
    "unmasked",
    "widened",
]

NUMBER_CLASSES = "number the classes, classes, labels = numpy.unique(labels, return_inverse=True), and pass labels"
_PLAIN = "fciub"  # kinds of types that torch has
_LONG = "gGLQ"  # numbers of which torch makes no batch: long double, and integers of 64 bits without a sign
_READY = "?bBhilqefdFD"  # types of arrays that torch has
_LOOKED_AT = (np.ndarray, np.generic, tuple, list, dict)
_LARGEST = 2**63 - 1  # of int64
_REMEDIES = {
    **dict.fromkeys("UST", NUMBER_CLASSES),
    "O": "where each is a number, x.astype('float32') or x.astype('int64') makes numbers of them",
    **dict.fromkeys("Mm", "make numbers of them, such as x.astype('datetime64[s]').astype('int64')"),
    "V": "pass its columns by name, {name: x[name] for name in x.dtype.names}, where it has any",
}


def native(array: Any) -> Any:
    """An array in the byte order of this machine, the only one that torch takes; files may have another one."""
    if not isinstance(array, np.ndarray) or array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def plain_array(name: str, array: Array) -> Array:
    """An array without a mask, in a type and with strides that torch has; itself where it is such.

    Args:
        name: Of the field, in errors.
        array: Any; unsigned integers keep their type, so that a view of a large file remains one.

    Raises:
        DataError: a value is masked where there is no NaN, cannot be converted, or torch has no such type.
    """
    kind = array.dtype
    if kind.kind not in _PLAIN:
        remedy = _remedy(array)
        raise DataError(
            f"field '{name}' is an array of {kind}, which torch has no type for{f': {remedy}' if remedy else ''}"
        )
    array = native(unmasked(name, array))
    if kind.char in "gG":
        array = _from_long_double(name, array)
    elif kind.kind == "u" and kind.itemsize == 8:
        _check_range(name, array, array.view(np.int64) < 0)
    if not array.flags.c_contiguous and any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    return array


def _remedy(array: Array) -> str | None:
    """The remedy for an array of a type that torch lacks."""
    entries: list[Any] = array.reshape(-1).tolist() if array.dtype.kind in "USTO" else []
    if array.dtype.kind != "O" or any(isinstance(entry, (str, bytes)) for entry in entries):
        return text_hint(entries) if entries else _REMEDIES.get(array.dtype.kind)
    return _REMEDIES["O"]


def text_hint(texts: Sequence[Any]) -> str:
    """The remedy for texts in place of numbers: classes have numbers, and among numbers the others are mistakes."""
    if (problem := count_texts(texts).of_target()) is None:
        return NUMBER_CLASSES
    place, reason = problem
    return f"{'' if place is None else f'entry {place:,}: '}{reason}; pass numbers, and NaN where one is missing"


def unmasked(name: str, array: Array) -> Array:
    """An array without a mask; what is masked is NaN.

    Raises:
        DataError: a value is masked, and the type has no NaN.
    """
    if not isinstance(array, np.ma.MaskedArray) or not (mask := np.ma.getmaskarray(cast("Any", array))).any():
        return np.asarray(array)
    if array.dtype.kind in "fc":
        return np.asarray(cast("Any", array).filled(np.nan))
    raise DataError(
        f"field '{name}' must have all its values, as {array.dtype} has no NaN, got {_counted(mask, 'masked one')}: "
        "leave these samples out, or fill them with a value, such as x.astype('float32').filled(numpy.nan)"
    )


def _counted(wrong: Array, what: str) -> str:
    """How many entries are wrong, and where the first is."""
    count = int(np.count_nonzero(wrong))
    first = "" if not wrong.ndim else f", {'the first ' if count > 1 else ''}at index {int(np.argwhere(wrong)[0, 0])}"
    return f"{count:,} {what}{'s' if count > 1 else ''}{first}"


def _from_long_double(name: str, array: Array) -> Array:
    """As float64, or as complex numbers of two."""
    is_complex = array.dtype.kind == "c"
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(np.complex128 if is_complex else np.float64)
    for part in (np.real, np.imag) if is_complex else (np.asarray,):
        short, long = np.asarray(part(found)), np.asarray(part(array))
        lost = (short != long) & (np.isinf(short) | (long == np.floor(long)))  # NaN is equal to nothing
        if lost.any():
            raise DataError(
                f"field '{name}' must have numbers that float64 has, as torch has no {array.dtype}, got "
                f"{_counted(lost, 'other one')}: {long[lost].reshape(-1)[0]!s}; convert the array as you mean it"
            )
    return found


def _check_range(name: str, array: Array, beyond: Array) -> None:
    if beyond.any():
        raise DataError(
            f"field '{name}' must be <= {_LARGEST:,}, as torch computes with int64, got "
            f"{_counted(beyond, 'larger one')}: {array[beyond].reshape(-1)[0]}; {NUMBER_CLASSES}"
        )


def _tensor_of(array: Array, *, copied: bool) -> Tensor:
    """A plain array as a tensor in the same memory, where that can be written to or is copied later."""
    import torch

    if not array.flags.writeable:
        array = np.asarray(_Writeable(array)) if copied else array.copy()
    return torch.from_numpy(array)


class _Writeable:
    """The memory of an array without its mark that it cannot be written to, of which torch would warn."""

    def __init__(self, array: Array) -> None:
        self._array = array  # lives as long as its memory is used
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def plain_tensor(name: str, values: Tensor | Array, *, copied: bool = False) -> Tensor:
    """A field as a tensor that torch computes with; unsigned integers keep their type, see `widened`.

    Args:
        name: Of the field, in errors.
        values: An array or a tensor.
        copied: Whether the tensor is copied before anything is computed. Else an array that cannot be written to is
            copied here, as a module may write to what it gets.

    Raises:
        DataError: as for `plain_array`, or a tensor is not dense.
    """
    import torch

    if isinstance(values, np.ndarray):
        return torch.from_numpy(values) if _is_plain(values) else _tensor_of(plain_array(name, values), copied=copied)
    if type(values).__name__ == "MaskedTensor":
        values = _unmasked_tensor(name, values)
    if values.layout is torch.sparse_coo:
        return values  # has rows
    if values.layout is not torch.strided or values.is_meta or values.is_nested:
        form = "on the device 'meta'" if values.is_meta else "nested" if values.is_nested else str(values.layout)
        raise DataError(f"field '{name}' must be a tensor with a row for each sample, got one that is {form}")
    if values.dtype is torch.uint64 and bool((beyond := values.view(torch.int64) < 0).any()):
        _check_range(name, values.detach().cpu().numpy(), beyond.cpu().numpy())
    return values.resolve_conj().resolve_neg() if values.is_conj() or values.is_neg() else values


def _unmasked_tensor(name: str, values: Any) -> Tensor:
    mask = values.get_mask()
    array = np.ma.masked_array(values.get_data().detach().cpu().numpy(), ~mask.cpu().numpy())
    return _tensor_of(unmasked(name, array), copied=True).to(mask.device)


def widened(values: Tensor) -> Tensor:
    """Unsigned integers of more than a byte as int64."""
    kind = values.dtype
    if kind.is_signed or kind.itemsize == 1:
        return values
    import torch

    return values.to(torch.int64) if kind in (torch.uint16, torch.uint32, torch.uint64) else values


def plain_sample(sample: Any) -> Any:
    """A sample with plain arrays in it; itself where they are such already.

    Raises:
        DataError: as for `plain_array`.
    """
    kind = type(sample)
    if kind is tuple or kind is list:
        items = cast("list[Any]", sample)
        return sample if all(map(_is_plain, items)) else _plain_items(sample, enumerate(items))
    if kind is dict:
        named = cast("dict[Any, Any]", sample)
        return sample if all(map(_is_plain, named.values())) else _plain_items(sample, named.items())
    return _plain_leaf("0", sample)


def _is_plain(value: Any) -> bool:
    """Whether an entry of a sample is surely plain: quick, as it is asked of each."""
    if type(value) is np.ndarray:
        flags, kind = value.flags, value.dtype
        return flags.c_contiguous and flags.writeable and kind.isnative and kind.char in _READY
    return not isinstance(value, _LOOKED_AT)


def _plain_items(whole: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    changed: dict[Any, Any] = {}
    for key, value in items:
        kind = type(value)
        found = plain_sample(value) if kind in (tuple, list, dict) else _plain_leaf(key, value)
        if found is not value:
            changed[key] = found
    if not changed:
        return whole
    if isinstance(whole, dict):
        return {**whole, **changed}
    return type(whole)(changed.get(place, value) for place, value in enumerate(whole))


def _plain_leaf(name: Any, value: Any) -> Any:
    """An entry of a sample: an array as a plain one, a number of NumPy that torch has not as one that it has."""
    if isinstance(value, np.ndarray):
        if value is np.ma.masked:
            raise DataError(f"field '{name}' must have a value, got a masked one: leave this sample out, or fill it")
        if value.dtype.kind not in _PLAIN:
            return value  # the error is of the batch
        array = plain_array(name, value)
        return array if array.flags.writeable else array.copy()
    if isinstance(value, np.generic) and value.dtype.char in _LONG:
        array = plain_array(name, np.asarray(value))
        return array.astype(np.int64)[()] if array.dtype.kind == "u" else array[()]
    return value


def plain_collate(samples: list[Any]) -> Any:
    """As torch's `default_collate`, which knows no masks, and no strides below 0.

    Raises:
        DataError: as for `plain_array`.
    """
    from torch.utils.data import default_collate

    return default_collate([plain_sample(sample) for sample in samples])


def plain_convert(batch: Any) -> Any:
    """As torch's `default_convert`; see `plain_collate`."""
    from torch.utils.data import default_convert

    return default_convert(plain_sample(batch))


def columns_of(table: Array) -> dict[str, Array]:
    """The columns of a structured array by name; those within a column are NAME.PART."""
    found: dict[str, Array] = {}
    for name in table.dtype.names or ():
        column: Array = table[name]
        if column.dtype.names is None:
            found[name] = column
        else:
            found.update({f"{name}.{part}": values for part, values in columns_of(column).items()})
    return found
