"""Writes a trace as C++ for a CPU: one loop over elements for each kernel.

Every operation is rounded by itself (no fused multiply-add), as in the eager form, so that a run gets the same bits
whether its kernels are compiled yet or not.

Numbers that depend on norms and totals are computed between two kernels. Where they are of plain arithmetic C++ does
that, too, and one call updates a tensor through all stages while it is in the cache. Else each stage is a call.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.optim.compiler.partition import Kernel, needed, of_gradient, partition, without_sums
from descend.optim.compiler.trace import Op, Ref, Trace, Untraceable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "HEADER",
    "TYPES",
    "Call",
    "calls",
    "definitions",
    "emit_cpp",
    "expression",
    "is_exact",
    "kind_of",
    "load",
    "rooted",
    "store",
    "summand",
    "type_of",
]

HEADER = Path(__file__).with_name("kernel.h")
NOISE = Path(__file__).with_name("noise.h")

TYPES = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "float16"}


def _call(name: str) -> str:
    return f"T(std::{name}({{0}}))"


# An operation on values named {0}, {1}, ... of the kernel's type T. Functions of std:: by the same name come first.
_ONE = "acos asin asinh atan ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 sin sinh sqrt tan tanh"
_FORMS: Mapping[str, str] = {
    **{name: _call(name) for name in _ONE.split()},
    **{name: f"T(std::{name}({{0}}, {{1}}))" for name in ("atan2", "copysign", "hypot")},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(["add", "mul", "truediv"], "+*/", strict=True)},
    **{
        name: f"{{0}} {sign} {{1}}"
        for name, sign in zip(["gt", "ge", "lt", "le", "eq", "ne"], [">", ">=", "<", "<=", "==", "!="], strict=True)
    },
    "multiply": "{0} * {1}",
    "div": "{0} / {1}",
    "true_divide": "{0} / {1}",
    "sub": "{0} - {1}",
    "subtract": "{0} - {1}",
    "rsub": "{1} - {0}",
    "abs": "T(std::fabs({0}))",
    "neg": "-{0}",
    "negative": "-{0}",
    "and_": "{0} && {1}",
    "or_": "{0} || {1}",
    "invert": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "logical_not": "!{0}",
    "isfinite": "{0} - {0} == 0",
    "isnan": "{0} != {0}",
    "isinf": "{0} == {0} && {0} - {0} != 0",
    "signbit": "std::signbit({0})",
    "where": "{0} ? {1} : {2}",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "fmax": "{0} > {1} || {1} != {1} ? {0} : {1}",
    "fmin": "{0} < {1} || {1} != {1} ? {0} : {1}",
    "sign": "T({0} > 0) - T({0} < 0)",
    "sgn": "T({0} > 0) - T({0} < 0)",
    "square": "{0} * {0}",
    "reciprocal": "1 / {0}",
    "rsqrt": "1 / T(std::sqrt({0}))",
    "sigmoid": "1 / (1 + T(std::exp(-{0})))",
    "trunc": "T(std::trunc({0}))",
    "frac": "{0} - T(std::trunc({0}))",
    "clone": "{0}",
    "detach": "{0}",
    "ones_like": "T(1)",
    "zeros_like": "T(0)",
}

# A power with one of these exponents is what torch takes for it, too.
_POWERS = {
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    0.5: "T(std::sqrt({0}))",
    -0.5: "1 / T(std::sqrt({0}))",
    -1.0: "1 / {0}",
    -2.0: "1 / ({0} * {0})",
}


def _power(args: list[str], raw: tuple[Any, ...], _: Mapping[str, str]) -> str:
    form = _POWERS.get(raw[1]) if isinstance(raw[1], (int, float)) else None
    return (form or "T(std::pow({0}, {1}))").format(*args)


def _clamp(args: list[str], _: tuple[Any, ...], named: Mapping[str, str]) -> str:
    bounds: dict[str, str] = {**dict(zip(("min", "max"), args[1:], strict=False)), **named}
    x = args[0]
    for bound, form in (("min", _FORMS["maximum"]), ("max", _FORMS["minimum"])):
        if bound in bounds:
            x = f"({form.format(x, bounds[bound])})"
    return x


def _scaled(form: str) -> Callable[[list[str], tuple[Any, ...], Mapping[str, str]], str]:
    """An operation with a factor that is 1 unless given (alpha or value)."""

    def write(args: list[str], _: tuple[Any, ...], named: Mapping[str, str]) -> str:
        factor = next(iter(named.values()), None)
        return form.format(*args, f"{factor} * " if factor else "")

    return write


_WRITERS: Mapping[str, Callable[[list[str], tuple[Any, ...], Mapping[str, str]], str]] = {
    "pow": _power,
    "clamp": _clamp,
    "clamp_min": lambda args, raw, _: _clamp(args[:1], raw, {"min": args[1]}),
    "clamp_max": lambda args, raw, _: _clamp(args[:1], raw, {"max": args[1]}),
    "lerp": lambda args, _, __: (
        "std::fabs({2}) < T(0.5) ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2})".format(*args)
    ),
    "add": _scaled("{0} + {2}{1}"),
    "sub": _scaled("{0} - {2}{1}"),
    "addcmul": _scaled("{0} + {3}{1} * {2}"),
    "addcdiv": _scaled("{0} + {3}{1} / {2}"),
}


# Operations on numbers that torch rounds as IEEE 754 has it, which its square root on a CPU does not.
_EXACT = (
    "abs add and_ clamp clamp_max clamp_min clone detach eq ge gt invert le lt maximum minimum mul ne neg norm "
    "ones_like or_ sub total truediv where zeros_like"
)


def is_exact(op: Op) -> bool:
    """Whether C++ rounds an operation on numbers as torch does."""
    name = op.name.removeprefix("operator.")
    return name in _EXACT.split() and (not op.kwargs or name == "clamp")  # a factor `alpha` may be contracted


@dataclass(frozen=True, eq=False)
class Call:
    """Kernels that one call runs.

    Attributes:
        kernels: In order.
        given: Places of the numbers it needs from outside, in the order of the rows of its table.
        computed: Places of those that it computes itself, norms and totals among them, in order.
    """

    kernels: tuple[Kernel, ...]
    given: tuple[int, ...]
    computed: tuple[int, ...] = ()

    @functools.cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers of each kernel, one after the other."""
        return tuple(name for kernel in self.kernels for name in kernel.held)

    @functools.cached_property
    def checked(self) -> tuple[int, ...]:
        """Those of its sums that are of the gradient alone, which the finite check makes on the way."""
        made = of_gradient(self.kernels[0].trace).sums
        return made if set(made) <= set(self.kernels[0].sums) else ()

    @functools.cached_property
    def sums(self) -> tuple[int, ...]:
        """Places of the reductions of each kernel, one after the other."""
        return tuple(at for kernel in self.kernels for at in kernel.sums)


@functools.lru_cache(maxsize=256)
def calls(trace: Trace) -> tuple[Call, ...]:
    """The calls that make up an update, in order."""
    kernels = partition(trace)
    first = {at for at, op in enumerate(trace.ops) if not op.stage}
    below = _below(trace, [at for kernel in kernels for at in kernel.numbers], first)
    computed = tuple(at for at in below if at not in first)
    if not all(is_exact(trace.ops[at]) for at in computed):
        return tuple(Call((kernel,), kernel.numbers) for kernel in kernels)
    return (Call(kernels, tuple(at for at in below if at in first), computed),)


def _below(trace: Trace, roots: Iterable[int], given: Container[int]) -> list[int]:
    """These numbers and all that they come from, down to those that are given and to norms and totals, in order."""
    return needed(trace.ops, roots, lambda at: at in given or trace.ops[at].name in ("norm", "total"))


def emit_cpp(trace: Trace, dtype: str, low: str | None) -> str:
    """All calls of a trace, as functions `call0`, `call1`, ... over `Work` (see kernel.h).

    Args:
        trace: What to compute.
        dtype: Precision in which it is computed, e.g. "float32".
        low: Precision of weights that have a master, or None.

    Raises:
        Untraceable: A function of the trace has no form in C++ here.
    """
    types = [f"using T = {TYPES[dtype]};", f"using L = {TYPES[low or dtype]};"]
    bodies = [line for i, call in enumerate(calls(trace)) for line in _function(i, call)]
    headers = [HEADER.read_text(encoding="utf-8"), *([NOISE.read_text(encoding="utf-8")] if trace.draws else [])]
    return "\n".join([*headers, *types, *bodies, ""])


def _function(i: int, call: Call) -> Iterator[str]:
    names = [f"stage{i}_{k}" for k in range(len(call.kernels))]
    for k, kernel in enumerate(call.kernels):
        yield from _stage(names[k], call, k, kernel)
    checked: list[str] = []  # the stages of an update whose finite check has made sums
    if call.checked:
        rest = without_sums(call.kernels[0], call.checked)
        if rest.writes or rest.sums:
            yield from _stage("after_check", call, 0, rest)
            checked.append("after_check")
        checked += names[1:]
    yield f'extern "C" void call{i}(const Work* w) {{'
    if call.checked:
        yield f"  if (w->checked) {{ {_run(checked)}return; }}"
    yield f"  {_run(names)}"
    yield "}"
    if call.checked:
        yield from _check(call)


def _run(stages: list[str]) -> str:
    return f"static const Stage stages[] = {{{', '.join(stages)}}}; update(*w, stages); " if stages else ""


def _check(call: Call) -> Iterator[str]:
    """The finite check that makes the sums which are of gradients alone."""
    kernel = of_gradient(call.kernels[0].trace)
    rows = [str(call.sums.index(at)) for at in kernel.sums]
    yield from _unit("check", kernel)
    yield "struct Sums {"
    yield f"  static constexpr int COUNT = {len(rows)};"
    yield f"  static constexpr int64_t ROWS[COUNT] = {{{', '.join(rows)}}};"
    given = ["n", "g", *(f"s[{i}]" for i in range(len(rows)))]
    yield f"  static void make(int64_t n, const Word<L>* g, double* s) {{ check_unit({', '.join(given)}); }}"
    yield "};"
    yield 'extern "C" int64_t check(const Work* w) { return check_and_sum<Sums, L>(*w); }'


def _unit(name: str, kernel: Kernel) -> Iterator[str]:
    """The function of one kernel that passes over one unit."""
    ops = kernel.trace.ops
    pointers = [f"{type_of(buffer)}* __restrict b{i}" for i, buffer in enumerate(kernel.held)]
    numbers = [f"{kind_of(ops[at])} x{at}" for at in kernel.numbers]
    sums = [f"double& s{i}" for i in range(len(kernel.sums))]
    place = ["uint64_t block, uint64_t key, uint32_t update"] if kernel.noises else []
    yield f"static inline void {name}_unit({', '.join(['int64_t n', *pointers, *numbers, *sums, *place])}) {{"
    yield from _loops(kernel, list(_element(kernel)))
    yield "}"


def _stage(name: str, call: Call, k: int, kernel: Kernel) -> Iterator[str]:
    """The functions of kernel k of a call: a pass over one unit; and its numbers, with the walk over some units."""
    ops = kernel.trace.ops
    yield from _unit(name, kernel)
    yield f"static void {name}(const Work& w, int64_t from, int64_t to) {{"
    yield "  const int64_t tensor = w.tensor[from];"
    yield from (f"  {kind_of(ops[at])} y{at};" for at in kernel.numbers)
    yield "  {"
    yield from (f"    {line}" for line in _numbers(call, kernel))
    yield "  }"
    # Forwards, as processors prefetch: there and back would find more in the cache, and takes longer all the same.
    yield "  for (int64_t unit = from; unit < to; ++unit) {"
    yield "    const int64_t at = w.start[tensor] + w.first[unit];"
    weights = "w" if "w" in kernel.trace.outputs else "p"
    buffers_before = sum(len(before.held) for before in call.kernels[:k])
    places = [buffers_before + call.kernels[k].held.index(buffer) for buffer in kernel.held]
    given = [_pointer(i, buffer, weights) for i, buffer in zip(places, kernel.held, strict=True)]
    given += [f"y{at}" for at in kernel.numbers]
    given += [f"w.sums[{call.sums.index(at)} * w.units + unit]" for at in kernel.sums]
    if kernel.noises:
        given += ["w.first[unit] / BLOCK", "w.key[tensor]", "static_cast<uint32_t>(w.updates[tensor] + 1)"]
    yield f"    {name}_unit({', '.join(['w.count[unit]', *given])});"
    yield "  }"
    yield "}"


def _numbers(call: Call, kernel: Kernel) -> Iterator[str]:
    """The numbers of a kernel for one tensor: from the table, and what is computed from them and from sums."""
    ops = kernel.trace.ops
    yield "using T = double;"
    yield "const double* number = w.table + tensor * w.step;"
    for at in _below(kernel.trace, kernel.numbers, call.given):
        if at in call.given:
            x = f"number[{call.given.index(at)} * w.stride]"
            x = f"{x} != 0" if ops[at].boolean else x
        elif ops[at].name in ("norm", "total"):
            x = rooted(ops, at, f"total(w, {call.sums.index(at)}, tensor)")
        else:
            x = expression(ops[at])
        yield f"const {kind_of(ops[at])} x{at} = {x};"
    yield from (f"y{at} = x{at};" for at in kernel.numbers)


def type_of(name: str) -> str:
    """The type of a buffer's elements in memory: that of the weights as torch holds them, or of the state."""
    return "const Word<L>" if name == "g" else "Word<L>" if name == "w" else "T"


def load(name: str, x: str) -> str:
    """The value of an element of a buffer."""
    return f"same_bits<L>({x})" if name in ("g", "w") else x


def store(name: str, x: str) -> str:
    """What is written to a buffer for a value."""
    return f"same_bits<Word<L>>({x})" if name == "w" else x


def _pointer(i: int, name: str, weights: str) -> str:
    """Gradients and the weights that torch holds lie anywhere, all else in the arena."""
    if name == "g":
        return "gradient_of<L>(w, unit)"
    if name == weights:
        return f"reinterpret_cast<{type_of(name)}*>(w.weights[tensor]) + w.first[unit]"
    return f"reinterpret_cast<{type_of(name)}*>(w.buffer[{i}]) + at"


def _loops(kernel: Kernel, body: list[str]) -> Iterator[str]:
    if not kernel.sums and not kernel.noises:
        yield from ["  for (int64_t i = 0; i < n; ++i) {", *body, "  }"]
        return
    # Block by block; the length of a whole block is a constant, so that the compiler unrolls it.
    names = range(len(kernel.sums))
    yield from (f"  s{i} = 0;" for i in names)
    for head, length in (
        ("  int64_t at = 0;\n  for (; at + BLOCK <= n; at += BLOCK) {", "BLOCK"),
        ("  if (at < n) {", "n - at"),
    ):
        yield head
        yield from (f"  T part{i}[BLOCK] = {{}};" for i in names)
        for noise in kernel.noises:
            yield f"  float z{noise.split()[1]}[BLOCK];"
            yield f"  normal(z{noise.split()[1]}, block + at / BLOCK, key, update, {noise.split()[1]});"
        yield from [f"  for (int64_t j = 0; j < {length}; ++j) {{", "    const int64_t i = at + j;", *body, "  }"]
        yield from (f"  s{i} += fold(part{i});" for i in names)
        yield "  }"


def _element(kernel: Kernel) -> Iterator[str]:
    """What is done to element i: old values are read first and new ones written last."""
    ops = kernel.trace.ops
    place = {name: f"b{i}[i]" for i, name in enumerate(kernel.held)}
    for at in kernel.order:
        if at in kernel.loads:
            name = kernel.loads[at]
            old = f"T(z{name.split()[1]}[j])" if name in kernel.noises else load(name, place[name])
            yield f"    const {'L' if name in ('g', 'w') else 'T'} x{at} = {old};"
    yield from (f"    {line}" for line in definitions(ops, kernel.computed))
    yield from (f"    part{i}[j] = {summand(ops, at)};" for i, at in enumerate(kernel.sums))
    for name, at in kernel.writes.items():
        yield f"    {place[name]} = {store(name, f'x{at}')};"


def kind_of(op: Op) -> str:
    """The type of a value: L of weights that have a master, bool, or T."""
    return "L" if op.name == "narrow" else "bool" if op.boolean else "T"


def definitions(ops: Sequence[Op], places: Iterable[int]) -> Iterator[str]:
    """Lines that compute values x0, x1, ... from others."""
    return (f"const {kind_of(ops[at])} x{at} = {expression(ops[at])};" for at in places)


def summand(ops: Sequence[Op], at: int, cast: str = "") -> str:
    """The term that an element adds to reduction `at`."""
    x = f"{cast}x{ops[at].refs[0]}"
    return f"{x} * {x}" if ops[at].name == "norm" else x


def rooted(ops: Sequence[Op], at: int, total: str) -> str:
    """The value of a norm or a total from its sum."""
    return f"std::sqrt({total})" if ops[at].name == "norm" else total


def expression(op: Op) -> str:
    """An operation on values x0, x1, ... of type T.

    Raises:
        Untraceable: It has no form in C++ here.
    """
    args = [_value(x) for x in op.args]
    named = {key: _value(x) for key, x in op.kwargs}
    if op.name in ("widen", "narrow"):
        return f"{'T' if op.name == 'widen' else 'L'}({args[0]})"
    name = op.name.removeprefix("operator.")
    writer = _WRITERS.get(name)
    if writer is not None:
        return writer(args, op.args, named)
    if name not in _FORMS or named:
        raise Untraceable(f"{name} has no form in C++ here")
    return _FORMS[name].format(*args)


def _value(x: Any) -> str:
    if isinstance(x, Ref):
        return f"x{x.at}"
    if isinstance(x, bool):
        return "true" if x else "false"
    if not math.isfinite(x):
        kind = "quiet_NaN" if x != x else "infinity"
        return f"{'-' if x < 0 else ''}std::numeric_limits<T>::{kind}()"
    return f"T({float(x)!r})"
