"""Prints or draws the model: its layers, its graph, its size; and the numbers of samples read."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import MODE_WORDS, at_least, require
from descend.errors import ConfigurationError
from descend.graph.fields import described_openly
from descend.train import Callback, Mode
from descend.train.layers import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["ComputeModelSize", "DispIOStats", "DumpModelGraph", "PrintModelDescription"]


@described_openly
class PrintModelDescription(Callback):
    """Prints the layers with kinds, parents and shapes, and the weights; for a plain module what torch prints of it.

    Runs:  after_setup.
    Reads: the description. Changes nothing.
    Costs: a line a layer.
    """

    message: ClassVar[str] = "Callback.CallbackPrintModelDescription"
    reads_weights = False

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        plan = plan_of(run.module)
        say(str(run.module) if plan is None else "\n".join(_description(run, plan)))


def _description(run: RunView, plan: Any) -> Iterable[str]:
    yield f'model "{run.name}"'
    for layer in plan.layers:
        parents = ", ".join(layer.parents) or "data"
        shapes = " and ".join(_shape(shape) for shape in layer.output_shapes)
        yield f"  layer {layer.name} ({type(layer.layer).__name__}): {parents} -> {shapes}"
    for weights in plan.weights.values():
        yield f"  weights {weights.name}: {_shape(weights.shape)}{'' if weights.trainable else ', not trained'}"
    yield f"  {sum(prod(w.shape) for w in plan.weights.values() if w.trainable):,} trainable parameters"


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "1"


@described_openly
class DumpModelGraph(Callback):
    """Writes the graph for Graphviz: `dot -Tpdf model.dot`.

    Files: BASENAME, model.dot without one.
    Runs:  after_setup.
    Reads: the description. Changes nothing.
    Costs: a small file.

    Args:
        basename: The file.
        print: Print the text too.

    Raises:
        ConfigurationError: at the start, for a module that is not a graph.
    """

    message: ClassVar[str] = "Callback.CallbackDumpModelGraph"
    reads_weights = False

    basename: str = ""
    print: bool = False

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`; the file is written when the run directory is there."""
        if plan_of(run.module) is None:
            raise ConfigurationError("DumpModelGraph draws the layers of a Model; this run trains a plain nn.Module")

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        text = "\n".join(_graph(run.name, plan_of(run.module))) + "\n"
        run.control.path(self.basename or "model.dot").write_text(text, encoding="utf-8")
        if self.print:
            say(text)


def _graph(name: str, plan: Any) -> Iterable[str]:
    shapes = {layer.name: layer.output_shapes for layer in plan.layers}
    yield f"digraph {_quoted(name)} {{"
    for layer in plan.layers:
        label = _quoted(layer.name + "\n" + type(layer.layer).__name__)
        yield f"  {_quoted(layer.name)} [shape=box, label={label}];"
    for layer in plan.layers:
        for parent, number in zip(layer.parents, layer.parent_outputs, strict=True):
            label = _quoted(_shape(shapes[parent][number]))
            yield f"  {_quoted(parent)} -> {_quoted(layer.name)} [label={label}];"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@described_openly
class ComputeModelSize(Callback):
    """Counts the parameters of the model, prints the count and stores it in the weights `output_name`.

    Runs:  before_step, every `batch_interval` steps.
    Reads: sizes. Changes the weights `output_name`, which is not counted: every entry of it becomes the count.
    Costs: nothing to speak of.

    Raises:
        ConfigurationError: no weights, or an interval below 1; at the start, unknown weights.
    """

    message: ClassVar[str] = "Callback.CallbackComputeModelSize"

    output_name: str = ""
    batch_interval: int = 1

    def __post_init__(self) -> None:
        require(self, "output_name")
        at_least(self, 1, "batch_interval")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        if self.output_name not in run.control.weights:
            raise ConfigurationError(f"ComputeModelSize: there are no weights '{self.output_name}'")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if (step.step - 1) % self.batch_interval == 0:
            weights = step.run.control.weights
            size = sum(p.numel() for name, p in weights.items() if name != self.output_name)
            weights[self.output_name].detach().fill_(size)
            say(f"Model size: {size}")


@described_openly
class DispIOStats(Callback):
    """Prints after each epoch the number of samples read, and that of its reader.

    Runs:  after_epoch, after_evaluation.
    Reads: counts. Changes nothing.
    Costs: a line a pass.

    Args:
        layers: Input layers; accepted for LBANN's files, all are fed by the one reader of the mode.
    """

    message: ClassVar[str] = "Callback.CallbackDispIOStats"
    reads_weights = False

    layers: str = ""

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        _say_samples(epoch, Mode.TRAIN)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        _say_samples(evaluation, evaluation.mode)


def _say_samples(view: EpochView | EvaluationView, mode: Mode) -> None:
    seen, there = view.samples
    say(f"{view.run.name} (instance 0) {MODE_WORDS[mode]} samples : {seen} of {'unknown' if there is None else there}")
