"""Writes outputs of layers as images."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from descend.callbacks.name_fields import require, require_extra, words
from descend.data.images.pictures import png_bytes
from descend.errors import ConfigurationError, missing_library
from descend.files import escape
from descend.graph.fields import described_openly
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["SaveImages", "as_array", "as_pixels"]


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor as an array of NumPy; types that NumPy lacks are converted to float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def as_pixels(sample: NDArray[Any]) -> NDArray[np.uint8]:
    """One sample as bytes, its smallest value black and its largest white.

    Args:
        sample: (height, width) or (channels, height, width) with 1 or 3 channels.

    Returns:
        (height, width) or (height, width, 3)

    Raises:
        ConfigurationError: it has another shape.
    """
    if sample.ndim == 3 and sample.shape[0] in (1, 3):
        sample = sample[0] if sample.shape[0] == 1 else sample.transpose(1, 2, 0)
    elif sample.ndim != 2:
        raise ConfigurationError(
            f"an image must be (height, width) or (1 or 3, height, width), and the layer's output is {sample.shape}"
        )
    low, high = float(sample.min()), float(sample.max())
    scaled = (sample - low) / (high - low) if high > low else np.zeros(sample.shape)
    return np.round(255 * scaled).astype(np.uint8)


def _write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.write_bytes(png_bytes(pixels))


def _write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    if path.suffix == ".png":
        _write_png(path, pixels)
        return
    importlib.import_module("PIL.Image").fromarray(pixels).save(path)


class _Samples(Callback):
    """The first sample of each layer in the last mini-batch of a pass; the validation of the pass may be still to come
    when a run is continued."""

    remembers: ClassVar[tuple[str, ...]] = ("samples",)
    samples: dict[str, Any]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.samples = {}


@described_openly
class SaveImages(_Samples):
    """Writes the output of layers for the first sample of the last mini-batch, its values spread from black to white.

    Files: PREFIXepochE-LAYER.EXT after each epoch, E being the passes that are complete; PREFIXtest-LAYER.EXT.
    Runs:  in the last mini-batch of a pass, after_epoch, after_evaluation of test samples.
    Reads: outputs. Changes nothing.
    Costs: a picture a layer and pass.

    Args:
        layers: Which.
        image_format: jpg, the default, and others need Pillow; png does not.
        image_prefix: Begins each name.

    Raises:
        ConfigurationError: no layers; from a hook, outputs that are no pictures.
        MissingExtra: the format needs Pillow.
    """

    message: ClassVar[str] = "Callback.CallbackSaveImages"
    reads_weights = False

    layers: str = ""
    image_format: str = ""
    image_prefix: str = ""

    def __post_init__(self) -> None:
        require(self, "layers")

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        if (self.image_format or "jpg") == "png" or find_spec("PIL") is not None:
            return None
        needs = missing_library(f"SaveImages: writing {self.image_format or 'jpg'}", "PIL")
        return f'{needs}, or set image_format to "png"'

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        super().after_setup(run)
        require_extra(self)

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if self._is_last(step):
            step.watch.layers(words(self.layers))

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if self._is_last(step):
            self.samples = {name: step.watch.outputs(name)[0][0].cpu() for name in words(self.layers)}

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        if step.mode is Mode.TEST:
            self.before_step(step)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        if step.mode is Mode.TEST:
            self.after_backward(step)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete:
            self._write(epoch.run, f"epoch{epoch.finished}")

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is Mode.TEST:
            self._write(evaluation.run, "test")

    def _is_last(self, step: StepView) -> bool:
        return step.batch.last

    def _write(self, run: RunView, when: str) -> None:
        for name, sample in self.samples.items():
            file = f"{self.image_prefix}{when}-{escape(name)}.{self.image_format or 'jpg'}"
            _write_image(run.control.path(file), as_pixels(as_array(sample)))
