"""Programs of one layer each, as LBANN's users test layers: the expected value comes from NumPy in float64.

The data are the samples of a Python module in the same folder. What a layer reads is the sum of the data and of zero
weights, so that gradients go to its inputs as well; the objective is the sum of the squares of what it gives. Metric
and gradients are checked by the driver itself, and a caller sees its exit code alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

import descend
from descend.callbacks import CheckGradients, CheckMetric
from descend.data import DataReader, Reader
from descend.data.description import PythonDataReader
from descend.experiment import save_prototext
from descend.graph import check

EPS = float(np.finfo(np.float32).eps)
FILE = "experiment.prototext"
MODULE = "samples_of_a_program"

_SAMPLES = """\
import numpy as np
data = np.load("data.npy")
def get_sample(index): return data[index]
def num_samples(): return len(data)
def sample_dims(): return (data.shape[1],)
"""


class Program(NamedTuple):
    """One layer, its inputs, its weights and what it gives.

    Attributes:
        layer: Makes the layer of its parents.
        xs: Inputs (samples, *shape).
        smooth: Which of them have a gradient.
        expression: NumPy's expression of (*inputs, *weights), (samples, *shape).
        training: The expression holds in training; else in evaluation.
        samples: How many there are, where there are no inputs.
    """

    layer: object
    xs: tuple
    smooth: tuple
    expression: object
    training: bool = False
    samples: int = 2


def of_row(row) -> Program:
    """The program of a row of `tests/lower/test_every_kind.py`."""
    kind = getattr(descend, row.kind)
    xs = tuple(np.asarray(x.detach().numpy()) for x in row.xs)
    return Program(
        lambda *parents: kind(*parents, name="layer", **row.fields),
        xs,
        row.smooth if xs else (),
        row.expression,
        row.whole and not row.evaluation,
        row.samples,
    )


def of_operator(op, expression, xs) -> Program:
    """The program of a row of `tests/lower/test_operators.py`."""
    arrays = tuple(np.asarray(x.detach().numpy()) for x in xs)
    return Program(
        lambda *parents: descend.OperatorLayer(*parents, ops=[op], name="layer"),
        arrays,
        tuple(range(len(xs))),
        expression,
    )


def write(program: Program, folder: Path, shift: float = 0.0) -> None:
    """Write the files of a program.

    Args:
        program: What it computes.
        folder: Where they go.
        shift: How many tolerances too high the driver expects the value to be.
    """
    xs = [x.astype(np.float32) for x in program.xs]
    count = len(xs[0]) if xs else program.samples
    rows = [x.reshape(count, -1) for x in xs] or [np.zeros((count, 1), np.float32)]
    np.save(folder / "data.npy", np.concatenate(rows, axis=1))
    (folder / f"{MODULE}.py").write_text(_SAMPLES)
    parents = _inputs([x.shape[1:] for x in xs], program.smooth)
    layer = program.layer(*parents)
    weights = _weights(layer, sum(row.shape[1] for row in rows))
    given = [x.astype(np.float64) for x in xs] + [value.astype(np.float64) for value in weights]
    outputs = np.asarray(program.expression(*given), np.float64)
    value = float((outputs.reshape(count, -1) ** 2).sum(1).mean())
    tolerance = 8 * EPS * max(abs(value), 1e-3)
    bound = value + shift * tolerance
    size = descend.L2Norm2(layer, name="size")
    metric = descend.Metric(size, name="size")
    callbacks = [
        CheckMetric(
            metric="size",
            lower_bound=bound - tolerance,
            upper_bound=bound + tolerance,
            error_on_failure=True,
            execution_modes="train" if program.training else "test",
        ),
        CheckGradients(error_on_failure=True),
    ]
    layers = [size, *([] if parents else [descend.Input(data_field="samples", name="unread")])]
    model = descend.Model(
        int(program.training), layers, objective_function=size, metrics=[metric], callbacks=callbacks, name="model0"
    )
    _save(folder, model, count)


def write_together(programs: Mapping[str, Program], folder: Path, shift: float, error: bool) -> None:
    """Write one experiment with many programs of equally many samples, each with a metric of its name.

    Args:
        programs: By name; all of them hold in training, or all in evaluation.
        folder: Where the files go.
        shift: How many tolerances too high the driver expects each value to be.
        error: Whether a value that is out of its bounds ends the run, or is a warning.
    """
    every = [x.astype(np.float32) for program in programs.values() for x in program.xs]
    count = len(every[0])
    rows = [x.reshape(count, -1) for x in every]
    np.save(folder / "data.npy", np.concatenate(rows, axis=1))
    (folder / f"{MODULE}.py").write_text(_SAMPLES)
    ends = np.cumsum([0, *(row.shape[1] for row in rows)]).tolist()
    cut = descend.Slice(descend.Input(data_field="samples", name="data"), slice_points=ends, name="pieces")
    pieces = iter([descend.Reshape(cut, dims=list(x.shape[1:]), name=f"x{i}") for i, x in enumerate(every)])
    training = next(iter(programs.values())).training
    metrics, callbacks = [], []
    for name, program in programs.items():
        layer = program.layer(*(next(pieces) for _ in program.xs))
        layer.name = f"{name}_layer"
        weights = _weights(layer, ends[-1])
        for number, given in enumerate(layer.weights):
            given.name, given.optimizer = f"{name}_own{number}", descend.NoOptimizer()
        size = descend.L2Norm2(layer, name=f"{name}_size")
        values = [value.astype(np.float64) for value in (*(x.astype(np.float32) for x in program.xs), *weights)]
        outputs = np.asarray(program.expression(*values), np.float64)
        value = float((outputs.reshape(count, -1) ** 2).sum(1).mean())
        tolerance = 8 * EPS * max(abs(value), 1e-3)
        bound = value + shift * tolerance
        metrics.append(descend.Metric(size, name=name))
        callbacks.append(
            CheckMetric(
                metric=name,
                lower_bound=bound - tolerance,
                upper_bound=bound + tolerance,
                error_on_failure=error,
                execution_modes="train" if training else "test",
            )
        )
    layers = [metric.layer for metric in metrics]
    model = descend.Model(int(training), layers, metrics=metrics, callbacks=callbacks, name="model0")
    _save(folder, model, count)


def _save(folder: Path, model: descend.Model, count: int) -> None:
    """Write the text of an experiment whose mini-batch is all `count` samples."""
    save_prototext(
        folder / FILE,
        trainer=descend.Trainer(mini_batch_size=count, random_seed=1),
        model=model,
        data_reader=DataReader([_reader(role) for role in ("train", "test")]),
        optimizer=descend.NoOptimizer(),
    )


def _reader(role: str) -> Reader:
    functions = {f"{name}_function": function for name, function in _FUNCTIONS.items()}
    python = PythonDataReader(module=MODULE, module_dir=".", **functions)
    return Reader(name="python", role=role, fraction_of_data_to_use=1.0, python=python)


_FUNCTIONS = {"sample": "get_sample", "num_samples": "num_samples", "sample_dims": "sample_dims"}


def _inputs(shapes, smooth) -> list:
    """The parents of the layer: pieces of the sample in their shapes, plus zero weights where there is a gradient."""
    if not shapes:
        return []
    sample = descend.Input(data_field="samples", name="data")
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
    cut = descend.Slice(sample, slice_points=ends, name="pieces") if len(shapes) > 1 else sample
    found = []
    for place, shape in enumerate(shapes):
        piece = descend.Reshape(cut, dims=list(shape), name=f"x{place}")
        if place in smooth:
            zeros = descend.Weights(optimizer=descend.SGD(), name=f"zeros{place}")
            piece = descend.Sum(piece, descend.WeightsLayer(weights=zeros, dims=list(shape)), name=f"parent{place}")
        found.append(piece)
    return found


def _weights(layer, size: int) -> list:
    """Give the layer weights of known values, and return these."""
    plan = check(descend.Model(layers=[layer]), {"samples": (size,)})
    names = next(planned.weights for planned in plan.layers if planned.name == layer.name)
    if layer.weights:
        return []
    values = []
    for place, name in enumerate(names):
        planned = plan.weights[name]
        value = np.random.default_rng(50 + place).uniform(-1, 1, planned.shape).astype(np.float32)
        value = np.abs(value) + 0.5 if name.endswith("variance") else value
        order = "F" if planned.column_major else "C"
        start = descend.ValueInitializer(values=value.flatten(order=order).tolist())
        rule = descend.SGD() if planned.trainable else descend.NoOptimizer()
        layer.add_weights(descend.Weights(start, optimizer=rule, name=f"own{place}"))
        values.append(value.astype(np.float32))
    return values
