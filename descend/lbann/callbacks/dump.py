"""Writes weights, gradients, outputs and sample numbers to files, for other programs to read.

A relative name is within the run directory. Steps in names count from 0 where the file is of a step under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from descend.callbacks.images import as_array
from descend.callbacks.name_fields import MODE_WORDS, at_least, modes_of, words
from descend.errors import ConfigurationError, nearest
from descend.files import escape
from descend.graph.fields import described_openly
from descend.lbann.callbacks.hydrogen_files import (
    SAMPLES,
    as_matrix,
    as_rows,
    column_major,
    write_binary,
    write_text,
)
from descend.train import Callback
from descend.train.layers import layer_names

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, RunView, StepView
    from descend.train.activations import Outputs

__all__ = ["DumpErrorSignals", "DumpGradients", "DumpMBIndices", "DumpOutputs", "DumpWeights"]

_WEIGHTS = ("text", "binary", "distributed_binary")


def _one_of(callback: Callback, field: str, options: tuple[str, ...]) -> None:
    value = getattr(callback, field)
    if value not in ("", *options):
        raise ConfigurationError(
            f"{type(callback).__name__}.{field} is '{value}'; expected {', '.join(options)}{nearest(value, options)}"
        )


@described_openly
class DumpWeights(Callback):
    """Writes all weights before training and after every `epoch_interval` epochs.

    Files: DIRECTORY/trainerN/sgd.shared.HOOK.epoch.E.step.S/MODEL/WEIGHTS.txt (or .bin), HOOK being training_begin or
        epoch_end.
    Runs:  before_run, after_epoch.
    Reads: weights. Changes nothing.
    Costs: a copy of the weights to the disk each time.

    Args:
        directory: Where the files go.
        epoch_interval: 0 counts as 1.
        format: "text", the default; "binary"; or "distributed_binary", which is the same with one process.

    Raises:
        ConfigurationError: another format, or a negative interval.
    """

    message: ClassVar[str] = "Callback.CallbackDumpWeights"

    directory: str = ""
    epoch_interval: int = 1
    format: str = ""

    def __post_init__(self) -> None:
        _one_of(self, "format", _WEIGHTS)
        at_least(self, 0, "epoch_interval")

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        if run.control.samples == 0:  # the view is older than a checkpoint that another callback has restored
            self._write(run, "training_begin", 0, 0)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete and epoch.finished % (self.epoch_interval or 1) == 0:
            self._write(epoch.run, "epoch_end", epoch.finished, epoch.step)

    def _write(self, run: RunView, hook: str, epoch: int, step: int) -> None:
        at = f"{run.control.files.trainer}/sgd.shared.{hook}.epoch.{epoch}.step.{step}"
        folder = f"{self.directory or '.'}/{at}/{escape(run.name)}"
        matrices = column_major(run.module)
        text = self.format in ("", "text")
        for name, weights in run.control.weights.items():
            path = run.control.path(f"{folder}/{escape(name)}.{'txt' if text else 'bin'}")
            (write_text if text else write_binary)(path, as_matrix(weights, name in matrices))


@described_openly
class DumpGradients(Callback):
    """Writes the gradient of each trainable parameter every `interval` steps.

    Files: BASENAMEmodel0-epochE-stepS-WEIGHTS-Gradient.txt, with the number of the step from 0.
    Runs:  after_backward, so before any clipping.
    Reads: gradients. Changes nothing.
    Costs: the gradients as text, much larger than the weights.

    Args:
        basename: Begins each name.
        interval: 0 counts as 1.
    """

    message: ClassVar[str] = "Callback.CallbackDumpGradients"

    basename: str = ""
    interval: int = 0

    def __post_init__(self) -> None:
        at_least(self, 0, "interval")

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if (step.step - 1) % (self.interval or 1):
            return
        matrices = column_major(step.module)
        for name, gradient in step.gradients.items():
            path = step.run.control.path(_named(self.basename, step, f"{escape(name)}-Gradient.txt"))
            write_text(path, as_matrix(gradient, name in matrices))


class _Keeping(Callback):
    """Base with the gradients of the current step, by layer and index of the output, for each micro-batch."""

    signals: dict[tuple[str, int], list[list[Any]]]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.signals = {}


@described_openly
class DumpErrorSignals(_Keeping):
    """Writes the gradient of the objective with respect to the outputs of each layer, in every step.

    Files: BASENAMEmodel0-epochE-stepS-LAYER-ErrorSignalI.txt, a row a sample; I is the number of the output.
    Runs:  before_step, after_backward.
    Reads: gradients of outputs. Changes nothing.
    Costs: the memory of the gradients of all outputs, and all of them as text.

    Args:
        basename: Begins each name.
    """

    message: ClassVar[str] = "Callback.CallbackDumpErrorSignals"

    basename: str = ""

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        attempt = -1

        def keep(name: str, outputs: Outputs) -> None:
            nonlocal attempt
            if attempt != step.watch.attempts:
                attempt = step.watch.attempts
                self.signals.clear()
            for i, output in enumerate(outputs):
                if output.requires_grad:
                    signal: list[torch.Tensor] = []
                    self.signals.setdefault((name, i), []).append(signal)
                    output.register_hook(signal.append)  # before a later layer writes to the output in its place

        step.watch.listen(keep)

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        divisor = step.run.control.signal_divisor
        for (name, i), parts in self.signals.items():
            if all(parts):
                rows = np.concatenate([as_rows(gradient) for (gradient,) in parts])
                wide = np.promote_types(rows.dtype, np.float32)  # float16 does not hold its own loss scale
                path = step.run.control.path(_named(self.basename, step, f"{escape(name)}-ErrorSignal{i}.txt"))
                write_text(path, rows.astype(wide) / np.asarray(divisor, wide))
        self.signals.clear()


@described_openly
class DumpOutputs(Callback):
    """Writes the outputs of layers.

    Files: DIRECTORY/trainerN/MODEL/sgd.MODE.epoch.E.step.S_LAYER_outputI.EXT; MODE is training, validation, testing or
        tournament, S the number of the mini-batch in that mode from 0, I that of the output.
    Runs:  before_step, after_backward, before_evaluation_step, after_evaluation_step.
    Reads: outputs as the forward pass gave them. Changes nothing.
    Costs: the memory of the outputs, a wait for the device and the files, every `batch_interval` mini-batches.

    Args:
        layers: Whose outputs; all layers where none is named.
        execution_modes: When; always where none is named.
        batch_interval: 0 counts as 1.
        directory: Where the files go.
        format: csv, the default; tsv, npy or npz.

    Raises:
        ConfigurationError: an unknown mode or format, or a negative interval.
    """

    message: ClassVar[str] = "Callback.CallbackDumpOutputs"
    reads_weights = False

    layers: str = ""
    execution_modes: str = ""
    batch_interval: int = 0
    directory: str = ""
    format: str = ""

    def __post_init__(self) -> None:
        modes_of(self.execution_modes)
        _one_of(self, "format", tuple(SAMPLES))
        at_least(self, 0, "batch_interval")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if self._due(step):
            step.watch.layers(self._names(step))

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if self._due(step):
            self._write(step)

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        self.before_step(step)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        self.after_backward(step)

    def _due(self, step: StepView) -> bool:
        return step.mode in modes_of(self.execution_modes) and (step.step - 1) % (self.batch_interval or 1) == 0

    def _names(self, step: StepView) -> tuple[str, ...]:
        return words(self.layers) or tuple(layer_names(step.module))

    def _write(self, step: StepView) -> None:
        at = f"sgd.{MODE_WORDS[step.mode]}.epoch.{step.epoch}.step.{step.step - 1}"
        extension = self.format or "csv"
        for name in self._names(step):
            for i, output in enumerate(step.watch.outputs(name)):
                folder = f"{self.directory or '.'}/{step.run.control.files.trainer}/{escape(step.run.name)}"
                file = f"{folder}/{at}_{escape(name)}_output{i}.{extension}"
                SAMPLES[extension](step.run.control.path(file), as_array(output))


@described_openly
class DumpMBIndices(Callback):
    """Writes the sample numbers of the mini-batch, every `interval` mini-batches.

    Files: BASENAMEmodel0-MODE-epochE-stepS-MB_Sample_Indices.txt, a number a line.
    Runs:  after_step, after_evaluation_step.
    Reads: numbers of samples. Changes nothing.
    Costs: a small file each time.

    Args:
        basename: Begins each name.
        interval: 0 counts as 1.
    """

    message: ClassVar[str] = "Callback.CallbackDumpMBIndices"
    reads_weights = False

    basename: str = ""
    interval: int = 0

    def __post_init__(self) -> None:
        at_least(self, 0, "interval")

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if (step.step - 1) % (self.interval or 1) == 0:
            at = f"model0-{MODE_WORDS[step.mode]}-epoch{step.epoch}-step{step.step - 1}"
            path = step.run.control.path(f"{self.basename}{at}-MB_Sample_Indices.txt")
            write_text(path, step.ids.reshape(-1, 1))

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        self.after_step(step)


def _named(basename: str, step: StepView, rest: str) -> str:
    return f"{basename}model0-epoch{step.epoch}-step{step.step - 1}-{rest}"
