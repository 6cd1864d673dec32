"""Launches of kernels for rules with means over rows and columns: their units, and what is changed between steps.

A processor runs them (`cuda_on_cpu.py`), and the engine launches them as on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from system_needs import needs_gnu_compiler

from descend.optim.engine import device_matrices
from descend.optim.engine.device_matrices import DeviceMatrixArena
from descend.optim.rules import Adafactor
from tests.optim.compiler.test_codegen_cuda_matrix import SHAPES, rest
from tests.optim.engine.test_matrices import CHANGES, Run, agree

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    needs_gnu_compiler,
    pytest.mark.usefixtures("_on_cpu"),
]


def test_a_unit_may_have_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rest(Adafactor(), SHAPES, "plain", torch.float64)
    for unit in (256, 1000):
        monkeypatch.setattr(device_matrices, "UNIT", unit)
        torch.testing.assert_close(
            rest(Adafactor(), SHAPES, "compiled", torch.float64), expected, rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_changed_between_steps_counts(change: Callable[[Run], None], threads: None) -> None:
    run = agree(change)
    assert all(isinstance(arena, DeviceMatrixArena) for arena in run.ours._arenas.matrices)


def test_gradients_that_come_and_go_make_no_new_call() -> None:
    """A call has tables, which the device is waited for to get."""
    run = Run("compiled")
    for _ in range(3):
        run.step()
    calls = [arena._call for arena in run.ours._arenas.matrices]
    assert None not in calls
    for i in (0, 1, 3):
        run.set_gradients()
        before = run.values()
        p = run.params[i]
        p.grad = None
        run.ours.step()
        unchanged = [torch.equal(a, b) for a, b in zip(before, run.values(), strict=True)]
        assert sum(unchanged) == 1 + len(run.ours.state[p])
        assert unchanged[i]
    assert all(arena._call is call for arena, call in zip(run.ours._arenas.matrices, calls, strict=True))


def test_units_cover_all_things_once() -> None:
    totals, most = np.array([1, 7, 4096, 9000]), np.array([3, 7, 1000, 4096])
    walk = device_matrices._Walked.of(totals, most)
    units = walk.units
    for i, (total, size) in enumerate(zip(totals, most, strict=True)):
        mine = units.tensor == i
        found = [at for f, n in zip(units.first[mine], units.size[mine], strict=True) for at in range(f, f + n)]
        assert found == list(range(total))
        assert units.size[mine].max() <= size
        assert units.border[i + 1] - units.border[i] == mine.sum()
    assert walk.start.tolist() == [0, 1, 8, 4104]
    assert walk.room == totals.sum()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # 8 rows a unit, 2,048 parts of columns (of 8 tiles of 64 rows each), 8 matrices
        ((1, 512, 512), {"elements": 64, "rows": 64, "columns": 1, "matrices": 1, "parts": 16}),
        # 4,096 of each: a matrix of one element is a row, a column and a part
        ((2**16, 1, 1), {"elements": 16, "rows": 16, "columns": 16, "matrices": 16, "parts": 16}),
        # 1,365 rows, 1,365 matrices; a part has 3 elements, so 1,280 of them
        ((4096, 3, 3), {"elements": 9, "rows": 10, "columns": 3, "matrices": 4, "parts": 10}),
        # a row of all threads of a block has a unit of its own
        ((1, 9, 5000), {"elements": 11, "rows": 9, "columns": 2, "matrices": 1, "parts": 20}),
    ],
)
def test_units_have_about_as_many_elements(shape: tuple[int, int, int], expected: dict[str, int]) -> None:
    walks = device_matrices._walks(np.array([shape], dtype=np.int64).T)
    assert {name: len(walk.units.tensor) for name, walk in walks.items()} == expected


def test_parts_have_memory_where_a_column_has_several() -> None:
    walks = device_matrices._walks(np.array([[3, 64, 5], [2, 65, 7], [1, 200, 2]], dtype=np.int64).T)
    assert walks["parts"].room == 2 * 2 * 7 + 4 * 2
    assert walks["parts"].start.tolist() == [0, 0, 28]
    assert walks["columns"].room == 3 * 5 + 2 * 7 + 2
