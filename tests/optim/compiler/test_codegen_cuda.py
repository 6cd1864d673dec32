"""Kernels for CUDA: what is handed to torch's compiler computes what the eager form computes, called part by part.

No CUDA device is needed: the program that would be compiled is run by torch as it is.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

import descend.optim
from descend.optim.compiler import codegen_cuda as build
from descend.optim.compiler import cuda
from descend.optim.compiler.partition import partition
from descend.optim.engine import arena_manager


class OnThisProcessor(cuda.CudaCompileJob):
    """A job whose program is traced here and not compiled."""

    @functools.cached_property
    def key(self) -> str:
        return "traced"

    def load(self) -> cuda.Compiled:
        program = build.traced(asdict(self), "cpu").module()
        return cuda.Compiled(lambda given: list(program(*given)), self.dtypes, len(self.cut.numbers))


class Traced:
    """A workshop that has everything."""

    def take(self, jobs: list[Any]) -> list[Any]:
        return [job.load() for job in jobs if isinstance(job, OnThisProcessor)]

    def has_failed(self, _: Any) -> bool:
        return True

    def order(self, _: Any) -> None:
        pass

    def collect(self, jobs: Any, wait: bool) -> None:
        pass


def jobs_of(arena: Any) -> list[OnThisProcessor]:
    low = None if arena.buffers.low is None else str(arena.buffers.low).removeprefix("torch.")
    return [OnThisProcessor(arena.trace.structure, k, "float32", low, 0) for k in range(len(partition(arena.trace)))]


def trained(runner: str, name: str, dtype: torch.dtype) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n, generator=random).to(dtype)) for n in (3, 70, 40_000, 64)]
    ours = descend.optim.create(name, params, lr=1e-2, runner=runner)
    for step in range(3):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(dtype)
            p.grad = None if (i + step) % 3 == 0 else g
        ours.step()
    return [p.detach() for p in params]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [("adam", torch.float32), ("lamb", torch.float32), ("adam", torch.bfloat16)]
)
def test_what_is_compiled_for_cuda_computes_the_same(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained("blocks", name, dtype)
    monkeypatch.setattr(arena_manager, "_compiler", Traced())
    monkeypatch.setattr(arena_manager, "jobs_of", jobs_of)
    for found, value in zip(trained("compiled", name, dtype), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=2e-6, atol=2e-6)
