"""`lbann.evaluate`: the outputs of layers for given inputs, computed by the driver."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, DescendError
from descend.experiment.launcher import job_folder
from descend.graph import Layer, traverse_layer_graph
from descend.lbann.core.callback import CALLBACKS
from descend.lbann.core.messages import new_message
from descend.lbann.core.model import Model
from descend.lbann.core.optimizer import NoOptimizer
from descend.lbann.core.trainer import Trainer
from descend.lbann.core.training_algorithm import BatchedIterativeOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = ["evaluate"]

_MODES = {True: "training", False: "testing"}
_READER = "descend.lbann.contrib.single_tensor_data_reader"


def evaluate(
    model: Model | Layer | Iterable[Layer],
    inputs: NDArray[Any],
    outputs: Layer | Iterable[Layer] | None = None,
    extra_callbacks: Iterable[Any] | None = None,
    training: bool = False,
    **run_kwargs: Any,
) -> NDArray[Any] | tuple[NDArray[Any], ...]:
    """The outputs of layers for given inputs.

    The inputs are the field "samples" of one mini-batch; the model itself is not changed.

    Args:
        model: A model, or layers of one.
        inputs: An array, samples along its first axis.
        outputs: Whose outputs; the layers without children by default.
        extra_callbacks: More callbacks.
        training: Whether layers act as in training; weights stay as they are either way.
        run_kwargs: Arguments of `lbann.run`.

    Returns:
        An array for each of the outputs, in their order, samples along the first axis; one alone without a tuple.

    Raises:
        ConfigurationError: there are no inputs, or no layer without children.
        DescendError: the driver failed; its output says why.
    """
    import numpy as np

    launcher = importlib.import_module("descend.lbann.launcher")
    given = np.asarray(inputs)
    if given.ndim < 1 or not given.size:
        raise ConfigurationError(f"evaluate: inputs have shape {given.shape}; expected samples along the first axis")
    layers = list(traverse_layer_graph(model.layers if isinstance(model, Model) else model))
    wanted = [layer for layer in layers if not layer.children] if outputs is None else _each(outputs)
    if not wanted:
        raise ConfigurationError("evaluate: no layer is without children; name the layers in outputs=[...]")
    options: dict[str, Any] = {"overwrite_script": True, **run_kwargs}
    folder = Path(options.pop("work_dir", None) or job_folder(None, "evaluate", 1, 1)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "data.npy", given)
    dump = CALLBACKS["CallbackDumpOutputs"](
        layers=" ".join(layer.name for layer in wanted),
        execution_modes=_MODES[training],
        directory="outputs",
        format="npy",
    )
    callbacks = [*(model.callbacks if isinstance(model, Model) else ()), *(extra_callbacks or ()), dump]
    kept: dict[str, Any] = {}
    if isinstance(model, Model):
        kept = {"weights": model.weights, "name": model.name, "amp": model.amp}
        kept |= {"objective_function": model.objective_function, "metrics": model.metrics}
    trial = Model(int(training), layers, callbacks=callbacks, **kept)
    algorithm = BatchedIterativeOptimizer("evaluate", num_iterations=1) if training else None
    trainer = Trainer(len(given), training_algo=algorithm)
    status = launcher.run(trainer, trial, _reader(training), NoOptimizer(), work_dir=folder, **options)
    if status:
        raise DescendError(f"evaluate: the driver ended with status {status}; its output is in {folder}/err.log")
    found = tuple(_dumped(folder / "outputs", layer.name) for layer in wanted)
    return found[0] if len(found) == 1 else found


def _each(given: Layer | Iterable[Layer]) -> list[Layer]:
    return [given] if isinstance(given, Layer) else list(given)


def _reader(training: bool) -> Any:
    """The readers of the field "samples"; the same for both roles, as the driver needs training data in either case."""
    readers: Any = new_message("DataReader")
    file = Path(importlib.import_module(_READER).__file__ or "")
    functions: Mapping[str, str] = {
        "sample_function": "get_sample",
        "num_samples_function": "num_samples",
        "sample_dims_function": "sample_dims",
    }
    for role in ("train",) if training else ("train", "test"):
        reader = readers.reader.add(name="python", role=role, shuffle=False, fraction_of_data_to_use=1.0)
        reader.python.module, reader.python.module_dir = file.stem, str(file.parent)
        for name, value in functions.items():
            setattr(reader.python, name, value)
    return readers


def _dumped(folder: Path, name: str) -> NDArray[Any]:
    """The outputs of a layer, mini-batches joined in their order."""
    import numpy as np

    pattern = re.compile(rf"sgd\.\w+\.epoch\.(\d+)\.step\.(\d+)_{re.escape(name)}_output0\.npy")
    steps = {match.groups(): path for path in folder.rglob("*.npy") if (match := pattern.fullmatch(path.name))}
    if not steps:
        raise DescendError(f"evaluate: the driver has written no output of layer '{name}' to {folder}")
    ordered = sorted(steps, key=lambda found: tuple(map(int, found)))
    return np.concatenate([np.load(steps[key]) for key in ordered])
