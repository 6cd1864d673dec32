"""Compiled kernels for a CPU: made of C++ by the compiler of the machine, and called once for all tensors.

A kernel is given addresses. Weights and state lie in the arena; gradients are read where they lie, whether large or
small, so a step copies nothing. It works through *units*, pieces of one tensor each.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.codegen_cpp import calls
from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.gradient_scan import ABSENT, MOVED, ODD, GradientScanner
from descend.optim.engine.noise import PIECE, draw
from descend.optim.engine.step_inputs import check_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.optim.compiler.partition import Kernel
    from descend.optim.engine.arena import Arena

__all__ = ["Native"]

ALONE = 2**15  # elements that one thread updates sooner than several do; torch has the same limit


class Native:
    """An arena as its compiled kernels see it: arrays of addresses and numbers, written before each call.

    Attributes:
        gradient: Address of the gradient of each tensor, 0 where it has none.
        absent: Numbers of the tensors that have none.
    """

    def __init__(self, arena: Arena, library: ctypes.CDLL) -> None:
        members = arena.members
        self._arena = weakref.ref(arena)  # which holds this one; a cycle would keep its memory until a collection
        units = [
            (i, at, min(UNIT, n - at))
            for i, n in enumerate(p.numel() for p in arena.params)
            for at in range(0, n, UNIT)
        ]
        self.tensor, self.first, self.count = np.array(units, dtype=np.int64).T.copy()
        # First unit of each tensor, and after them all the number of units.
        self.borders = np.searchsorted(self.tensor, np.arange(len(members) + 1)).astype(np.int64)
        self.start = np.array([member.start * BLOCK for member in members], dtype=np.int64)
        self.gradient = arena.known.gradients
        self.absent: tuple[int, ...] = ()
        self.copies: list[Tensor] = []  # of gradients that lie otherwise than their weights
        self.calls = calls(arena.text)
        self.buffers = [np.array([self._address(name) for name in call.buffers], dtype=np.int64) for call in self.calls]
        self.tables = [np.zeros((max(1, len(call.given)), 1)) for call in self.calls]
        self.sums = [np.zeros((len(call.sums), len(units))) for call in self.calls]
        self.works = [self._work(i) for i in range(len(self.calls))]
        self.given = [ctypes.byref(work) for work in self.works]
        self.functions = [getattr(library, f"call{i}") for i in range(len(self.calls))]
        self.unfit = getattr(library, f"unfit_{str(arena.params[0].dtype).removeprefix('torch.')}")
        self.unfit.restype = ctypes.c_int64

    @property
    def arena(self) -> Arena:
        """The arena, which lives as long as somebody can ask."""
        arena = self._arena()
        assert arena is not None
        return arena

    def _address(self, name: str) -> int:
        held = self.arena.buffers.get(name)
        return 0 if held is None else held.data_ptr()

    def _work(self, i: int) -> KernelLaunch:
        table, sums, units = self.tables[i], self.sums[i], len(self.tensor)
        walk = (self.tensor, self.first, self.count, self.borders, self.start)
        arrays = (*walk, self.arena.known.addresses, self.gradient, self.buffers[i], table)
        return KernelLaunch(0, units, *(x.ctypes.data for x in arrays), 1, 0, sums.ctypes.data, units, 1)

    def look(self, reader: GradientScanner) -> bool:
        """Find the gradients of this step.

        Returns:
            Whether all weights and their state lie where they lay; if not, nothing was found.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        seen = reader.look(self.arena.known, self.arena.entries)
        self.copies.clear()
        if seen & ODD:
            for i in np.flatnonzero(self.gradient == -1).tolist():
                self.gradient[i] = self._copied(i)
        self.absent = tuple(np.flatnonzero(self.gradient == 0).tolist()) if seen & ABSENT else ()
        threads = torch.get_num_threads() if self.arena.rows * BLOCK > ALONE else 1
        for work in self.works:
            work.threads = threads
        return not seen & MOVED

    @torch.no_grad()
    def _copied(self, i: int) -> int:
        """Address of a copy of gradient i that lies as the weights do."""
        member = self.arena.members[i]
        g = member.param.grad
        assert g is not None
        check_gradient(g, member.param, member.name)
        self.copies.append(member.flat(g).to(member.param.dtype, copy=True, memory_format=torch.contiguous_format))
        return self.copies[-1].data_ptr()

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        return not self.unfit(self.given[0])

    def run(self, i: int, numbers: Sequence[Any], seed: int) -> None:
        """Make call i over all tensors that have a gradient.

        Args:
            i: Its number.
            numbers: Those that are given to it, each one for all tensors or of shape (tensors,).
            seed: Start of the noise.
        """
        self._write(i, numbers)
        (kernel, *_) = self.calls[i].kernels
        if kernel.noises:
            self._run_with_noise(i, kernel, seed)
        else:
            self.functions[i](self.given[i])

    def totals(self, i: int) -> dict[int, Tensor]:
        """Sums over each tensor that call i made, by the place of their reduction: (tensors,) in float64.

        That of a tensor that was left out is 0 or an old one, and nobody reads it.
        """
        found = [np.bincount(self.tensor, weights=sums) for sums in self.sums[i]]  # unit after unit
        return dict(zip(self.calls[i].sums, map(torch.from_numpy, found), strict=True))

    def _write(self, i: int, numbers: Sequence[Any]) -> None:
        """Put the numbers of a call where it reads them: one for all tensors, or one for each."""
        table, work = self.tables[i], self.works[i]
        each = not set(map(type, numbers)) <= {float} and any(isinstance(x, Tensor) and x.ndim for x in numbers)
        wide = len(self.start) if each else 1
        if table.shape[1] != wide:
            table = self.tables[i] = np.zeros((len(table), wide))
            work.table, work.stride, work.step = table.ctypes.data, wide, int(each)
        if each:
            for row, x in zip(table, numbers, strict=True):
                row[:] = x
        elif numbers:
            table[:, 0] = numbers

    def _run_with_noise(self, i: int, kernel: Kernel, seed: int) -> None:
        """Piece by piece, so that no more noise is in memory than was drawn at once."""
        arena, work, buffers = self.arena, self.works[i], self.buffers[i]
        rooms = {name: torch.empty(PIECE, dtype=arena.buffers["p"].dtype, device="cpu") for name in kernel.noises}
        for j, member in enumerate(arena.members):
            source = (seed, member.name, int(arena.counts[j]) + 1)
            for at in range(0, member.param.numel() if self.gradient[j] else 0, PIECE):
                count = min(PIECE, member.param.numel() - at)
                for name, room in rooms.items():
                    draw(room[:count], source, int(name.split()[1]), at)
                    before = (int(self.start[j]) + at) * room.element_size()
                    buffers[kernel.buffers.index(name)] = room.data_ptr() - before
                work.begin = int(self.borders[j]) + at // UNIT
                work.end = work.begin - (-count // UNIT)
                self.functions[i](self.given[i])
        work.begin, work.end = 0, len(self.tensor)
