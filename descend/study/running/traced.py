"""A function of tensors as the plain list of operations that it comes to, recorded as they run.

Dispatching `vmap` and `grad` again costs as much as the arithmetic of a small network does. A trace pays it once; what
is run afterwards are the same operations in the same order, without those that change nothing or repeat another one,
and over memory that is free again where they are elementwise. It holds for one set of shapes, and needs no compiler: it
is a graph of torch.fx, whose Python code calls them. Torch's `make_fx` records the same, and imports torch's compiler
for it, which takes longer than a small study.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.weak import WeakTensorKeyDictionary

from descend.study.running.cpu_kernels import decompositions
from descend.torch_private import decomposed, dispatch_mode, operator_schema, private_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    Function = Callable[..., list[Tensor]]

__all__ = ["TensorForm", "recorded", "traced"]

_aten = torch.ops.aten
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
_FILLED: dict[Any, int] = {_aten.ones_like.default: 1, _aten.zeros_like.default: 0}
_MOST_KEPT = 2**20  # elements of a constant, for which memory is taken as long as the trace exists
_VIEWS = (_aten.expand.default, _aten.view.default, private_operator("_unsafe_view").default)
# Operations whose public functions take the same arguments, in a third of the time: their parser is in C++.
_PUBLIC_FUNCTIONS = """
abs add add_ addcmul addcmul_ addmm all amax amin any argmax bitwise_and bitwise_not bitwise_or bmm cat clamp clamp_min
clone convolution cos cumsum div div_ embedding eq erf exp exp_ fill full gather ge gt index_select le lerp log log_
logical_and logical_not lt max maximum mean minimum mm mul mul_ native_layer_norm ne neg neg_ ones permute pow
reciprocal relu relu_ rsqrt rsub scalar_tensor scatter select sigmoid sign sin split_with_sizes sqrt sqrt_ squeeze stack
sub sub_ sum tanh transpose unsqueeze where zeros
"""
_DEFAULTS = {"pin_memory": False, "layout": torch.strided}  # which a function need not be given


class TensorForm(NamedTuple):
    """How the values of a node lie in memory.

    Attributes:
        shape: Of the tensor.
        dtype: Of its elements.
        stride: Elements from one index to the next, of each dimension.
        device: Of their memory.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device


def traced(function: Function, *example: Tensor, spent: int = 0, fused: bool = False) -> Function:
    """The operations of a function for tensors of the shapes of `example`.

    Args:
        function: A pure function from tensors to a list of tensors, without decisions that depend on their values.
        example: What it is called with for the trace.
        spent: So many of the first tensors are not read again by the caller, who passes as many of the first
            results in their place next time; they may be written over.
        fused: Let a product and the sum that it goes into be one operation, which rounds once instead of twice.
    """
    module = recorded(function, example, decompositions(example))
    graph = module.graph
    for node in list(graph.nodes):
        if (same := _same_value(node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    if all(_is_pure(node) for node in graph.nodes if node.op == "call_function"):
        _compute_constants(module)
        _compute_once(graph)
        if fused:
            _fuse(graph)
        _write_in_place(graph, spent)
    for node in graph.nodes:
        if node.op == "call_function":
            _call_quickly(node)
    module.recompile()
    vars(module).update(module.named_buffers())  # where Python finds them without `nn.Module.__getattr__`
    return module.forward


def recorded(
    function: Callable[..., Sequence[Tensor]],
    example: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> GraphModule:
    """A graph of ATen operations, whose nodes have their `TensorForm` as `meta["form"]`.

    Transforms of torch.func are gone from it: it is what they come to for tensors of these shapes.

    Args:
        function: A function of tensors, without decisions that depend on their values.
        example: What it is called with.
        decompositions: Functions by the operation that they stand for; one may return NotImplemented.

    Raises:
        RuntimeError: an operation asks for the value of a tensor, so that what follows may depend on it.
    """
    recorder = _GraphRecorder(decompositions)
    for number, x in enumerate(example):
        recorder.note(x, recorder.graph.placeholder(f"given_{number}"))
    with recorder.mode:
        results = function(*example)
    recorder.graph.output([recorder.node_of(x) for x in results])
    return GraphModule(recorder.constants, recorder.graph)


class _GraphRecorder:
    """Sees every operation below autograd and vmap, and notes it.

    Attributes:
        mode: The context in which it does so.
        graph: What was noted.
        constants: Tensors that are neither given nor made by an operation, by name.
    """

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        self.mode = dispatch_mode(self._run)
        self.graph = Graph()
        self.constants: dict[str, Tensor] = {}
        self._decompositions = decompositions
        self._nodes: Any = WeakTensorKeyDictionary()  # of tensors that still exist
        self._fixed: set[Node] = set()  # whose values do not depend on what is given

    def note(self, value: Any, node: Node) -> None:
        """Remember which node's value a tensor is, or tensors in a list."""
        if isinstance(value, torch.Tensor):
            self._nodes[value] = node
            if value.layout is torch.strided:
                node.meta["form"] = TensorForm(tuple(value.shape), value.dtype, value.stride(), value.device)
        elif isinstance(value, (tuple, list)):
            for place, part in enumerate(cast("Sequence[Any]", value)):
                own = self.graph.call_function(operator.getitem, (node, place))
                if node in self._fixed:
                    self._fixed.add(own)
                self.note(part, own)

    def node_of(self, x: Tensor) -> Node:
        """The node whose value a tensor is; one that no operation made is a constant."""
        if x not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = x
            node = self._nodes[x] = self.graph.create_node("get_attr", name)
            self._fixed.add(node)
        return self._nodes[x]

    def _run(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation, and note it or what stands for it."""
        tensors = list(_tensors_in((*args, *options.values())))
        with self.mode:
            made = self._in_parts(func, tensors, args, options)
        if made is not NotImplemented:
            return made
        func = _aten.lift_fresh_copy.default if func is _aten.lift_fresh.default else func
        given = tuple(map(self._noted, args)), {name: self._noted(x) for name, x in options.items()}
        fixed = bool(tensors) and self._fixed.issuperset(map(self.node_of, tensors))
        if torch.Tag.data_dependent_output in func.tags:
            if fixed:
                return func(*args, **options)
            raise RuntimeError(f"{func} asks for the value of a tensor while operations are recorded")
        made = func(*args, **options)
        node = self.graph.call_function(func, *given)
        if fixed and torch.Tag.nondeterministic_seeded not in func.tags:
            self._fixed.add(node)
        self.note(made, node)
        return made

    def _in_parts(self, func: Any, tensors: Sequence[Tensor], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """The result of what stands for an operation; NotImplemented where nothing does."""
        made = NotImplemented
        if func in self._decompositions:
            made = self._decompositions[func](*args, **options)
        return decomposed(func, tensors, args, options) if made is NotImplemented else made

    def _noted(self, x: Any) -> Any:
        """An argument with nodes in the place of tensors."""
        if isinstance(x, (tuple, list)):
            return [self._noted(part) for part in cast("Sequence[Any]", x)]
        return self.node_of(x) if isinstance(x, torch.Tensor) else x


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among arguments and in lists of them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors_in(cast("Sequence[Any]", x))


def _same_value(node: Node) -> Node | None:
    """The operand, or an operand's operand, that can take a node's place; None where there is none."""
    if node.target is _aten.transpose.int:
        first = cast("Node", node.args[0])
        twice = first.target is _aten.transpose.int and _swapped(first) == _swapped(node)
        return cast("Node", first.args[0]) if twice else None
    return cast("Node", node.args[0]) if _changes_nothing(node) else None


def _swapped(node: Node) -> set[Any]:
    """The dimensions that a transpose swaps."""
    dims = len(_form(node)[0])
    return {cast("int", dim) % dims for dim in node.args[1:]}


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
    shape, dtype, strides, _ = given
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


def _compute_constants(module: GraphModule) -> None:
    """Compute now what depends on the values of no input."""
    for node in list(module.graph.nodes):
        sources = node.all_input_nodes
        if node.op != "call_function" or "form" not in node.meta or math.prod(_form(node)[0]) > _MOST_KEPT:
            continue
        if node.target in _FILLED:
            shape, dtype, strides, device = _form(node)
            made = torch.empty_strided(shape, strides, dtype=dtype, device=device).fill_(_FILLED[node.target])
        elif all(one.op == "get_attr" for one in sources):
            values = {one: getattr(module, cast("str", one.target)) for one in sources}
            args, options = map_arg((node.args, node.kwargs), values.__getitem__)
            made = node.target(*args, **options)
        else:
            continue
        name = f"computed_{node.name}"
        setattr(module, name, made)
        with module.graph.inserting_before(node):
            constant = module.graph.create_node("get_attr", name)
        constant.meta = node.meta
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


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


def _call_quickly(node: Node) -> None:
    """Let an operation be called by the public function of its name."""
    name = str(node.target).split(".")[1] if hasattr(node.target, "overloadpacket") else ""
    if not name or not _tensors_are_tensors(name, node):
        return
    node.kwargs = {key: x for key, x in node.kwargs.items() if key not in _DEFAULTS or x != _DEFAULTS[key]}
    if node.target in _VIEWS:
        name = "expand" if node.target is _aten.expand.default else "view"
        node.op, node.target, node.args = "call_method", name, (node.args[0], *cast("Sequence[Any]", node.args[1]))
    elif node.target is _aten.linalg_vector_norm.default:
        node.target = torch.linalg.vector_norm
    elif name == "_to_copy" and node.kwargs.keys() <= {"dtype", "device", "memory_format"}:
        node.target, node.kwargs = torch.Tensor.to, {**node.kwargs, "copy": True}
    elif name in _PUBLIC_FUNCTIONS.split():
        node.target = getattr(torch, name, None) or getattr(torch.Tensor, name)


def _tensors_are_tensors(name: str, node: Node) -> bool:
    """Whether no number stands for a tensor, which operations allow; functions do as a second operand of arithmetic."""
    kinds = [str(one.type) for one in operator_schema(node.target).arguments]
    pairs = enumerate(zip(kinds, node.args, strict=False))
    numbers = [place for place, (kind, x) in pairs if kind == "Tensor" and not isinstance(x, Node)]
    return not numbers or (numbers == [1] and name.rstrip("_") in ("add", "sub", "mul", "div"))
