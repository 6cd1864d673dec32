"""The passes over tensors of many small matrices, and how their elements are interleaved."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from system_needs import needs_compiler, require
from torch import Tensor

from descend.optim.compiler import cache, native
from descend.optim.compiler.codegen_cpp import HEADER
from descend.optim.compiler.codegen_packs import PACKS_HEADER, passes
from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.trace import Trace, trace_matrices
from descend.optim.rules import Adafactor
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Mean = Callable[[Tensor], Tensor]


def text(rule: Rule) -> Trace:
    options = {"lr": 0.1, "decay": 0.0, "decay_form": "coupled", "rescale": 1.0, "clip": None, "scaled": True}
    return trace_matrices(SimpleNamespace(rule=rule, **options), torch.float32, False, 4)


def test_adafactor_reads_gradients_once_and_weights_twice() -> None:
    """Its direction, of which there is a norm, is kept; with it a new weight needs no row and no column."""
    first, second = passes(text(Adafactor()))
    assert set(first.loads.values()) == {"g", "p", "s.row", "s.column"}
    kept = (set(first.writes) - {"s.row", "s.column"}).pop()
    assert first.trace.ops[first.writes[kept]].kind == "element"
    assert set(second.loads.values()) == {kept, "p"}
    assert set(second.writes) == {"p"}


class Moment(NamedTuple):
    m: Tensor


@dataclass(frozen=True)
class OfOwn(Rule):
    """What is summed is an entry of the state."""

    def init(self, p: Tensor) -> Moment:
        return Moment(torch.zeros_like(p))

    def direction(self, g: Tensor, p: Tensor, s: Moment, norm: Mean, row_mean: Mean) -> Any:
        m = 0.5 * s.m + (g - row_mean(g))
        return m / (norm(m) + norm(p)), Moment(m)


def test_what_is_written_anyway_is_not_kept_twice() -> None:
    first, second = passes(text(OfOwn()))
    assert set(first.writes) == {"s.m"}
    assert set(second.loads.values()) == {"s.m", "p"}


CALLS = """
template <class X> void both(const X* from, int64_t count, int64_t n, int64_t m, X* packed, X* back, X* spare) {
  const X* const found = interleave(from, count, n, m, packed, int64_t(128), spare);
  if (found != packed) std::copy_n(found, 128 * n * m, packed);  // matrices of one element stay where they are
  separate(packed, int64_t(128), count, n, m, back, spare);
}
extern "C" void both_2(const uint16_t* a, int64_t c, int64_t n, int64_t m, uint16_t* b, uint16_t* d, uint16_t* e) {
  both(a, c, n, m, b, d, e);
}
extern "C" void both_4(const float* a, int64_t c, int64_t n, int64_t m, float* b, float* d, float* e) {
  both(a, c, n, m, b, d, e);
}
extern "C" void both_8(const double* a, int64_t c, int64_t n, int64_t m, double* b, double* d, double* e) {
  both(a, c, n, m, b, d, e);
}
"""


@needs_compiler
@pytest.mark.parametrize("capability", ["", *native.VECTORS])
def test_elements_of_a_pack_are_transposed_and_back(capability: str, tmp_path: Path) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    has = not capability or list(native.VECTORS).index(capability) >= ([*native.VECTORS, here]).index(here)
    require(f"a processor with {capability}", has)
    vectors = native.VECTORS.get(capability, ())
    library = tmp_path / "packs.so"
    source = "\n".join([HEADER.read_text(), PACKS_HEADER.read_text(), CALLS])
    (tmp_path / "unfinished").mkdir()
    unfinished = tmp_path / "unfinished" / "packs.so"
    process = cache.compile_command(source, unfinished, [*native.FLAGS, *cache.THREADS, *vectors])
    assert process.has_ended(wait=True)
    library.write_bytes(process.end())
    loaded = ctypes.CDLL(str(library))
    lanes = 2 * BLOCK
    for dtype, (n, m), count in itertools.product(
        (np.uint16, np.float32, np.float64),
        [(n, m) for n in range(1, 10) for m in range(1, 10) if n * m <= 64],
        (lanes, 70),
    ):
        given = np.arange(1, lanes * n * m + 1).astype(dtype)
        packed, back, spare = (np.zeros_like(given) for _ in range(3))
        numbers = [ctypes.c_int64(x) for x in (count, n, m)]
        addresses = [ctypes.c_void_p(x.ctypes.data) for x in (given, packed, back, spare)]
        loaded[f"both_{dtype().itemsize}"](addresses[0], *numbers, *addresses[1:])
        expected = given.reshape(lanes, n * m).T.copy()
        expected[:, count:] = 0
        np.testing.assert_array_equal(packed.reshape(n * m, lanes), expected)
        np.testing.assert_array_equal(back[: count * n * m], given[: count * n * m])
        assert not back[count * n * m :].any()
