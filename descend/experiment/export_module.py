"""Export a model as a plain torch module, and load weights into a module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, StorageError, nearest
from descend.experiment.inspect.memory_estimate import beyond_memory, machine_bytes
from descend.experiment.saved_weights import evaluated_weights
from descend.files import has_file
from descend.graph import Layer, TorchModel, check, prediction_outputs
from descend.lower import PlainModule
from descend.runtime import generator, newest_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph import Model, Plan, Shape

__all__ = ["plain_module", "planned_for_export", "set_weights"]


def plain_module(
    model: Model,
    weights: Any = None,
    fields: Mapping[str, Shape] | None = None,
    outputs: str | Layer | Iterable[str | Layer] | None = None,
    seed: int = 0,
) -> torch.nn.Module:
    """See `descend.Model.to_torch`."""
    if isinstance(model, TorchModel):
        if weights is not None:
            set_weights(model.module, weights)
        return model.module
    plan, wanted = planned_for_export(model, fields, outputs)

    def draw(name: str) -> torch.Generator:
        return generator(seed, "weights", name)

    module = PlainModule(plan, draw, wanted, model.channels_last)
    trained = weights if weights is not None else model.trained and model.trained.weights
    if trained is not None:
        set_weights(module, trained)
    return module


def planned_for_export(
    model: Model, fields: Mapping[str, Shape] | None, outputs: str | Layer | Iterable[str | Layer] | None
) -> tuple[Plan, tuple[str, ...]]:
    """The checked graph, and the names of the layers whose outputs the module returns.

    Raises:
        ConfigurationError: the shapes of its fields are not known, or its weights do not fit into memory.
        GraphError: the graph is inconsistent.
    """
    known = fields if fields is not None else model.trained and model.trained.fields
    if known is None:
        inputs = dict.fromkeys(layer.data_field for layer in model.layers if hasattr(layer, "data_field"))  # pyright: ignore[reportAttributeAccessIssue]
        shapes = ", ".join(f"'{name}': (...)" for name in inputs)
        raise ConfigurationError(
            f"model '{model.name}' has not been run, so the shapes of its data are unknown: pass fields={{{shapes}}}, "
            "the shape of one sample of each"
        )
    plan = check(model, {name: tuple(shape) for name, shape in known.items()})
    beyond_memory(plan, False, machine_bytes())
    if outputs is None:
        return plan, prediction_outputs(plan)
    each = [outputs] if isinstance(outputs, (str, Layer)) else outputs
    return plan, tuple(one if isinstance(one, str) else one.name for one in each)


def set_weights(module: torch.nn.Module, weights: Any) -> None:
    """Load the weights of a run into a module.

    Args:
        module: The module.
        weights: A Result, tensors by name, a run directory (its newest checkpoint) or a checkpoint.

    Raises:
        ConfigurationError: a name or a shape differs; all differences are listed and nothing is changed.
        StorageError: there is no such checkpoint, or it is damaged.
    """
    given = _tensors(weights)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    problems = [
        f"the module's weights '{name}' are {tuple(tensor.shape)}, and "
        + (f"those given are {tuple(given[name].shape)}" if name in given else f"none are given{nearest(name, given)}")
        for name, tensor in own.items()
        if name not in given or given[name].shape != tensor.shape
    ]
    if problems:
        raise ConfigurationError(problems)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(given[name]))


def _tensors(weights: Any) -> Mapping[str, Any]:
    if hasattr(weights, "weights"):
        return weights.weights
    if not isinstance(weights, (str, Path)):
        return weights
    folder = Path(weights)
    checkpoint = folder if has_file(folder / "manifest.json") else newest_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        raise StorageError(f"{folder} is neither a checkpoint nor a run directory with a checkpoint")
    return evaluated_weights(checkpoint)
