"""Traces a rule: runs it once on symbols and records its elementwise operations.

Each operation is of one of two kinds. A *number* is one value a tensor (t, lr, β₁ᵗ, a norm): it is computed in float64
outside any kernel, because a bias correction inside one doubles its time and in float32 is wrong in its fifth digit. An
*element* is one value for each element of the weights. A norm or a total turns elements into a number, and what
needs that number belongs to the next *stage*: LAMB has two.

Rules that ask for means over rows and columns have three kinds more: one value for each *row*, each *column* and each
*matrix*, the last where a tensor of more than two dimensions is several. `trace_matrices` reads such rules.

Floating-point constants are numbers too. So other values of β₁, in another group or later in the run, are other
data for the same text.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from descend.optim.engine.plain import update
from descend.optim.engine.step_inputs import named_entries
from descend.optim.rules.base import MEANS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = [
    "FUNCTIONS",
    "STATE",
    "Kind",
    "Op",
    "Ref",
    "Trace",
    "Untraceable",
    "late_reductions",
    "trace",
    "trace_matrices",
]

Kind = Literal["element", "row", "column", "matrix", "number"]

# The dimensions in which values of a kind differ: rows, columns, and which matrix of a tensor of several.
_EXTENTS: Mapping[Kind, str] = {"element": "rcm", "row": "rm", "column": "cm", "matrix": "m", "number": ""}
_KINDS: Mapping[str, Kind] = {extent: kind for kind, extent in _EXTENTS.items()}
# What a mean over rows or over columns makes of a kind.
_MEANS: Mapping[str, Mapping[Kind, Kind]] = {
    "row_mean": {"element": "row", "column": "matrix"},
    "column_mean": {"element": "column", "row": "matrix"},
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_OPERATORS = _words("add sub mul truediv pow neg abs gt ge lt le eq ne and_ or_ invert")
_ELEMENTWISE = _words("""
    abs acos add addcdiv addcmul asinh atan atan2 ceil clamp clamp_max clamp_min clone copysign cos cosh detach div
    eq erf erfc exp exp2 expm1 floor fmax fmin frac ge gt hypot isfinite isinf isnan ldexp le lerp log log10 log1p
    log2 logaddexp logical_and logical_not logical_or logical_xor logit lt maximum minimum mul multiply nan_to_num
    ne neg negative ones_like pow reciprocal remainder rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square
    sub subtract tan tanh true_divide trunc where xlogy zeros_like
""")
_BOOLEAN = frozenset(
    _words("gt ge lt le eq ne isfinite isinf isnan signbit logical_and logical_or logical_not logical_xor")
)
_DIVISIONS = frozenset({"truediv", "div", "true_divide"})
_LOGIC = frozenset({"and_", "or_", "invert"})
# An exponent stays in the text, since a power with a constant exponent is a multiplication or a root.
_CONSTANT_ARGUMENTS = frozenset(_words("pow addcdiv addcmul nan_to_num logit ldexp zeros_like ones_like"))

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _ELEMENTWISE},
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS},
}


STATE = "s."  # before the names of a state's entries, which are the rule's own and may be "p"


class Untraceable(Exception):  # an answer, not an error: such a rule runs plainly
    """The rule's text cannot be read as elementwise operations; the message says which part and why."""


@dataclass(frozen=True)
class Ref:
    """A reference to the value of an operation, by its place in the text."""

    at: int


@dataclass(frozen=True)
class Op:
    """One operation of the text.

    Attributes:
        name: A key of `FUNCTIONS`; or "input" (argument: its name), "literal" (its place among the literals), "norm",
            "total", "row_mean", "column_mean", "widen" (to the precision of the state) and "narrow" (to that of the
            weights).
        args: References and constants.
        kwargs: The same, by name.
        kind: What the value is one of: each element, row, column or matrix, or the tensor.
        stage: Number of reductions in a row that must be known before it.
        boolean: Whether the value is true or false.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    kind: Kind
    stage: int
    boolean: bool = False

    @functools.cached_property
    def refs(self) -> list[int]:
        """The operations whose values this one reads."""
        return [value.at for value in (*self.args, *(value for _, value in self.kwargs)) if isinstance(value, Ref)]


@dataclass(frozen=True, eq=False)
class Trace:
    """A whole update: operations in order, and which of them are the new weights and state.

    Attributes:
        ops: Every operation after those it reads.
        literals: Values of the constants, by their place.
        outputs: "p", the entries of the state, and "w" for weights of low precision: place of the new value.
    """

    ops: tuple[Op, ...]
    literals: tuple[float, ...]
    outputs: Mapping[str, int]

    @property
    def entries(self) -> dict[str, Kind]:
        """Entries of the state by the name of their input, each with its kind."""
        inputs = {str(op.args[0]): op for op in self.ops if op.name == "input"}
        return {name: op.kind for name, op in inputs.items() if name.startswith(STATE)}

    @functools.cached_property
    def stages(self) -> int:
        """How many stages there are, one more than reductions in a row."""
        return 1 + max((op.stage for op in self.ops), default=0)

    @functools.cached_property
    def constants(self) -> list[tuple[int, int]]:
        """Place of each literal, and its number among the literals."""
        return [(at, op.args[0]) for at, op in enumerate(self.ops) if op.name == "literal"]

    @functools.cached_property
    def given(self) -> list[tuple[int, str]]:
        """Place and name of each number that comes from outside."""
        return [(at, op.args[0]) for at, op in enumerate(self.ops) if op.name == "input" and op.kind == "number"]

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the update asks for noise."""
        return any(op.name == "input" and str(op.args[0]).startswith("noise ") for op in self.ops)

    @functools.cached_property
    def structure(self) -> str:
        """Everything but the values of the literals; texts of one structure share kernels and an arena."""
        ops = [[op.name, _plain(op.args), _plain(op.kwargs), op.kind, op.stage, op.boolean] for op in self.ops]
        # Interned, so that comparing two is comparing identities.
        return sys.intern(json.dumps({"ops": ops, "outputs": dict(self.outputs)}))


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.at}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _back(value: Any) -> Any:
    if isinstance(value, dict):
        return Ref(value["ref"])
    return tuple(_back(part) for part in value) if isinstance(value, list) else value


def from_structure(structure: str) -> Trace:
    """The trace of `Trace.structure`, without values for its literals."""
    held = json.loads(structure)
    ops = tuple(Op(o[0], _back(o[1]), _back(o[2]), o[3], o[4], o[5]) for o in held["ops"])
    return Trace(ops, (), held["outputs"])


class Symbol:
    """Stands for a tensor while a rule is read; what is done to it is written down."""

    def __init__(self, script: _Script, at: int) -> None:
        self.script = script
        self.at = at

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Symbol:
        script = next(x.script for x in (*args, *(kwargs or {}).values()) if isinstance(x, Symbol))
        return script.call(getattr(func, "__name__", repr(func)), args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name == "dtype" and self.script.dtype is not None:
            return self.script.dtype
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in FUNCTIONS:
            raise Untraceable(f"it uses .{name}, which is not elementwise")
        return lambda *args, **kwargs: self.script.call(name, (self, *args), kwargs)

    def __bool__(self) -> bool:
        raise Untraceable("it branches on a value; torch.where chooses element by element")

    __hash__ = object.__hash__


def _forward(name: str) -> Callable[..., Symbol]:
    def apply(self: Symbol, *others: Any) -> Symbol:
        return self.script.call(f"operator.{name}", (self, *others), {})

    return apply


def _reflected(name: str) -> Callable[..., Symbol]:
    def apply(self: Symbol, other: Any) -> Symbol:
        return self.script.call(f"operator.{name}", (other, self), {})

    return apply


for _name in _OPERATORS:
    setattr(Symbol, f"__{_name.rstrip('_')}__", _forward(_name))
for _name in ("add", "sub", "mul", "truediv", "pow", "and_", "or_"):
    setattr(Symbol, f"__r{_name.rstrip('_')}__", _reflected(_name))


class _Script:
    """The operations written down so far."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype  # of the state, where the text is for one precision
        self.ops: list[Op] = []
        self.literals: list[float] = []

    def symbol(self, op: Op) -> Symbol:
        self.ops.append(op)
        return Symbol(self, len(self.ops) - 1)

    def input(self, name: str, kind: Kind) -> Symbol:
        return self.symbol(Op("input", (name,), (), kind, 0))

    def reduction(self, name: str) -> Callable[[Symbol], Symbol]:
        def call(x: Symbol) -> Symbol:
            op = self.ops[x.at]
            if op.kind != "element":
                raise Untraceable(f"it takes the {name} of a {op.kind}")
            return self.symbol(Op(name, (Ref(x.at),), (), "number", op.stage + 1))

        return call

    def mean(self, name: str) -> Callable[[Symbol], Symbol]:
        def call(x: Symbol) -> Symbol:
            op = self.ops[x.at]
            kind = _MEANS[name].get(op.kind)
            if kind is None:
                raise Untraceable(f"it takes the {name} of a {op.kind}")
            return self.symbol(Op(name, (Ref(x.at),), (), kind, op.stage + 1))

        return call

    def cast(self, name: str, x: Symbol) -> Symbol:
        return self.symbol(Op(name, (Ref(x.at),), (), "element", self.ops[x.at].stage))

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Symbol:
        if name not in FUNCTIONS:
            raise Untraceable(f"it uses {name}, which is not elementwise")
        short = name.removeprefix("operator.")
        # None is what torch takes where nothing is said.
        kwargs = {key: x for key, x in kwargs.items() if x is not None}
        args = args[: max((at for at, x in enumerate(args, 1) if x is not None), default=0)]
        if short == "clamp" and args[1:] and args[1] is None:  # symbols are not compared, which would be traced
            return self.call("clamp_max", (args[0], args[2]), {})
        if short in _DIVISIONS and not kwargs and self._kind(args[0]) == "element" and self._kind(args[1]) == "number":
            # A division by one number a tensor is a multiplication: three times as fast, and the same to rounding.
            return self.call("operator.mul", (args[0], self._inverse(args[1])), {})
        kind = _joined(self.ops[x.at].kind for x in (*args, *kwargs.values()) if isinstance(x, Symbol))
        lift = not (kind != "number" and short in _CONSTANT_ARGUMENTS)
        held = tuple(self._argument(x, lift, short) for x in args)
        named = tuple((key, self._argument(x, lift, short)) for key, x in sorted(kwargs.items()))
        before = [self.ops[ref.at] for ref in (*held, *(x for _, x in named)) if isinstance(ref, Ref)]
        boolean = short in _BOOLEAN or (short in _LOGIC and all(op.boolean for op in before))
        return self.symbol(Op(name, held, named, kind, max(op.stage for op in before), boolean))

    def own(self, name: str, x: Any) -> Any:
        """The new value of a buffer; a copy where it is what another buffer held, which gets its new value as well."""
        op = self.ops[x.at] if isinstance(x, Symbol) else None
        if op is None or op.name != "input" or op.args[0] == name:
            return x
        held = op.args[0] == "p" or str(op.args[0]).startswith(STATE)
        return self.call("clone", (x,), {}) if held else x

    def _inverse(self, x: Any) -> Any:
        """1 / x of a number; a constant 0 keeps torch's infinity."""
        if isinstance(x, Symbol):
            return self.call("operator.truediv", (1.0, x), {})
        return 1.0 / x if x else math.copysign(math.inf, x)

    def _kind(self, x: Any) -> Kind:
        return self.ops[x.at].kind if isinstance(x, Symbol) else "number"

    def _argument(self, x: Any, lift: bool, function: str) -> Any:
        if isinstance(x, Symbol):
            return Ref(x.at)
        if isinstance(x, torch.Tensor):
            if x.ndim:
                raise Untraceable("it holds a tensor as a constant")
            x = float(x)
        if x is not None and not isinstance(x, (bool, int, float)):
            raise Untraceable(f"it hands {type(x).__name__} to {function}")
        # torch.clamp takes two tensors or two constants, so its integers become numbers as well.
        if lift and (isinstance(x, float) or (function in ("clamp", "clamp_max") and x is not None)):
            self.literals.append(float(x))
            literal = Op("literal", (len(self.literals) - 1,), (), "number", 0)
            return Ref(self.symbol(literal).at)
        return x


def _joined(kinds: Iterable[Kind]) -> Kind:
    """The kind of what is computed from values of these kinds."""
    found = "".join(_EXTENTS[kind] for kind in kinds)
    return _KINDS["".join(extent for extent in "rcm" if extent in found)]


def trace(settings: Any, low_precision: bool) -> Trace:
    """The text of one update under these settings.

    Args:
        settings: A group's `Settings`.
        low_precision: Whether the weights ("w") have a float32 master ("p").

    Raises:
        Untraceable: The rule needs whole tensors or does something that is not elementwise.
    """
    if settings.rule.whole_tensor:
        raise Untraceable("it needs the shape of its tensor")
    made = _trace(settings, _Script(), low_precision, (2, 3), lambda shape: "element" if shape else "number", ())
    return replace(made, ops=late_reductions(made.ops, made.outputs.values()))


def late_reductions(ops: tuple[Op, ...], outputs: Iterable[int]) -> tuple[Op, ...]:
    """The operations with each norm and total in the last stage before its use that reads what it sums anyway.

    A stage that sums nothing else of some buffer then need not read that buffer.
    """
    use = _uses(ops)
    held = [_inputs_of(ops, at) if op.kind == "element" else frozenset[int]() for at, op in enumerate(ops)]
    stages = [op.stage for op in ops]
    outer = {at for at in outputs if ops[at].kind == "element"}
    for at, op in enumerate(ops):
        if op.name in ("norm", "total"):
            wanted = use[at]
            others = [i for i, o in enumerate(ops) if o.name in ("norm", "total") and i != at and stages[i] == wanted]
            roots = [*(ops[i].refs[0] for i in others), *(i for i in outer if ops[i].stage == wanted - 1)]
            if wanted > op.stage and held[op.refs[0]] <= frozenset[int]().union(*(held[i] for i in roots)):
                stages[at] = wanted
        elif op.kind == "number" and op.refs:
            stages[at] = max(stages[ref] for ref in op.refs)
    return tuple(replace(op, stage=stage) if op.stage != stage else op for op, stage in zip(ops, stages, strict=True))


def _uses(ops: tuple[Op, ...]) -> list[int]:
    """Of each number the first stage in which elements are computed from it, its own stage where none are."""
    first: dict[int, int] = {}
    for at in reversed(range(len(ops))):
        op = ops[at]
        stage = op.stage if op.kind != "number" else first.get(at)
        if stage is not None and op.name not in ("norm", "total"):
            for ref in op.refs:
                first[ref] = min(stage, first.get(ref, stage))
    return [first.get(at, op.stage) for at, op in enumerate(ops)]


def _inputs_of(ops: tuple[Op, ...], at: int) -> frozenset[int]:
    """The inputs of elements that a value is computed from."""
    seen, todo = set[int](), [at]
    while todo:
        i = todo.pop()
        if i not in seen and ops[i].kind == "element":
            seen.add(i)
            todo += ops[i].refs
    return frozenset(i for i in seen if ops[i].name == "input")


def trace_matrices(settings: Any, dtype: torch.dtype, low_precision: bool, dims: int) -> Trace:
    """The text of one update of a rule that asks for means over rows or columns.

    Args:
        settings: As for `trace`.
        dtype: Precision of the state, on which constants of the text may depend.
        low_precision: As for `trace`.
        dims: Dimensions of the weights, at most 4. Without a second one there are no means; all is one row.

    Raises:
        Untraceable: The rule does something that is neither elementwise nor such a mean, norm or total.
    """
    if settings.rule.needs.isdisjoint(MEANS) or "shape" in settings.rule.needs:
        raise Untraceable("it needs the shape of its tensor")
    shape = tuple([2, 3, 5, 7][4 - dims :])
    kinds: dict[tuple[int, ...], Kind] = {shape: "element"}
    if dims > 1:
        kinds |= {(*shape[:-1], 1): "row", (*shape[:-2], 1, shape[-1]): "column", (*shape[:-2], 1, 1): "matrix"}

    def kind_of(found: tuple[int, ...]) -> Kind:
        if found not in kinds:
            raise Untraceable("an entry of its state is shaped neither like the weights nor like a mean of them")
        return kinds[found]

    return _trace(settings, _Script(dtype), low_precision, shape, kind_of, MEANS if dims > 1 else ())


def _trace(
    settings: Any,
    script: _Script,
    low_precision: bool,
    shape: tuple[int, ...],
    kind_of: Callable[[tuple[int, ...]], Kind],
    means: Collection[str],
) -> Trace:
    """The text for weights of this shape, whose state has entries of these kinds."""
    rule = settings.rule
    form = rule.init(torch.zeros(shape, device="cpu"))  # the device "meta" would import SymPy: a second
    entries = {
        name: script.input(STATE + name, kind_of(tuple(value.shape))) for name, value in named_entries(form).items()
    }
    g, p = script.input("g", "element"), script.input("p", "element")
    if low_precision:
        g, p = script.cast("widen", g), _followed(script, p)
    calls = iter(range(8))
    names = ("t", "lr", "decay", "scaled", *(("size",) if "size" in rule.needs else ()))
    numbers = {name: script.input(name, "number") for name in names}
    provided: dict[str, Callable[..., Any]] = {
        "norm": script.reduction("norm"),
        "total": script.reduction("total"),
        "noise": lambda: script.input(f"noise {next(calls)}", "element"),
        **{name: script.mean(name) if name in means else _no_mean for name in MEANS},
    }
    state = None if form is None else form._replace(**entries)
    try:
        new, after = update(g, p, state, settings, numbers, provided)  # pyright: ignore[reportArgumentType]  # symbols
    except (TypeError, ValueError, AttributeError, RuntimeError) as problem:  # as of float(t), which a number allows
        raise Untraceable(f"its text cannot be read: {problem}") from problem
    kept = {} if after is None else {STATE + name: x for name, x in after._asdict().items()}
    outputs = {name: script.own(name, x) for name, x in {"p": new, **kept}.items()}
    if low_precision:
        outputs["w"] = script.cast("narrow", cast("Symbol", new))
    return Trace(
        tuple(script.ops),
        tuple(script.literals),
        {name: _place(name, x) for name, x in outputs.items() if x is not None},
    )


def _no_mean(_: Any) -> Any:
    raise Untraceable("it takes means over rows or columns of what has none")


def _followed(script: _Script, master: Symbol) -> Symbol:
    """The master, or what was written into the weights since it was rounded into them."""
    w = script.input("w", "element")
    same = script.call("operator.eq", (script.cast("narrow", master), w), {})
    return script.call("where", (same, master, script.cast("widen", w)), {})


def _place(name: str, x: Any) -> int:
    if not isinstance(x, Symbol):
        raise Untraceable(f"its new {name} is not computed from its inputs")
    return x.at
