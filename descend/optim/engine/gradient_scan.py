"""Finds the gradients of many tensors and checks that nothing was moved: by a small library, or by Python.

Python takes a microsecond for each tensor, more than a kernel takes to update a small one; the library takes a
hundredth of that. It is compiled as kernels are, against torch's headers, and serves all rules.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from descend.files.private_folder import load_library
from descend.optim.compiler.cache import THREADS, CompileJob, compile_command, compiler, key_of
from descend.optim.engine.step_inputs import PLAIN_TYPES, check_gradient
from descend.torch_private import tensor_address, version_counter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.cache import CompilerProcess
    from descend.optim.engine.arena_layout import ArenaLayout
    from descend.optim.engine.state import StepCounts

__all__ = [
    "ABSENT",
    "MANY",
    "MOVED",
    "ODD",
    "ArenaGradients",
    "GradientScanner",
    "ScannerCompileJob",
    "TensorList",
    "check_scanner",
]

SOURCE = Path(__file__).with_name("gradients.cpp")
FLAGS = ("-O2", "-std=c++20", "-w")
ABSENT, ODD, MOVED = 1, 2, 4  # what was seen: no gradient, one that lies otherwise than the weights, weights elsewhere
HEADER_BYTES = object.__basicsize__  # of a Python object; behind it torch keeps its pointer, and a list its length
MANY = 512  # tensors that several threads read sooner than one does


class ScanArgs(ctypes.Structure):
    """The struct of the same name in gradients.cpp."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("objects", "addresses", "gradients")),
        ("header", ctypes.c_int64),
    )


class TensorList:
    """Tensors, with where each lay when this was made.

    Attributes:
        tensors: They.
        objects: Their identities.
        addresses: Of their elements.
        gradients: Address of the gradient of each as it was last found, 0 for none.
        given: The same for the library.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.objects: NDArray[np.int64] = np.array([id(x) for x in self.tensors], dtype=np.int64)
        self.addresses: NDArray[np.int64] = np.array([x.data_ptr() for x in self.tensors], dtype=np.int64)
        self.gradients: NDArray[np.int64] = np.zeros_like(self.objects)
        arrays = (self.objects, self.addresses, self.gradients)
        given = ScanArgs(len(self.tensors), *(x.ctypes.data for x in arrays), HEADER_BYTES)
        self.given = ctypes.byref(given)


class GradientScanner:
    """Reads tensors one by one, in Python; `check_scanner` compares the faster one with it."""

    def find(self, known: TensorList, beside: TensorList) -> int:
        """Find the gradients: the address of each, 0 for none and -1 for one that lies otherwise than the weights.

        Args:
            known: The weights.
            beside: Their state, which must lie where it lay as they must.

        Returns:
            What was seen, ABSENT | ODD | MOVED; after MOVED the addresses mean nothing.
        """
        if not self.stayed(known) or not self.stayed(beside):
            return MOVED
        known.gradients[:] = found = [_address(p) for p in known.tensors]
        return (ABSENT if 0 in found else 0) | (ODD if -1 in found else 0)

    def stayed(self, known: TensorList) -> bool:
        """Whether all tensors lie where they lay."""
        return list(map(Tensor.data_ptr, known.tensors)) == known.addresses.tolist()

    def written(self, known: TensorList) -> None:
        """Record for autograd that the tensors with a gradient were written."""
        increment_version([p for p, g in zip(known.tensors, known.gradients.tolist(), strict=True) if g])

    def same(self, held: Sequence[Tensor], known: TensorList) -> bool:
        """Whether a list holds these tensors."""
        return len(held) == len(known.tensors) and all(map(operator.is_, held, known.tensors))


def _address(p: Tensor) -> int:
    g = p.grad
    if g is None or not p.requires_grad:
        return 0
    plain = type(g) in PLAIN_TYPES and g.layout is torch.strided and not g.is_neg()
    alike = plain and g.dtype is p.dtype and g.device == p.device and g.shape == p.shape
    return g.data_ptr() if alike and _strides_alike(g, p) else -1


def _strides_alike(g: Tensor, p: Tensor) -> bool:
    """Whether strides agree in the dimensions that have more than one element."""
    strides = zip(g.shape, g.stride(), p.stride(), strict=True)
    return g.stride() == p.stride() or all(one == other for size, one, other in strides if size != 1)


class ScannerLibrary(GradientScanner):
    """The same by a finished `ScannerCompileJob`."""

    def __init__(self, content: bytes) -> None:
        # The interpreter stays locked meanwhile: these read Python's objects.
        library = load_library(content, ctypes.PyDLL)
        self._find, self._stayed, self._same = library.find, library.stayed, library.same
        self._written = library.written
        self._find.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self._written.restype = None
        for function in (self._find, self._stayed, self._same):
            function.restype = ctypes.c_int64

    def find(self, known: TensorList, beside: TensorList) -> int:
        """See `GradientScanner`."""
        threads = torch.get_num_threads() if len(known.tensors) >= MANY else 1
        return self._find(known.given, beside.given, threads)

    def stayed(self, known: TensorList) -> bool:
        """See `GradientScanner`."""
        return bool(self._stayed(known.given))

    def written(self, known: TensorList) -> None:
        """See `GradientScanner`."""
        self._written(known.given)

    def same(self, held: Sequence[Tensor], known: TensorList) -> bool:
        """See `GradientScanner`."""
        if type(held) is not list:
            return super().same(held, known)
        return bool(self._same(known.given, ctypes.c_void_p(id(held) + HEADER_BYTES)))


class ArenaGradients:
    """Finds the gradients of parameters that kernels update, step after step, by address.

    Args:
        layout: The parameters, in the order of their elements in memory.
        params: The same, with their addresses.
        state: The tensors of their state, which must stay where they are as well.
        counts: Their step counts.

    Attributes:
        layout: The same.
        params: The same.
        counts: The same.
        gradient: Address of the gradient of each parameter, 0 where it has none.
        absent: Indices of the parameters without a gradient.
        copies: Copies of gradients whose elements are in another order than the parameter's.
    """

    def __init__(self, layout: ArenaLayout, params: TensorList, state: TensorList, counts: StepCounts) -> None:
        self.layout, self.params, self._state, self.counts = layout, params, state, counts
        self.gradient = params.gradients
        self.absent: tuple[int, ...] = ()
        self.copies: list[Tensor] = []

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.layout.device

    def name_of(self, i: int) -> str:
        """What the user calls parameter i."""
        return self.layout.slots[i].name

    def forget(self, absent: Sequence[int]) -> None:
        """Take back the count of the last update, which a flag kept from happening; these had no gradient."""
        self.counts.retreat(absent)

    def find(self, scanner: GradientScanner) -> bool:
        """Find the gradients of this step.

        Returns:
            Whether all parameters and their state are at their addresses; if not, no gradient was found.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        seen = scanner.find(self.params, self._state)
        self.copies.clear()
        if seen & ODD:
            for i in np.flatnonzero(self.gradient == -1).tolist():
                self.gradient[i] = self._in_order(i)
        self.absent = tuple(np.flatnonzero(self.gradient == 0).tolist()) if seen & ABSENT else ()
        return not seen & MOVED

    @torch.no_grad()
    def _in_order(self, i: int) -> int:
        """Address of gradient i, which lies otherwise than the parameter: of a copy in the parameter's order."""
        slot = self.layout.slots[i]
        g = slot.param.grad
        assert g is not None
        check_gradient(g, slot.param, slot.name)
        self.copies.append(slot.flat(g).to(slot.param.dtype, copy=True, memory_format=torch.contiguous_format))
        return self.copies[-1].data_ptr()


@dataclass(frozen=True)
class ScannerCompileJob(CompileJob):
    """The library, for this version of torch and of Python."""

    device = "cpu"
    suffix = ".so"
    wanted = False  # without it the same is done in Python

    @functools.cached_property
    def key(self) -> str:
        """See `CompileJob`."""
        return key_of("reader", compiler(), FLAGS, THREADS)

    def start(self, unfinished: Path) -> CompilerProcess:
        """Run the compiler, with the headers that torch brings."""
        home = Path(torch.__file__).parent
        # The library is the one that torch has loaded; it is named so that its functions are found.
        libraries = [f"-L{home / 'lib'}", "-lc10"]
        flags = [*FLAGS, *THREADS, f"-I{home / 'include'}"]
        return compile_command(SOURCE.read_text(encoding="utf-8"), unfinished, flags, libraries)

    def load(self, content: bytes) -> ScannerLibrary:
        """Load the finished library, if torch keeps its pointer where it is expected, and Python a list's items."""
        probe = torch.zeros(1, device="cpu")
        if _words(probe, 1) != [tensor_address(probe)]:
            raise RuntimeError("this version of torch keeps its tensors elsewhere")
        held = [probe]
        count, items = _words(held, 2)
        if count != 1 or ctypes.c_ssize_t.from_address(items).value != id(probe):
            raise RuntimeError("this version of Python keeps the items of a list elsewhere")
        library = ScannerLibrary(content)
        if differs := check_scanner(library):
            raise RuntimeError(f"the gradient scanner reads {differs} otherwise than torch {torch.__version__} has it")
        return library


def check_scanner(scanner: GradientScanner) -> str:
    """Compare what a scanner reads of a few known tensors with what torch says of them.

    Returns:
        What it reads wrongly, or nothing.
    """
    for dtype in (torch.float32, torch.bfloat16):
        params = [torch.zeros(3, 4, dtype=dtype, device="cpu").requires_grad_() for _ in range(5)]
        params.append(torch.zeros(6, dtype=dtype, device="cpu")[2:].requires_grad_())
        params[0].grad = torch.ones_like(params[0])
        params[1].grad = torch.ones(4, 3, dtype=dtype, device="cpu").t()  # lies otherwise
        params[2].grad = torch.ones_like(params[2])
        params[2].requires_grad_(False)
        params[4].grad = torch.ones(6, 4, dtype=dtype, device="cpu")[3:]  # begins within its storage
        params[5].grad = torch.ones_like(params[5])
        params.append(torch.zeros(3, 4, 1, 1, dtype=dtype, device="cpu").requires_grad_())
        params[6].grad = torch.ones_like(params[6], memory_format=torch.channels_last)  # lies alike by other strides
        beside = TensorList([torch.zeros(2, device="cpu")])
        known, expected = TensorList(params), TensorList(params)
        if scanner.find(known, beside) != GradientScanner().find(expected, beside):
            return "the presence of gradients"
        if known.gradients.tolist() != expected.gradients.tolist():
            return "the addresses of gradients"
        versions = [version_counter(p) for p in params]
        scanner.written(known)
        if [version_counter(p) - v for p, v in zip(params, versions, strict=True)] != [
            int(g != 0) for g in known.gradients
        ]:
            return "the versions of tensors"
        if not scanner.same(params, known) or scanner.same(params[1:], known) or scanner.same(params[::-1], known):
            return "the items of a list"
        params[3].data = torch.zeros_like(params[3])
        if scanner.stayed(known) or scanner.find(known, beside) != MOVED or not scanner.stayed(beside):
            return "the addresses of tensors"
    return ""


def _words(x: object, count: int) -> list[int]:
    """What stands behind the header of a Python object."""
    where: Any = id(x) + HEADER_BYTES
    return list((ctypes.c_ssize_t * count).from_address(where))
