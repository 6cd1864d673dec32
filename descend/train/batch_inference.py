"""Batched inference as an algorithm: one forward pass over all samples, no training."""

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
    from descend.train.session import Session

__all__ = ["BatchedInference"]


@dataclass(frozen=True)
class BatchedInference(TrainingAlgorithm):
    """Computes objective, metrics and outputs of layers over all samples of some modes; makes no update.

    The execution context of each mode advances by its mini-batches and samples, and its values are a row of the
    history. Outputs are in the order of the reader's samples and appear in the result as "mode/layer". The weights are
    the model's initial ones, those of a `LoadModel`, or with `resume` those of a checkpoint.

    Args:
        name: A name for this algorithm in logs.
        modes: Names of modes, separated by spaces: train, validation, test, tournament.
        layers: Names of the layers whose outputs are returned, separated by spaces.

    Raises:
        ConfigurationError: a mode does not exist, or none is named.
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
        """Raise ConfigurationError for modes without data."""
        known = list(there)
        if missing := [word for word in self.modes.split() if Mode(word) not in known]:
            raise ConfigurationError(f"algorithm '{self.name}': there are no data for {', '.join(missing)}")

    def apply(self, session: Session) -> str:
        """See `TrainingAlgorithm.apply`."""
        from descend.train.evaluation import evaluate  # imports torch, so not at module level

        self.check_modes(session.data)
        counted: list[str] = []
        for mode in map(Mode, self.modes.split()):
            outputs = _Outputs(tuple(self.layers.split()))
            callbacks, session.callbacks = session.callbacks, Callbacks((*session.callbacks.all, outputs))
            try:
                evaluate(session, mode)
            finally:
                session.callbacks = callbacks
            session.outputs.update({f"{mode.value}/{name}": tensor for name, tensor in outputs.joined().items()})
            counted.append(f"{session.history[-1]['samples']:,} {mode.value} samples")
        return f"went through {' and '.join(counted)}"


class _Outputs(Callback):
    """Collects the outputs of layers on the CPU."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self._layers = layers
        self._outputs: dict[str, list[torch.Tensor]] = {name: [] for name in layers}
        self._samples: list[torch.Tensor] = []

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        step.watch.layers(self._layers)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        import torch

        self._samples.append(torch.from_numpy(step.ids))
        for name in self._layers:
            self._outputs[name].append(step.watch.outputs(name)[0].cpu())

    def joined(self) -> dict[str, torch.Tensor]:
        """Outputs (samples, …) by layer, in the order of the sample numbers; all ranks have the outputs of all."""
        import torch

        order = torch.cat(self._samples).argsort()
        return {name: torch.cat(parts)[order] for name, parts in self._outputs.items()}
