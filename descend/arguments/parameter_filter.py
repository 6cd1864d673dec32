"""Filters of parameters, used wherever some parameters are excluded or grouped.

"bias"       biases
"norm"       weights of a normalization layer
"dims<=1"    weights with at most so many dimensions; also <, ==, >=, >
"*.head.*"   weights whose whole name matches, with * for any text, ? for any letter and [...] for a choice
"""

from __future__ import annotations

import fnmatch
import operator
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ParameterInfo", "matches"]

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class ParameterInfo(NamedTuple):
    """What filters look at in one parameter."""

    name: str
    dims: int
    is_bias: bool
    is_norm: bool


def matches(rule: str, weights: ParameterInfo) -> bool:
    """Whether a rule means these weights."""
    if rule == "bias":
        return weights.is_bias
    if rule == "norm":
        return weights.is_norm
    dims = re.fullmatch(r"dims\s*(<=|<|==|>=|>)\s*(\d+)", rule)
    if dims:
        return _COMPARISONS[dims[1]](weights.dims, int(dims[2]))
    return fnmatch.fnmatchcase(weights.name, rule)
