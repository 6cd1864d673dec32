"""The operations that a function of tensors comes to, recorded as they run.

Torch's `make_fx` records the same and imports torch's compiler first, which takes a second: as long as a short study.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.fx import Graph, GraphModule
from torch.utils.weak import WeakTensorKeyDictionary

from descend.torch_private import decomposed, dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.fx import Node

__all__ = ["TensorForm", "recorded"]

_aten = torch.ops.aten


class TensorForm(NamedTuple):
    """How the values of a node lie in memory.

    Attributes:
        shape: Of the tensor.
        dtype: Of its elements.
        stride: Elements from one index to the next, of each dimension.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]


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
                node.meta["form"] = TensorForm(tuple(value.shape), value.dtype, value.stride())
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
