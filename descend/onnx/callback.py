"""Writes the trained model of a run as ONNX: the callback `descend.ExportOnnx`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.name_fields import require, require_extra
from descend.errors import Unsupported, missing_library
from descend.graph.fields import described_openly
from descend.train import Callback
from descend.train.layers import plan_of

if TYPE_CHECKING:
    from descend.train import RunView

__all__ = ["ExportOnnx"]


def _as_onnx(run: RunView) -> Any:
    """The model with its weights of now."""
    from descend.graph import prediction_outputs
    from descend.onnx.export import export

    plan = plan_of(run.module)
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in run.control.weights.items()}
    return export(plan, prediction_outputs(plan), weights)


@described_openly
class ExportOnnx(Callback):
    """Writes the model as ONNX after training, as it acts in evaluation; see `descend.onnx.save`.

    Files: OUTPUT_FILENAME, and DEBUG_STRING_FILENAME with the same as text, if it is set.
    Runs:  after_setup, to refuse what cannot be written; after_training.
    Reads: the description and the weights. Changes nothing.
    Costs: a copy of the weights in memory, and one to the disk.

    Args:
        output_filename: The file.
        debug_string_filename: A text file for people.

    Raises:
        ConfigurationError: no output_filename.
        Unsupported: at the start, for a module that is not a graph, or layers that have no form in ONNX.
        MissingExtra: at the start, where onnx is not installed.
    """

    message: ClassVar[str] = "Callback.CallbackExportOnnx"

    output_filename: str = ""
    debug_string_filename: str = ""

    def __post_init__(self) -> None:
        require(self, "output_filename")

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        there = find_spec("onnx") is not None
        return None if there else missing_library("ExportOnnx", "onnx")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        require_extra(self)
        if plan_of(run.module) is None:
            raise Unsupported("ExportOnnx writes the layers of a Model; give a plain nn.Module to torch.onnx.export")
        _as_onnx(run)  # what cannot be written is refused before the training

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        model = _as_onnx(run)
        run.control.path(self.output_filename).write_bytes(model.SerializeToString())
        if self.debug_string_filename:
            run.control.path(self.debug_string_filename).write_text(str(model), encoding="utf-8")
