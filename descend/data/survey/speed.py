"""How fast samples are read: in the random order of training, by one process with its threads."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments import shown
from descend.data import transforms as known
from descend.data.order import order
from descend.data.reader_protocol import bytes_of_sample
from descend.errors import ConfigurationError, DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.data.loading.batches import Samples
    from descend.data.reader_protocol import Field
    from descend.data.transforms import Transform

__all__ = ["parsed_transforms", "samples_per_second"]

_BATCH = 64
_BATCH_BYTES = 2**27
_NAMES = {one.__name__: one for one in known.TRANSFORMS}


def samples_per_second(reader: Samples, seconds: float) -> float | None:
    """Read batches for a time, after one that warms up; None where no batch can be read.

    Args:
        reader: Of the samples.
        seconds: How long; the batch that is under way is finished.
    """
    count, read, began = len(reader), 0, None
    fields: Mapping[str, Field] = getattr(reader, "fields", {})
    size = max(1, min(_BATCH, _BATCH_BYTES // max(1, bytes_of_sample(fields))))
    positions = np.arange(min(size, count), dtype=np.int64)
    for batch in range(10**6):
        ids = order(0, batch * size // count, (positions + batch * size) % count, count, True)
        try:
            reader.read(ids)
        except DataError:  # it has been reported
            read -= len(ids)
        now = time.perf_counter()
        if began is None:
            began, read = now, 0
            continue
        read += len(ids)
        if now - began >= seconds:
            return read / (now - began) if read > 0 else None
    return None


def parsed_transforms(texts: Iterable[str]) -> list[Transform]:
    """Transforms from texts such as "RandomCrop(24, 24)" or "HorizontalFlip(p=0.5)"; nothing is evaluated.

    Raises:
        ConfigurationError: a text is not of this form, or there is no such transform.
    """
    return [_parsed(text) for text in texts]


def _parsed(text: str) -> Any:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if not isinstance(call.func, ast.Name):
            raise ValueError(text)
        name = call.func.id
        values = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigurationError(
            f"a transform is written as NAME(ARGUMENT, ...), as in 'RandomCrop(24, 24)', got {shown(text)}"
        ) from error
    if name not in _NAMES:
        raise ConfigurationError(f"there is no transform '{name}'{nearest(name, _NAMES)}")
    try:
        return _NAMES[name](*values, **named)
    except TypeError as error:
        raise ConfigurationError(f"transform {name}: {error}") from error
