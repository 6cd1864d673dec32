"""Callbacks of LBANN's format without a counterpart here.

Each is accepted, so that LBANN's files can be read unchanged, and prints once that it has no effect; a tournament
inside one training run cannot be ignored without changing the result, so it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import modes_of
from descend.errors import Unsupported
from descend.graph.fields import described_openly
from descend.train import Callback

if TYPE_CHECKING:
    from descend.train import EpochView, RunView, StepView

__all__ = ["CheckInit", "DebugIO", "GPUMemoryUsage", "Hang", "LocalTournament", "SyncLayers"]


class _WithoutEffect(Callback):
    """Base of callbacks without effect; `reason` ends the line that is printed about it."""

    reason: ClassVar[str]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        say(f"{type(self).__name__} has no effect here: {self.reason}")


@described_openly
class SyncLayers(_WithoutEffect):
    """Waited for the device after each layer. Has no effect.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackSyncLayers"
    reason: ClassVar[str] = "for true times of layers use torch.profiler together with the callback Profiler"

    sync_gpus: bool = False
    sync_mpi: bool = False
    only_input: bool = False


@described_openly
class Hang(_WithoutEffect):
    """Waited for a debugger. Has no effect.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackHang"
    reason: ClassVar[str] = "start the run under a debugger instead: python -m pdb -m descend run FILE"

    rank: int = 0


@described_openly
class CheckInit(_WithoutEffect):
    """Compares the first weights of several trainers. With one trainer there is nothing to compare.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackCheckInit"
    reason: ClassVar[str] = "there is one trainer, and nothing to compare its weights with"


@described_openly
class GPUMemoryUsage(Callback):
    """Prints after each epoch how much memory of the GPU is held; without a GPU says once that there is none.

    Runs:  after_setup, after_epoch.
    Reads: torch's count. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackGPUMemoryUsage"

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        import torch

        if not torch.cuda.is_available():
            say("GPUMemoryUsage has no effect here: there is no GPU")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        import torch

        if torch.cuda.is_available():
            now, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            say(f"GPU memory usage : {now / 2**30:.3g} GiB used, {most / 2**30:.3g} GiB at most")


@described_openly
class DebugIO(Callback):
    """Prints what the reader gave for each mini-batch.

    Runs:  after_step, after_evaluation_step.
    Reads: numbers of samples. Changes nothing.
    Costs: a line a mini-batch.

    Args:
        phase: Modes in which to print; all where none is named.
        lvl: From 1 on the number of each sample is printed.

    Raises:
        ConfigurationError: an unknown mode.
    """

    message: ClassVar[str] = "Callback.CallbackDebugIO"

    phase: str = ""
    lvl: int = 0

    def __post_init__(self) -> None:
        modes_of(self.phase)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.mode in modes_of(self.phase):
            shown = " ".join(map(str, step.ids.tolist())) if self.lvl else ""
            say(f"{step.mode} epoch {step.epoch} step {step.step}: {step.batch.size} samples {shown}".rstrip())

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        self.after_step(step)


@described_openly
class LocalTournament(Callback):
    """LBANN's CallbackLTFB, the older form of LTFB inside one training run: refused.

    Runs:  never.
    Reads: nothing. Changes nothing.
    Costs: nothing.

    Raises:
        Unsupported: always; the message says why.
    """

    message: ClassVar[str] = "Callback.CallbackLTFB"

    batch_interval: int = 0
    metric: str = ""
    weights: str = ""
    low_score_wins: bool = False
    communication_algorithm: str = ""
    exchange_hyperparameters: bool = False
    checkpoint_basedir: str = ""

    def __post_init__(self) -> None:
        raise Unsupported(
            "the callback LTFB is an older form of a tournament between several trainers, and without it the result is "
            "another, so it is refused: take it out of the model and play by the training algorithm LTFB of the trainer"
        )
