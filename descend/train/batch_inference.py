"""Batched inference as an algorithm: samples go through the model once, and nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError, nearest
from descend.train.algorithms import TrainingAlgorithm
from descend.train.callback import Callback, Callbacks
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from descend.train.events import StepView
    from descend.train.run import Run

__all__ = ["BatchedInference"]


@dataclass(frozen=True)
class BatchedInference(TrainingAlgorithm):
    """Takes the objective, the metrics and the outputs of layers over all samples of some modes; makes no update.

    Each mode's execution context goes on by its mini-batches and samples, and its values are a row of the history.
    Outputs stand in the order of the reader's samples, and in the result as "mode/layer". The weights are the model's
    first ones, those of a `LoadModel`, or with `resume` those of a checkpoint.

    Args:
        name: A name for this algorithm in logs.
        modes: Names of modes, spaces between: train, validation, test, tournament.
        layers: Names of layers whose outputs are wanted.

    Raises:
        ConfigurationError: there is no such mode.
    """

    message: ClassVar[str] = "BatchedInference"
    trains: ClassVar[bool] = False

    name: str = "batched inference"
    modes: str = "test"
    layers: str = ""

    def __post_init__(self) -> None:
        known = [mode.value for mode in Mode]
        if unknown := [word for word in self.modes.split() if word not in known] or ["nothing"] * (not self.modes):
            hint = nearest(unknown[0], known) or f"; expected some of {', '.join(known)}"
            raise ConfigurationError(f"BatchedInference: modes names {unknown[0]!r}{hint}")

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        return 0

    def check_modes(self, there: Iterable[Mode]) -> None:
        """Refuse modes that there are no data for."""
        known = list(there)
        if missing := [word for word in self.modes.split() if Mode(word) not in known]:
            raise ConfigurationError(f"algorithm '{self.name}': there are no data for {', '.join(missing)}")

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.evaluation import evaluate  # torch comes in here, not when a description is read

        self.check_modes(run.data)
        said: list[str] = []
        for mode in map(Mode, self.modes.split()):
            outputs = _Outputs(tuple(self.layers.split()))
            watching, run.callbacks = run.callbacks, Callbacks((*run.callbacks.all, outputs))
            try:
                evaluate(run, mode)
            finally:
                run.callbacks = watching
            run.state.outputs.update({f"{mode.value}/{name}": tensor for name, tensor in outputs.joined().items()})
            said.append(f"{run.state.history[-1]['samples']:,} {mode.value} samples")
        return f"went through {' and '.join(said)}"


class _Outputs(Callback):
    """Keeps the outputs of layers on the CPU."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self._layers = layers
        self._seen: dict[str, list[torch.Tensor]] = {name: [] for name in layers}
        self._samples: list[torch.Tensor] = []

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        step.watch.layers(self._layers)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        import torch

        self._samples.append(torch.from_numpy(step.ids))
        for name in self._layers:
            self._seen[name].append(step.watch.outputs(name)[0].cpu())

    def joined(self) -> dict[str, torch.Tensor]:
        """Outputs (samples, …) by layer, in the order of the samples' numbers; those of all ranks, on all of them."""
        import torch

        order = torch.cat(self._samples).argsort()
        return {name: torch.cat(parts)[order] for name, parts in self._seen.items()}
