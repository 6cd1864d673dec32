"""ONNX: models out, for other programs to run, and in, to be trained on.

    descend.onnx.save(model, "lenet.onnx")          after a run, with the trained weights
    model = descend.onnx.load("resnet.onnx")        a graph like any other, its weights those of the file

Needs the library onnx: pip install onnx.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import MissingExtra, Unsupported, missing_library

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from descend.graph import Layer, Model, Shape

__all__ = ["load", "save"]

_MAX_BYTES = 2_000_000_000  # Protobuf's own limit is 2 GiB for all of a file


def save(
    model: Model,
    path: str | os.PathLike[str],
    weights: Any = None,
    *,
    fields: Mapping[str, Shape] | None = None,
    outputs: str | Layer | Iterable[str | Layer] | None = None,
) -> Path:
    """Write a model as it acts in evaluation: operator set 20, float32, any number of samples.

    Inputs are named like the fields of the data, and nodes and the values that they give like the layers.

    Args:
        model: A graph model.
        path: The file; replaced if it exists.
        weights: As in `descend.Model.to_torch`: by default those of the last run.
        fields: Shape for each sample of every field that the Inputs read; known after a run.
        outputs: Layers whose outputs the file gives; by default the predictions that the objective compares.

    Raises:
        Unsupported: layers that have no form in ONNX here, each by its name.
        ConfigurationError: as `descend.Model.to_torch`.
        MissingExtra: onnx is not installed.
        StorageError: the file cannot be written.
    """
    _require()
    from descend.experiment.saved_weights import plain_module, planned_for_export
    from descend.graph import TorchModel
    from descend.onnx.export import export
    from descend.runtime.run_directory import write_beside

    if isinstance(model, TorchModel):
        raise Unsupported(
            f"model '{model.name}' is a torch module, whose layers are not known here: give model.module to "
            "torch.onnx.export"
        )
    plan, wanted = planned_for_export(model, fields, outputs)
    module = plain_module(model, weights, fields, wanted)
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in values.items()}
    if sum(array.nbytes for array in arrays.values()) > _MAX_BYTES:
        raise Unsupported(f"model '{model.name}' has more than 2 GB of weights, which one ONNX file cannot hold")
    write_beside(Path(path), export(plan, wanted, arrays).SerializeToString())
    return Path(path)


def load(path: str | os.PathLike[str], fields: Mapping[str, Shape] | None = None) -> Model:
    """A model of an ONNX file: its layers, and weights that start as they are in the file.

    The inputs of the file become Input layers that read fields of the same names; the first dimension of each is the
    number of samples. The model has no objective yet: `model.layers` has the outputs, under the names of the file.

        model = descend.onnx.load("net.onnx")
        logits = next(layer for layer in model.layers if layer.name == "logits")

    Args:
        path: The file. Values outside it are read from its own folder alone.
        fields: Shape for each sample of inputs whose shape the file leaves open.

    Raises:
        Unsupported: nodes that have no layer here, each by its name and operator.
        StorageError: there is no such file, or it is damaged.
        MissingExtra: onnx is not installed.
    """
    _require()
    from descend.onnx.file_importer import load as load_file

    return load_file(Path(path), fields or {})


def _require() -> None:
    if find_spec("onnx") is None:
        raise MissingExtra(missing_library("ONNX", "onnx"))
