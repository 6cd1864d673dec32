"""Operators, for an OperatorLayer; `lbann.NAME` is the layer of one operator alone.

Those of the graph, where two have other defaults or shorter arguments in LBANN's front end.
"""

from __future__ import annotations

from typing import Any

from descend.graph.kinds import operators


class Clamp(operators.Clamp):
    """x cut off at min and max, 0 and 1 unless given."""

    def __init__(self, min: float = 0.0, max: float = 1.0, **fields: Any) -> None:  # noqa: A002  # LBANN's names
        super().__init__(min=min, max=max, **fields)


class Select(operators.Select):
    """Where |x - value| < epsilon the true branch, else the false one; see `descend.ops.Select`.

    if_true=2.5 is short for constant_if_true=True, value_if_true=2.5; and if_false likewise.
    """

    def __init__(
        self,
        value: float = 0.0,
        epsilon: float = 1e-5,
        if_true: float | None = None,
        if_false: float | None = None,
        **fields: Any,
    ) -> None:
        for branch, constant in (("if_true", if_true), ("if_false", if_false)):
            if constant is not None:
                fields |= {f"constant_{branch}": True, f"value_{branch}": constant}
        super().__init__(value=value, epsilon=epsilon, **fields)


def __getattr__(name: str) -> Any:
    """Every other operator."""
    if name in operators.__all__:
        return getattr(operators, name)
    raise AttributeError(f"module 'lbann.ops' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The names of all operators."""
    return sorted(operators.__all__)
