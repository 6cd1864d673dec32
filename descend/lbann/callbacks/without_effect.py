"""Callbacks of LBANN's format that do little or nothing here: its spellings, so that its files can be read unchanged.

Those without effect are accepted and say so once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.errors import NumericalError
from descend.graph.fields import described_openly
from descend.train import Callback

if TYPE_CHECKING:
    import torch

    from descend.train import RunView

__all__ = ["CheckInit", "Hang", "ImComm", "SyncLayers"]


class _WithoutEffect(Callback):
    """Base of callbacks without effect; `reason` ends the line that is printed about it."""

    reads_weights = False
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
class CheckInit(Callback):
    """Ends the run where trainers begin with different weights; with one trainer says that there is nothing to compare.

    Runs:  before_run; not where the run continues a checkpoint.
    Reads: all weights. Changes nothing.
    Costs: a hash of the weights, of which each trainer tells the others.

    Raises:
        NumericalError: from a hook, with the trainers whose weights are others than those of trainer 0.
    """

    message: ClassVar[str] = "Callback.CallbackCheckInit"

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        population = run.control.population
        if run.control.samples or population.players[0].run.control is not run.control:
            return  # trainers of one process are compared before the first of them trains
        hashes = population.tell({player.number: _hash(player.run.task.module) for player in population.players})
        if len(hashes) == 1:
            say("CheckInit has no effect here: there is one trainer, and nothing to compare its weights with")
        elif others := [str(trainer) for trainer, found in hashes.items() if found != hashes[0]]:
            raise NumericalError(
                f"CheckInit: the first weights of trainer{'s' * (len(others) > 1)} {', '.join(others)} differ from "
                "those of trainer 0: set random_init_trainers_identically of the trainer, or leave out the callback"
            )


def _hash(module: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for name, p in module.named_parameters():
        found.update(name.encode() + p.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@described_openly
class ImComm(_WithoutEffect):
    """LBANN's CallbackImComm, which sums gradients over models. Has no effect.

    LBANN's format has the message and no callback that holds it, so no text can ask for it.

    Runs:  after_setup, to say so.
    Reads: nothing. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackImComm"
    reason: ClassVar[str] = "trainers exchange models by the training algorithm LTFB, and never gradients"

    intertrainer_comm_method: str = ""
    all_optimizers: bool = False
