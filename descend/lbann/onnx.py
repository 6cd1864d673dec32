"""ONNX files as models of scripts, and models of scripts as ONNX files; see `descend.onnx`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import descend.onnx
from descend.experiment.text import classes
from descend.graph import text
from descend.lbann.core.model import Model

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from descend.graph import Layer, Shape

__all__ = ["load", "save"]


def load(path: str | os.PathLike[str], fields: Mapping[str, Shape] | None = None, epochs: int = 0) -> Model:
    """The model of an ONNX file; its inputs read fields of their names, and its weights start as they are there.

    Args:
        path: The file.
        fields: Shape for each sample of inputs whose shape the file leaves open.
        epochs: Passes over the data.

    Raises:
        Unsupported: nodes that have no layer here, each by its name and operator.
        StorageError: there is no such file, or it is damaged.
        MissingExtra: onnx is not installed.
    """
    loaded = descend.onnx.load(path, fields)
    made = Model(epochs, loaded.layers)
    made.trained = loaded.trained
    return made


def save(
    model: Model,
    path: str | os.PathLike[str],
    weights: Any = None,
    *,
    fields: Mapping[str, Shape] | None = None,
    outputs: str | Layer | Iterable[str | Layer] | None = None,
) -> Path:
    """Write a model as it acts in evaluation.

    Args:
        model: The model.
        path: The file; replaced if it exists.
        weights: Tensors by name, the run directory `descend_run` that the driver made in the work directory, or a
            checkpoint of it; first values without any.
        fields: Shape for each sample of every field that the Inputs read.
        outputs: Layers whose outputs the file gives, or their names; by default what the objective compares.

    Raises:
        Unsupported: layers that have no form in ONNX here, each by its name.
        ConfigurationError: fields are missing, or the weights are those of another model.
        MissingExtra: onnx is not installed.
        StorageError: the file cannot be written.
    """
    described = text.to_value(model.export_proto(), classes())
    names = None if outputs is None else [_name(one) for one in _each(outputs)]
    return descend.onnx.save(described, path, weights, fields=fields, outputs=names)


def _each(outputs: str | Layer | Iterable[str | Layer]) -> Iterable[str | Layer]:
    return outputs if not isinstance(outputs, str) and hasattr(outputs, "__iter__") else [outputs]  # pyright: ignore[reportReturnType]  # one layer


def _name(output: str | Layer) -> str:
    return output if isinstance(output, str) else output.name
