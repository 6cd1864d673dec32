"""A function of tensors as the plain list of operations that it comes to.

Dispatching `vmap` and `grad` again costs as much as the arithmetic of a small network does. A trace pays it once; what
is run afterwards are the same operations in the same order, without those that change nothing or repeat another one,
and over memory that is free again where they are elementwise. It holds for one set of shapes, and needs no compiler:
the operations are called by TorchScript's interpreter, which takes a third of the time in which Python calls them.
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch

from descend.study.running import trace_files
from descend.study.running.cpu_kernels import decompositions
from descend.study.running.recorder import recorded
from descend.torch_private import inline_calls, operator_schema, private_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.fx import Graph, Node

    Function = Callable[..., list[Tensor]]

__all__ = ["traced"]

_aten = torch.ops.aten
_as_it_is = torch.jit.optimized_execution  # pyright: ignore[reportPrivateImportUsage]  # documented, and not exported
_IN_PLACE: dict[Any, Any] = {
    _aten.add.Tensor: _aten.add_.Tensor,
    _aten.sub.Tensor: _aten.sub_.Tensor,
    _aten.mul.Tensor: _aten.mul_.Tensor,
    _aten.div.Tensor: _aten.div_.Tensor,
    _aten.mul.Scalar: _aten.mul_.Scalar,
    _aten.exp.default: _aten.exp_.default,
    _aten.log.default: _aten.log_.default,
    _aten.neg.default: _aten.neg_.default,
    _aten.addcmul.default: _aten.addcmul_.default,
    _aten.relu.default: _aten.relu_.default,
    _aten.sqrt.default: _aten.sqrt_.default,
}
_VIEWS = (_aten.expand.default, _aten.view.default, private_operator("_unsafe_view").default)


def traced(
    function: Function, *example: Tensor, spent: int = 0, fused: bool = False, file: Path | None = None
) -> Function:
    """The operations of a function for tensors of the shapes of `example`.

    Args:
        function: A pure function from tensors to a list of tensors, without decisions that depend on their values.
        example: What it is called with for the trace.
        spent: So many of the first tensors are not read again by the caller, who passes as many of the first
            results in their place next time; they may be written over.
        fused: Let a product and the sum that it goes into be one operation, which rounds once instead of twice.
        file: Where the trace is kept for other processes; one that is there and agrees is used.
    """
    if file is not None and (kept := trace_files.load(file)) is not None:
        call = _called(kept)
        if trace_files.agrees(call, function, example):
            return call
    module = recorded(function, example, decompositions(example))
    graph = module.graph
    for node in list(graph.nodes):
        if _changes_nothing(node):
            node.replace_all_uses_with(cast("Node", node.args[0]))
            graph.erase_node(node)
    graph.eliminate_dead_code()
    if all(_is_pure(node) for node in graph.nodes if node.op == "call_function"):
        _compute_once(graph)
        if fused:
            _fuse(graph)
        _write_in_place(graph, spent)
    for node in graph.nodes:
        if node.target is _aten.convolution_backward.default:
            node.target, node.args = _backward_of_convolution(node.args[3:]), node.args[:3]
    module.recompile()
    script = _script(module.forward, example)
    if script is None:
        return module.forward
    if file is not None:
        trace_files.save(script, file)
    return _called(script)


def _backward_of_convolution(settings: Sequence[Any]) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """The gradients of a convolution as TorchScript, whose tracer takes no lists of truth values.

    Args:
        settings: What follows gradient, input and weights among the operation's arguments: numbers and lists of them.
    """
    given = ", ".join(repr(list(one) if isinstance(one, (list, tuple)) else one) for one in settings)
    text = f"""
def backward(gradient, input, weight):
    return torch.ops.aten.convolution_backward(gradient, input, weight, {given})
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is no longer worked on
        script: Any = torch.jit.CompilationUnit(text).backward

    def backward_of_convolution(gradient: Tensor, inputs: Tensor, weight: Tensor) -> Any:
        return script(gradient, inputs, weight)

    return backward_of_convolution


def _script(function: Function, example: Sequence[Tensor]) -> Any:
    """The same operations for an interpreter that is not Python's; None where there is none."""
    copies = [x.detach().clone() for x in example]  # which it may write over
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that TorchScript is no longer worked on: it is not asked to compile
            script: Any = torch.jit.trace(lambda *given: tuple(function(*given)), tuple(copies), check_trace=False)
        inline_calls(script)  # a file has no place for the functions that are called
        return script
    except Exception:  # it says in many ways that it cannot, and nothing depends on it but the speed
        return None


def _called(script: Any) -> Function:
    """A function of TorchScript as one of tensors to a list."""

    def called(*given: Tensor) -> list[Tensor]:
        with _as_it_is(False):  # so that the first calls give the bits of all others
            return list(script(*given))

    return called


def _changes_nothing(node: Node) -> bool:
    """Whether a node's operand can take its place."""
    if node.target in _VIEWS:
        return _form(node.args[0])[0] == _form(node)[0]
    if node.target is not _aten.mul.Scalar or node.args[1] != 1:
        return False
    given, made = _form(node.args[0]), _form(node)
    if given == made:
        return True
    views = {user: _view_of(given, user) for user in node.users}
    if given[:2] != made[:2] or None in views.values():
        return False
    for user, strides in views.items():
        user.meta["form"] = user.meta["form"]._replace(stride=strides)
    return True


def _view_of(given: tuple[Any, ...], user: Node) -> tuple[int, ...] | None:
    """The strides of a view of a value with another form.

    Returns:
        None where it is no such view, or where what is made from it could then lie in memory in another way.
    """
    shape, dtype, strides = given
    if user.target is not _aten.view.default or any(
        later.op != "call_function" or _is_view(later) for later in user.users
    ):
        return None
    try:
        view = torch.empty_strided(shape, strides, dtype=dtype, device="meta").view(cast("Any", user.args[1]))
    except RuntimeError:
        return None
    old = _form(user)[2]
    dims = [dim for dim, length in enumerate(view.shape) if length > 1]
    same = sorted(dims, key=lambda dim: old[dim]) == sorted(dims, key=lambda dim: view.stride(dim))
    return view.stride() if same else None


def _is_pure(node: Node) -> bool:
    """Whether an operation writes nothing but its result, and gives the same when it is repeated."""
    if node.target is operator.getitem:
        return True
    target = cast("Any", node.target)
    # Batch norm writes its statistics, and its schema does not say so.
    if operator_schema(target).is_mutable or "batch_norm" in str(target):
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _compute_once(graph: Graph) -> None:
    """Let what is computed twice be computed once."""
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = repr((node.target, node.args, sorted(node.kwargs.items())))
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.erase_node(node)
        else:
            known[key] = node


def _fuse(graph: Graph) -> None:
    """a b + c and c − a b in one operation, where the product has no other use."""
    for node in list(graph.nodes):
        if node.target not in (_aten.add.Tensor, _aten.sub.Tensor) or node.kwargs:
            continue
        pairs = [(1, 0)] if node.target is _aten.sub.Tensor else [(0, 1), (1, 0)]
        for place, other in pairs:
            product, term = node.args[place], node.args[other]
            if not _is_product(product) or not isinstance(term, torch.fx.Node) or _form(term) != _form(node):
                continue
            x, y = product.args
            sign = -1 if node.target is _aten.sub.Tensor else 1
            if not isinstance(y, torch.fx.Node):
                if _form(x) != _form(node):
                    continue
                node.target, node.args, node.kwargs = _aten.add.Tensor, (term, x), {"alpha": sign * cast("float", y)}
            elif _form(x)[1] == _form(y)[1] == _form(node)[1]:
                node.target, node.args, node.kwargs = _aten.addcmul.default, (term, x, y), {"value": sign}
            else:
                continue
            graph.erase_node(product)
            break


def _is_product(value: Any) -> TypeGuard[Node]:
    """Whether a value is a product of floating numbers that is used once."""
    if not isinstance(value, torch.fx.Node) or value.target is not _aten.mul.Tensor or len(value.users) > 1:
        return False
    return len(_form(value)) > 1 and _form(value)[1].is_floating_point


def _write_in_place(graph: Graph, spent: int) -> None:
    """Let an elementwise operation write over an intermediate value that is not read afterwards."""
    views = {node for node in graph.nodes if _is_view(node)}
    roots: dict[Node, Node] = {}  # whose memory a value lies in
    last: dict[Node, Node] = {}  # the last reader of that memory
    for node in graph.nodes:
        roots[node] = roots[cast("Node", node.args[0])] if node in views else node
        for source in node.all_input_nodes:
            last[roots[source]] = node
    writable = _writable(graph, roots, spent)
    for node in graph.nodes:
        for source in _overwritable(node):
            root = roots[source]
            own = source in writable or (source.op == "call_function" and source not in views)
            free = own and last[root] is node
            if free and _form(source) == _form(node) and [roots[x] for x in node.all_input_nodes].count(root) == 1:
                _write_over(node, source)
                for value in [value for value, place in roots.items() if place is node]:
                    roots[value] = root
                last[root] = last[node]  # the result is read, or it would not be computed
                break


def _writable(graph: Graph, roots: dict[Node, Node], spent: int) -> list[Node]:
    """Inputs that may be written over: those whose successors have memory of their own."""
    inputs = list(graph.find_nodes(op="placeholder"))[:spent]
    results = cast("list[Node]", next(iter(graph.find_nodes(op="output"))).args[0])[:spent]
    owners = [roots[result] for result in results]
    return [
        one
        for one, owner in zip(inputs, owners, strict=False)
        if owners.count(owner) == 1 and (owner.op == "call_function" or owner is one)
    ]


def _overwritable(node: Node) -> list[Node]:
    """Operands that the result could take the place of: the first, or either one where their order means nothing."""
    if node.target not in _IN_PLACE:
        return []
    count = 2 if node.target in (_aten.add.Tensor, _aten.mul.Tensor) else 1
    return [x for x in node.args[:count] if isinstance(x, torch.fx.Node)]


def _write_over(node: Node, source: Node) -> None:
    """Let the result of an operation take the place of one of its operands."""
    if node.kwargs.get("alpha") is not None and source is not node.args[0]:
        node.target, node.kwargs = _aten.add.out, {**node.kwargs, "out": source}
        return
    others = list(node.args)
    others.remove(source)
    node.args = (source, *others)
    node.target = _IN_PLACE[cast("Any", node.target)]


def _is_view(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    return node.target in _VIEWS or "(a" in str(operator_schema(node.target))  # how a schema marks shared memory


def _form(node: Any) -> tuple[Any, ...]:
    """Shape, type and strides of a value; of a constant, which has no notes, something that is like nothing else."""
    return node.meta.get("form", (node,)) if isinstance(node, torch.fx.Node) else (node,)
