"""Own layers for torch modules within `lbann.torch.compile`: `register_module`.

A module that holds registered ones is cut at them by torch.fx. Each registered one becomes what its function makes of
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

__all__ = ["compile_in_parts", "part_inputs", "register_module", "registered_parts"]

_PART_INPUT = "input_"

_REPLACEMENTS: dict[type[nn.Module], Replacement] = {}


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


def part_inputs(samples: Sequence[Any]) -> dict[str, Any]:
    """The inputs of a part by the names that they have in its layers."""
    return {f"{_PART_INPUT}{i}": sample for i, sample in enumerate(samples)}


def registered_parts(module: nn.Module) -> bool:
    """Whether a module is registered, or one of those in it."""
    return any(type(part) in _REPLACEMENTS for part in module.modules())


class _Tracer(torch.fx.Tracer):
    """Does not look into registered modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in _REPLACEMENTS or super().is_leaf_module(m, module_qualified_name)


def compile_in_parts(
    module: nn.Module, inputs: Mapping[str, Any], compile_part: Callable[[nn.Module, list[Any]], list[Layer]]
) -> list[Layer]:
    """The layers of a module that holds registered ones.

    Args:
        module: The module.
        inputs: Samples by name, in the order of its parameters.
        compile_part: Makes the layers of a part without registered modules, of it and of samples of its inputs.

    Raises:
        Unsupported: torch.fx cannot follow its code, or a part cannot be compiled.
        ConfigurationError: a function returns something else than a layer.
    """
    from torch.fx.passes.split_module import split_module

    outer = module if type(module) not in _REPLACEMENTS else nn.Sequential(module)
    try:
        tracer = _Tracer()
        graph = tracer.trace(outer, {n: v for n, v in inputs.items() if not isinstance(v, torch.Tensor)} or None)
        whole = torch.fx.GraphModule(tracer.root, graph)
    except Exception as error:  # torch raises many kinds here, also of its own
        raise Unsupported(
            f"lbann.torch.compile: torch.fx cannot follow this, to put registered modules into it: {error}"
        ) from error
    part, parts = 0, dict[str, int]()
    for node in whole.graph.nodes:
        own = _is_registered(whole, node)
        part += own
        parts[node.name] = part
        part += own
    split = split_module(whole, outer, lambda node: parts[node.name])
    return _Assembly(split, inputs, compile_part).layers()


def _is_registered(whole: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    return node.op == "call_module" and type(whole.get_submodule(str(node.target))) in _REPLACEMENTS


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
        call = next((node for node in part.graph.nodes if node.op == "call_module"), None)
        if call is not None and type(own := part.get_submodule(str(call.target))) in _REPLACEMENTS:
            return results, self._replaced(own, call, part, parents)
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

    def _replaced(self, module: nn.Module, call: torch.fx.Node, part: Any, parents: list[Layer]) -> Layer:
        names = [node.name for node in part.graph.nodes if node.op == "placeholder"]
        layers = dict(zip(names, parents, strict=True))
        known = set(map(id, _above(parents)))
        of_node: Any = lambda node: layers[node.name]  # noqa: E731  # torch.fx takes any value in place of a node
        args: Any = torch.fx.map_arg(call.args, of_node)
        options: Any = torch.fx.map_arg(call.kwargs, of_node)
        made: Any = _REPLACEMENTS[type(module)](module, *args, **options)
        if not isinstance(made, Layer):
            raise ConfigurationError(
                f"lbann.torch.compile: what is registered for {type(module).__name__} must return a layer, got {made!r}"
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
