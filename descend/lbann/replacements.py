"""Own layers for torch modules and functions within `lbann.torch.compile`: `register_module`, `register_function`.

A module that uses registered ones is cut at them by torch.fx. Each registered one becomes what its function makes of
the layers before it, and what lies between is compiled as any other module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from descend.errors import ConfigurationError, Unsupported
from descend.graph import Input, Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Replacement = Callable[..., Layer]

__all__ = ["compile_in_parts", "part_inputs", "register_function", "register_module"]

_PART_INPUT = "input_"

_REPLACEMENTS: dict[type[nn.Module], Replacement] = {}
_FUNCTIONS: dict[Callable[..., Any], Replacement] = {}


def register_module(module_class: type[nn.Module]) -> Callable[[Replacement], Replacement]:
    """Let a function make the layers of a class of modules wherever `compile` meets one.

        @lbann.torch.register_module(torch.nn.Hardtanh)
        def hardtanh(module, x):
            return lbann.Clamp(x, min=module.min_val, max=module.max_val)

    Args:
        module_class: A subclass of torch.nn.Module; of its subclasses each is registered by itself.

    Returns:
        A decorator of the function, which is called with the module and a layer for each tensor that the module is
        called with, and returns the layer of its result.

    Raises:
        ConfigurationError: it is no class of modules.
    """
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
        raise ConfigurationError(f"register_module needs a class such as torch.nn.Hardtanh, got {module_class!r}")

    def register(function: Replacement) -> Replacement:
        _REPLACEMENTS[module_class] = function
        return function

    return register


def register_function(target: Callable[..., Any]) -> Callable[[Replacement], Replacement]:
    """Let a function make the layers of calls of another function wherever `compile` meets one.

        @lbann.torch.register_function(torch.nn.functional.hardtanh)
        def hardtanh(x, min_val=-1.0, max_val=1.0, inplace=False):
            return lbann.Clamp(x, min=min_val, max=max_val)

    Args:
        target: A function of torch, such as torch.erf, or one of the file in which the module's class is. Methods of
            tensors, as in x.erf(), are other functions.

    Returns:
        A decorator of the function, which is called with the arguments of `target`, a layer in place of each tensor,
        and returns the layer of its result.

    Raises:
        ConfigurationError: it is no function.
    """
    if not callable(target) or isinstance(target, type):
        raise ConfigurationError(f"register_function needs a function such as torch.erf, got {target!r}")

    def register(function: Replacement) -> Replacement:
        _FUNCTIONS[target] = function
        return function

    return register


def part_inputs(samples: Sequence[Any]) -> dict[str, Any]:
    """The inputs of a part by the names that they have in its layers."""
    return {f"{_PART_INPUT}{i}": sample for i, sample in enumerate(samples)}


class _Tracer(torch.fx.Tracer):
    """Looks into neither registered modules nor registered functions."""

    def __init__(self) -> None:
        named: Any = tuple(target for target in _FUNCTIONS if hasattr(target, "__globals__"))
        super().__init__(autowrap_functions=named)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in _REPLACEMENTS or super().is_leaf_module(m, module_qualified_name)


def compile_in_parts(
    module: nn.Module | Callable[..., Any],
    inputs: Mapping[str, Any],
    compile_part: Callable[[nn.Module, list[Any]], list[Layer]],
) -> list[Layer] | None:
    """The layers of a module or function that uses registered ones; None where it uses none.

    Args:
        module: The module or the function.
        inputs: Samples by name, in the order of its parameters.
        compile_part: Makes the layers of a part without registered modules, of it and of samples of its inputs.

    Raises:
        Unsupported: torch.fx cannot follow its code, or a part cannot be compiled.
        ConfigurationError: a function returns something else than a layer.
    """
    from torch.fx.passes.split_module import split_module

    of_module = module.modules() if isinstance(module, nn.Module) else ()
    certain = any(type(part) in _REPLACEMENTS for part in of_module)
    if not certain and not _FUNCTIONS:
        return None
    outer = nn.Sequential(module) if isinstance(module, nn.Module) and type(module) in _REPLACEMENTS else module
    try:
        tracer = _Tracer()
        graph = tracer.trace(outer, {n: v for n, v in inputs.items() if not isinstance(v, torch.Tensor)} or None)
        whole = torch.fx.GraphModule(tracer.root, graph)
    except Exception as error:  # torch raises many kinds here, also of its own
        if not certain:
            return None  # whether it calls a registered function is not known; it is compiled as if it did not
        raise Unsupported(
            f"lbann.torch.compile: torch.fx cannot follow this, to put registered modules into it: {error}"
        ) from error
    if not any(_is_registered(whole, node) for node in whole.graph.nodes):
        return None
    part, parts = 0, dict[str, int]()
    for node in whole.graph.nodes:
        own = _is_registered(whole, node)
        part += own
        parts[node.name] = part
        part += own
    split = split_module(whole, whole, lambda node: parts[node.name])
    return _Assembly(split, inputs, compile_part).layers()


def _is_registered(whole: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    return _replacement(whole, node) is not None


def _replacement(whole: torch.fx.GraphModule, node: torch.fx.Node) -> Replacement | None:
    """What makes the layers of a node, if its module or function is registered."""
    if node.op == "call_function":
        target: Any = node.target
        return _FUNCTIONS.get(target)
    if node.op != "call_module":
        return None
    module = whole.get_submodule(str(node.target))
    made = _REPLACEMENTS.get(type(module))
    return None if made is None else lambda *args, **options: made(module, *args, **options)


class _Assembly:
    """Runs the parts of a module one after the other, on samples and on layers at once."""

    def __init__(
        self,
        split: torch.fx.GraphModule,
        inputs: Mapping[str, Any],
        compile_part: Callable[[nn.Module, list[Any]], list[Layer]],
    ) -> None:
        self._split, self._inputs, self._compile = split, list(inputs.items()), compile_part
        self._all: list[Layer] = []

    def layers(self) -> list[Layer]:
        """All layers, parents before their children."""
        values: dict[str, Any] = {}  # of each node the sample, and the layer of it; a tuple of such pairs of several
        given = iter(self._inputs)
        with torch.no_grad():
            for node in self._split.graph.nodes:
                if node.op == "placeholder":
                    name, sample = next(given)
                    made = Input(data_field=name, name=name)
                    self._all.append(made)
                    values[node.name] = (sample, made)
                elif node.op == "call_module":
                    arguments = [values[one.name] for one in node.args]
                    values[node.name] = self._called(
                        str(node.target), self._split.get_submodule(str(node.target)), arguments
                    )
                elif node.op == "call_function":  # operator.getitem, of a part with several results
                    values[node.name] = values[node.args[0].name][node.args[1]]
        return self._all

    def _called(self, name: str, part: Any, arguments: list[Any]) -> Any:
        samples, parents = [sample for sample, _ in arguments], [layer for _, layer in arguments]
        results = part(*samples)
        own = [(node, found) for node in part.graph.nodes if (found := _replacement(part, node)) is not None]
        if own:
            return results, self._replaced(*own[0], part, parents)
        made = self._compile(part, samples)
        fields = [layer for layer in made if isinstance(layer, Input)]
        for field in fields:
            parent = parents[int(str(field.data_field).removeprefix(_PART_INPUT))]
            for child in (one for one in field.children if isinstance(one, Layer)):
                child.parents = [parent if one is field else one for one in child.parents]
                parent.children.append(child)
        kept = [layer for layer in made if layer not in fields]
        ends = {layer.name.removesuffix("_output"): layer for layer in kept if not layer.children}
        for layer in kept:
            layer.name = f"{name}_{layer.name}"
        self._all += kept
        if isinstance(results, tuple):
            return [(result, ends[f"output_{i}"]) for i, result in enumerate(results)]
        return results, ends["output"]

    def _replaced(self, call: torch.fx.Node, function: Replacement, part: Any, parents: list[Layer]) -> Layer:
        names = [node.name for node in part.graph.nodes if node.op == "placeholder"]
        layers = dict(zip(names, parents, strict=True))
        known = set(map(id, _above(parents)))
        of_node: Any = lambda node: layers[node.name]  # noqa: E731  # torch.fx takes any value in place of a node
        args: Any = torch.fx.map_arg(call.args, of_node)
        options: Any = torch.fx.map_arg(call.kwargs, of_node)
        made: Any = function(*args, **options)
        if not isinstance(made, Layer):
            target = type(part.get_submodule(call.target)) if call.op == "call_module" else call.target
            name = getattr(target, "__name__", str(target))
            raise ConfigurationError(
                f"lbann.torch.compile: what is registered for {name} must return a layer, got {made!r}"
            )
        self._all += [layer for layer in _above([made]) if id(layer) not in known]
        return made


def _above(layers: list[Layer]) -> list[Layer]:
    """These layers and all that they are computed from, parents before their children."""
    found: dict[int, Layer] = {}

    def visit(layer: Layer) -> None:
        if id(layer) not in found:
            for parent in layer.parents:
                if isinstance(parent, Layer):
                    visit(parent)
            found[id(layer)] = layer

    for layer in layers:
        visit(layer)
    return list(found.values())
