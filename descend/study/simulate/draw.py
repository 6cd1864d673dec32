"""Steps against batch size as text: a table, and a plot on logarithmic axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["plot", "table"]

_MARKS = "ox+*#%@&"
_WIDTH, _HEIGHT = 72, 20


def table(batch_sizes: Sequence[float], steps: Mapping[str, Sequence[float]]) -> str:
    """Rules down, batch sizes across."""
    width = max(len(name) for name in steps)
    heads = " ".join(f"{size:>11,.0f}" for size in batch_sizes)
    lines = [f"{'batch':<{width}} {heads}"]
    lines += [
        f"{name:<{width}} " + " ".join(f"{count:>11,.0f}" if math.isfinite(count) else f"{'-':>11}" for count in counts)
        for name, counts in steps.items()
    ]
    return "\n".join(line.rstrip() for line in lines)


def plot(batch_sizes: Sequence[float], steps: Mapping[str, Sequence[float]]) -> str:
    """Both axes logarithmic; dots are perfect scaling from the first rule's smallest batch, a mark is a rule."""
    points = [
        (math.log(size), math.log(count), mark)
        for mark, counts in zip(_MARKS, steps.values(), strict=False)
        for size, count in zip(batch_sizes, counts, strict=True)
        if math.isfinite(count) and count > 0
    ]
    if not points:
        return "no rule met the target at any batch size"
    left, right = math.log(min(batch_sizes)), math.log(max(batch_sizes))
    low, high = min(y for _, y, _ in points), max(y for _, y, _ in points)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        column = round((x - left) / (right - left or 1) * (_WIDTH - 1))
        row = round((high - y) / (high - low or 1) * (_HEIGHT - 1))
        if 0 <= row < _HEIGHT:
            grid[row][column] = mark

    first = points[0][0] + points[0][1]
    for column in range(_WIDTH):
        x = left + (right - left) * column / (_WIDTH - 1)
        put(x, first - x, ".")
    for x, y, mark in reversed(points):
        put(x, y, mark)
    frame = ["".join(row).rstrip() for row in grid]
    frame[0] = f"{frame[0]:<{_WIDTH}}  {math.exp(high):,.0f} steps"
    frame[-1] = f"{frame[-1]:<{_WIDTH}}  {math.exp(low):,.0f} steps"
    legend = "   ".join(f"{mark} {name}" for mark, name in zip(_MARKS, steps, strict=False))
    ends = f"{min(batch_sizes):<{_WIDTH // 2},.0f}{max(batch_sizes):>{_WIDTH // 2},.0f}  samples a batch"
    return "\n".join([*frame, ends, f"{legend}   . perfect scaling"])
