"""Saves weights for other programs, and loads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.checkpoint import LAST
from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least, require, words
from descend.errors import StorageError
from descend.files import escape
from descend.graph.fields import described_openly
from descend.lbann.callbacks.hydrogen_files import as_matrix, column_major, find_weights, read_binary, write_binary
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.train import EvaluationView, RunView

__all__ = ["LoadModel", "SaveModel", "SaveTopKModels"]


def _save(run: RunView, folder: str) -> None:
    matrices = column_major(run.module)
    for name, weights in run.control.weights.items():
        matrix = as_matrix(weights, name in matrices)
        height, width = matrix.shape
        of_model = f"{folder}/{run.control.files.trainer}/{escape(run.name)}"
        write_binary(run.control.path(f"{of_model}/model_weights_{escape(name)}_{height}x{width}.bin"), matrix)


@described_openly
class SaveModel(Callback):
    """Writes the weights after training.

    Files: DIR/trainerN/MODEL/model_weights_WEIGHTS_HEIGHTxWIDTH.bin, in Hydrogen's binary.
    Runs:  after_training.
    Reads: weights. Changes nothing.
    Costs: a copy of the weights to the disk.

    Args:
        dir: Where the files go.
        extension: Of the model's description, which LBANN no longer writes and neither do we: the run directory has it.
        disable_save_after_training: Save nothing; the callback is then without effect.

    Raises:
        ConfigurationError: no folder.
    """

    message: ClassVar[str] = "Callback.CallbackSaveModel"

    dir: str = ""
    extension: str = "prototext"
    disable_save_after_training: bool = False

    def __post_init__(self) -> None:
        require(self, "dir")

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        if not self.disable_save_after_training:
            _save(run, self.dir)


@described_openly
class SaveTopKModels(Callback):
    """Writes the weights after the test, where this trainer is among the best `k`. With one trainer it always is.

    Of equal trainers the one with the smaller number is better, and NaN is worst. Trainers that share a process are not
    compared, since they are tested one after the other: each saves.

    Files: as of SaveModel.
    Runs:  after_evaluation, of test samples.
    Reads: weights and the metric. Changes nothing.
    Costs: a copy of the weights to the disk.

    Args:
        dir: Where the files go.
        k: How many trainers save.
        metric: Decides which model is best.
        ascending_ordering: The smallest value is best.

    Raises:
        ConfigurationError: no folder, no metric, or `k` below 1.
    """

    message: ClassVar[str] = "Callback.CallbackSaveTopKModels"

    dir: str = ""
    k: int = 0
    metric: str = ""
    ascending_ordering: bool = False

    def __post_init__(self) -> None:
        require(self, "dir", "metric")
        at_least(self, 1, "k")

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is not Mode.TEST:
            return
        value = evaluation.values[self.metric]
        if self._place(evaluation.run, value) < self.k:
            say(f"SaveTopKModels: one of the best {self.k}, {self.metric} being {value:g}", even_muted=True)
            _save(evaluation.run, self.dir)

    def _place(self, run: RunView, value: float) -> int:
        """How many trainers are better than this one. A collective of all trainers."""
        population = run.control.population
        if len(population.players) > 1:
            return 0
        own = population.players[0].number
        values = population.tell({own: value})

        def order(trainer: int) -> tuple[bool, float, int]:
            found = values[trainer]
            return (
                math.isnan(found),
                0.0 if math.isnan(found) else found if self.ascending_ordering else -found,
                trainer,
            )

        return sorted(values, key=order).index(own)


@described_openly
class LoadModel(Callback):
    """Replaces weights by those of SaveModel, LBANN or a checkpoint; what no folder holds stays as it is, and is named.

    Runs:  before_run; not where the run continues a checkpoint.
    Reads: files. Changes weights.
    Costs: one reading of them.

    Args:
        dirs: Folders with spaces between; of weights in several, the last ones count. A relative one is within the
            current folder. Files are in it or in its trainerN/MODEL; or it is a checkpoint, or a folder to which
            Checkpoint has copied some, of which the newest one counts.
        extension: Of a description, which is not read.

    Raises:
        ConfigurationError: no folder.
        StorageError: from a hook, where a folder holds no weights, or a file is of another size. Nothing was changed.
    """

    message: ClassVar[str] = "Callback.CallbackLoadModel"

    dirs: str = ""
    extension: str = "prototext"

    def __post_init__(self) -> None:
        require(self, "dirs")

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        if run.control.samples:  # the view is older than a checkpoint that another callback has restored
            return
        import torch

        loaded: dict[str, torch.Tensor] = {}
        for folder in words(self.dirs):
            loaded |= self._loaded(Path(folder), run)
        weights = run.control.weights
        with torch.no_grad():
            for name, values in loaded.items():
                weights[name].copy_(values)
        missing = [name for name in weights if name not in loaded]
        say(
            f"loaded {len(loaded)} weights from {self.dirs}" + (f"; not there: {', '.join(missing)}" if missing else "")
        )

    def _loaded(self, folder: Path, run: RunView) -> dict[str, torch.Tensor]:
        """The weights of a folder that the model has, by name."""
        weights, matrices = run.control.weights, column_major(run.module)
        trainer = run.control.files.trainer
        files = find_weights(folder) or find_weights(folder / trainer / run.name)
        if files:
            found = [name for name in weights if name in files]
            return {name: self._read(files[name], weights[name], name in matrices) for name in found}
        checkpoint = _checkpoint_in(folder) or _checkpoint_in(folder / trainer)
        if checkpoint is None:
            raise StorageError(
                f"LoadModel: {folder} holds neither files model_weights_NAME_HEIGHTxWIDTH.bin nor a checkpoint"
            )
        return _of_checkpoint(checkpoint, weights)

    def _read(self, path: Path, like: torch.Tensor, matrix: bool) -> torch.Tensor:
        import torch

        expected = as_matrix(like, matrix)
        values = read_binary(path, expected.dtype)
        if values.shape != expected.shape:
            raise StorageError(f"{path} is {values.shape[0]} x {values.shape[1]}; expected {expected.shape}")
        return torch.from_numpy(values.copy()).reshape(like.shape)


def _checkpoint_in(folder: Path) -> Path | None:
    """The checkpoint that a folder is, or the newest that Checkpoint has copied to it."""
    if (folder / "weights.safetensors").is_file():
        return folder
    newest = folder / LAST
    return folder / newest.read_text(encoding="utf-8").strip() if newest.is_file() else None


def _of_checkpoint(checkpoint: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint that the model has.

    Raises:
        StorageError: it is damaged, or some are of another shape.
    """
    from descend.runtime.checkpoint import read_weights  # torch comes in here, not when a description is read

    held = read_weights(checkpoint)
    found = {name: held[name] for name in weights if name in held}
    for name, values in found.items():
        if values.shape != weights[name].shape:
            raise StorageError(
                f"{checkpoint}: weights '{name}' are {tuple(values.shape)}; expected {tuple(weights[name].shape)}"
            )
    return found
