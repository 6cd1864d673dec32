"""Batch sizes as they are written: `32,128,512`, or `64:4096:x4` for 64, 256, 1024, 4096."""

from __future__ import annotations

import re

from descend.errors import ConfigurationError

__all__ = ["read_batch_sizes"]


def read_batch_sizes(text: str) -> list[int]:
    """The sizes in rising order.

    Raises:
        ConfigurationError: the text is neither of the two forms, or a size is below 1.
    """
    series = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*:\s*x\s*(\d+)\s*", text)
    if series:
        size, last, factor = map(int, series.groups())
        if size < 1 or factor < 2:
            raise ConfigurationError(f"batch sizes '{text}': FROM must be at least 1 and the factor at least 2")
        sizes: list[int] = []
        while size <= last:
            sizes.append(size)
            size *= factor
    elif re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", text):
        sizes = sorted({int(part) for part in text.split(",")})
    else:
        raise ConfigurationError(f"batch sizes '{text}' must be written like 32,128,512 or like 64:4096:x4")
    if not sizes or sizes[0] < 1:
        raise ConfigurationError(f"batch sizes '{text}' hold no size, or one below 1")
    return sizes
