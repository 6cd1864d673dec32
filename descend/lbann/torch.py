"""Torch modules and functions as layers: `lbann.torch.compile`.

They come in through ONNX: torch's own exporter writes a file, and `descend.onnx` makes layers of its nodes. What has no
layer is refused by the name of its node.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import descend.onnx
from descend.errors import ConfigurationError, Unsupported, warn
from descend.graph import Identity, Input, Layer, NoOptimizer, Weights
from descend.lbann.replacements import compile_in_parts, part_inputs, register_function, register_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["compile", "lazy_compile", "register_function", "register_module"]

# What acts in another way in training than in evaluation.
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_MODES = (*_DROPOUTS, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def compile(  # noqa: A001  # LBANN's name
    model: nn.Module | Callable[..., Any],
    *args: Any,
    trace: bool = False,
    with_weights: bool = True,
    **kwargs: Any,
) -> list[Layer]:
    """The layers that compute what a torch module or a function of tensors does.

        graph = lbann.torch.compile(module, x=torch.randn(8, 3, 32, 32))

    Args:
        model: The module or function. It is taken as it acts in evaluation: dropout is left out, and batch
            normalization is that of its running statistics.
        args: Samples of its inputs; the first dimension of a tensor is the mini-batch.
        trace: Whether it is run once to see what it does, in place of torch.export's analysis of its code.
        with_weights: Whether weights start with the module's numbers, or as the layers have it.
        kwargs: Samples of its inputs by name.

    Returns:
        All layers, parents before their children; those without children are the outputs. The Input layers read
        fields of the inputs' names; a single one reads "samples".

    Raises:
        Unsupported: torch cannot export it, or nodes have no layer here, each by its name and operator.
        ConfigurationError: the samples do not fit its parameters.
        MissingExtra: onnx is not installed.
    """
    module = model if isinstance(model, nn.Module) else _OfFunction(model)
    inputs = _bound(model.forward if isinstance(model, nn.Module) else model, args, kwargs)
    traced = trace or find_spec("onnxscript") is None
    layers = compile_in_parts(model, inputs, lambda part, samples: _layers(part, part_inputs(samples), traced))
    if layers is None:
        layers = _layers(module, inputs, traced)
    _name_fields(layers)
    if not with_weights:
        for layer in layers:
            if all(isinstance(one, Weights) and not isinstance(one.optimizer, NoOptimizer) for one in layer.weights):
                layer.weights = []
    return layers


def _layers(module: nn.Module, inputs: Mapping[str, Any], traced: bool) -> list[Layer]:
    """The layers of a module, through a file; each output is a layer without children."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.onnx"
        outputs = _export(module, inputs, path, traced)
        layers = descend.onnx.load(path).layers
    return layers + [Identity(one, name=f"{one.name}_output") for one in layers if one.name in outputs and one.children]


def lazy_compile(model: nn.Module | Callable[..., Any], **options: Any) -> Callable[..., list[Layer]]:
    """A function of samples of the inputs that gives the layers; see `compile`. They are made in the first call."""
    made: list[list[Layer]] = []

    def compiled(*args: Any, **kwargs: Any) -> list[Layer]:
        if not made:
            made.append(compile(model, *args, **options, **kwargs))
        return made[0]

    return compiled


class _OfFunction(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _bound(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The samples by the names of the parameters, in their order."""
    signature = inspect.signature(function)
    if any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        raise Unsupported("lbann.torch.compile: parameters like **kwargs have no names; give the module named ones")
    try:
        found = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ConfigurationError(f"lbann.torch.compile: the samples do not fit{signature}: {error}") from error
    named: dict[str, Any] = {}
    for name, value in found.items():
        several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        named |= {f"{name}_{i}": one for i, one in enumerate(value)} if several else {name: value}
    if not any(isinstance(one, torch.Tensor) for one in named.values()):
        raise ConfigurationError(
            "lbann.torch.compile needs a sample tensor for each input, such as x=torch.randn(8, 3)"
        )
    return named


def _export(module: nn.Module, inputs: Mapping[str, Any], path: Path, traced: bool) -> list[str]:
    """Write the module as ONNX, in evaluation, for any number of samples; returns the names of its outputs."""
    if module.training and any(isinstance(part, _MODES) for part in module.modules()):
        warn(
            "lbann.torch.compile takes modules as they act in evaluation: without dropout, and with the running "
            "statistics of batch normalization; call .eval() to say so"
        )
    # A mini-batch of one sample would be taken for a constant of the code.
    given = {name: _two_or_more(one) for name, one in inputs.items()}
    names = [name for name, one in given.items() if isinstance(one, torch.Tensor)]
    options: dict[str, Any] = {"dynamic_axes": {name: {0: "n"} for name in names}}
    if not traced:
        batch = torch.export.Dim("n", min=1, max=2**31)
        sizes: tuple[Any, ...] = tuple({0: batch} if name in names else None for name in given)
        wrapped = isinstance(module, _OfFunction)  # whose parameter is one, *args
        options = {"dynamic_shapes": (sizes,) if wrapped else sizes, "verbose": False}
    before = module.training
    module.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = module(*given.values())
            outputs = [f"output_{i}" for i in range(len(found))] if isinstance(found, (tuple, list)) else ["output"]
            options |= {"input_names": names, "output_names": outputs}
            torch.onnx.export(module, tuple(given.values()), str(path), dynamo=not traced, **options)
    except Exception as error:  # torch raises many kinds here, also of its own
        raise Unsupported(
            f"lbann.torch.compile: torch cannot export this: {str(error).strip().splitlines()[0]}"
            + ("" if traced else "; trace=True runs it instead of analysing it")
        ) from error
    finally:
        module.train(before)
    return outputs


def _two_or_more(value: Any) -> Any:
    one = isinstance(value, torch.Tensor) and value.ndim and len(value) == 1
    return torch.cat([value, value]) if one else value


def _name_fields(layers: Sequence[Layer]) -> None:
    """Let a single input read the field that readers call "samples"."""
    inputs = [layer for layer in layers if isinstance(layer, Input)]
    if len(inputs) == 1:
        inputs[0].data_field = "samples"
