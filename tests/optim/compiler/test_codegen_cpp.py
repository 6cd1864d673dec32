"""C++ made of a text: every operation means what torch means by it, in every precision."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

from descend.optim.compiler import cache as kernels
from descend.optim.compiler.codegen_cpp import emit_cpp
from descend.optim.compiler.native import FLAGS, KernelLaunch
from descend.optim.compiler.partition import carry_out, partition
from descend.optim.compiler.trace import FUNCTIONS, Op, Ref, Trace, Untraceable

if TYPE_CHECKING:
    from pathlib import Path


A, B, C, NUMBER = Ref(0), Ref(1), Ref(2), Ref(3)  # elements, elements, truth values, one number
THREE = {"addcdiv", "addcmul", "lerp"}
TRUTH = {"and_", "or_", "invert", "logical_and", "logical_or", "logical_xor", "logical_not"}
TWO = {
    "add",
    "atan2",
    "copysign",
    "div",
    "eq",
    "fmax",
    "fmin",
    "ge",
    "gt",
    "hypot",
    "le",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "multiply",
    "ne",
    "rsub",
    "sub",
    "subtract",
    "true_divide",
    "truediv",
}
UNWRITTEN = {"ldexp", "logaddexp", "logit", "nan_to_num", "remainder", "sinc", "xlogy"}


def operations() -> list[Op]:
    """One or more of each function that has a form."""
    made = [
        Op("clamp", (A, NUMBER, B), (), "element", 0),
        Op("clamp", (A,), (("min", NUMBER),), "element", 0),
        Op("add", (A, B), (("alpha", NUMBER),), "element", 0),
        Op("where", (C, A, B), (), "element", 0),
        *(Op("operator.pow", (A, x), (), "element", 0) for x in (1, 2, 3, -1, -2, 0.5, -0.5, 2.5)),
    ]
    for name in FUNCTIONS:
        short = name.removeprefix("operator.")
        if short in UNWRITTEN | {"clamp", "pow", "where"}:
            continue
        if short in TRUTH:
            args: tuple[Any, ...] = (C, C)[: 1 if short in ("invert", "logical_not") else 2]
        elif short in THREE:
            args = (A, B, NUMBER if short == "lerp" else A)
        else:
            args = (A, B) if short in TWO else (A, NUMBER) if short in ("clamp_min", "clamp_max") else (A,)
        made.append(Op(name, args, (), "element", 0))
    return made


def text() -> Trace:
    """All of them side by side, each to a buffer of its own: 1 where true."""
    ops = [
        Op("input", ("g",), (), "element", 0),
        Op("input", ("p",), (), "element", 0),
        Op("operator.gt", (A, B), (), "element", 0, boolean=True),
        Op("input", ("lr",), (), "number", 0),
    ]
    outputs: dict[str, int] = {}
    for op in operations():
        boolean = (
            isinstance(truth(op, torch.float64).dtype, torch.dtype) and truth(op, torch.float64).dtype == torch.bool
        )
        ops.append(Op(op.name, op.args, op.kwargs, "element", 0, boolean=boolean))
        if boolean:
            ops.append(Op("where", (Ref(len(ops) - 1), 1.0, 0.0), (), "element", 0))
        outputs[f"s.{len(outputs)}"] = len(ops) - 1
    return Trace(tuple(ops), (), outputs)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 2.5, -2.5, 1e-30, float("inf"), -float("inf"), float("nan")]


def values(dtype: torch.dtype) -> dict[int, Tensor]:
    a = torch.tensor([x for x in SPECIAL for _ in SPECIAL], dtype=dtype)
    b = torch.tensor(SPECIAL * len(SPECIAL), dtype=dtype)
    return {0: a, 1: b, 2: a > b, 3: torch.tensor(0.25, dtype=dtype)}


def truth(op: Op, dtype: torch.dtype) -> Tensor:
    """What torch makes of it."""
    return carry_out(op, values(dtype), {})


def compiled(source: str, path: Path) -> ctypes.CDLL:
    folder = path.with_suffix("")  # which is removed with what the compiler writes
    folder.mkdir()
    process = kernels.compile_command(source, folder / path.name, FLAGS)
    assert process.has_ended(wait=True)
    path.write_bytes(process.end())
    return ctypes.CDLL(str(path))


def run(library: ctypes.CDLL, kernel: Any, given: dict[str, Tensor], number: float) -> dict[str, Tensor]:
    """Make the only call of a text on one tensor."""
    count = given["g"].numel()
    buffers = {name: given.get(name, torch.zeros(count, dtype=given["p"].dtype)) for name in kernel.buffers}
    held = buffers["w" if "w" in kernel.trace.outputs else "p"].data_ptr()
    fields = [[0], [0], [count], [0, 1], [0], [held], [given["g"].data_ptr()], [x.data_ptr() for x in buffers.values()]]
    arrays = [*(np.array(field, dtype=np.int64) for field in fields), np.array([number])]
    alike = np.zeros(1, dtype=np.int64)
    after = (1, 0, None, 1, 1, None, None, alike.ctypes.data)
    library.call0(ctypes.byref(KernelLaunch(0, 1, *(x.ctypes.data for x in arrays), *after)))
    return buffers


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_operation_means_what_torch_means(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = text()
    (kernel,) = partition(whole)
    library = compiled(emit_cpp(whole, str(dtype).removeprefix("torch."), None), tmp_path / "all.so")
    known = values(dtype)
    found = run(library, kernel, {"g": known[0].clone(), "p": known[1].clone()}, 0.25)
    for i, op in enumerate(operations()):
        expected = truth(op, dtype).to(dtype)
        torch.testing.assert_close(
            found[f"s.{i}"], expected, equal_nan=True, msg=lambda m, op=op: f"{op.name} {op.args} {op.kwargs}: {m}"
        )


def test_what_has_no_form_is_said_by_name() -> None:
    ops = (Op("input", ("g",), (), "element", 0), Op("sinc", (A,), (), "element", 0))
    with pytest.raises(Untraceable, match="sinc has no form in C\\+\\+"):
        emit_cpp(Trace(ops, (), {"p": 1}), "float32", None)


@needs_compiler
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_low_precision_are_rounded_as_torch_rounds(low: torch.dtype, tmp_path: Path) -> None:
    g = Op("input", ("g",), (), "element", 0)
    p = Op("input", ("p",), (), "element", 0)
    ops = (g, p, Op("widen", (Ref(0),), (), "element", 0), Op("operator.add", (Ref(1), Ref(2)), (), "element", 0))
    whole = Trace((*ops, Op("narrow", (Ref(3),), (), "element", 0)), (), {"p": 3, "w": 4})
    (kernel,) = partition(whole)
    library = compiled(emit_cpp(whole, "float32", str(low).removeprefix("torch.")), tmp_path / "low.so")
    random = torch.Generator().manual_seed(0)
    weights = torch.cat([torch.randn(5000, generator=random) * 10.0**e for e in range(-9, 5)])
    weights = torch.cat([weights, torch.tensor([float("inf"), float("nan"), -0.0, 3.3895e38, 65519.0, 65520.0, 1e-40])])
    # Halfway between neighbours, up to where numbers of `low` have fewer digits, and every number as a gradient.
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(low)
    halves = every[1:].float().add(every[:-1].float()).div(2)
    weights = torch.cat([weights, halves, torch.zeros(len(every))])
    gradient = torch.randn(len(weights) - len(every) - len(halves), generator=random).to(low)
    gradient = torch.cat([gradient, torch.zeros(len(halves), dtype=low), every])
    given = {"g": gradient, "p": weights.clone(), "w": torch.zeros(len(weights), dtype=low)}
    found = run(library, kernel, given, 0.0)
    expected = weights + gradient.float()
    torch.testing.assert_close(found["p"], expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found["w"], expected.to(low), rtol=0, atol=0, equal_nan=True)
