"""The execution context of a process: device, ranks, seeds, signals, the run directory and its checkpoints."""

from typing import TYPE_CHECKING

from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.runtime.checkpoint import (
        good_checkpoints,
        newest_checkpoint,
        read_state,
        read_weights,
        save_checkpoint,
        verify,
    )
    from descend.runtime.checkpoint_manager import CheckpointManager, Snapshot
    from descend.runtime.communicator import Communicator
    from descend.runtime.optimizer_state import flatten, optimizer_state, restore_optimizer, unflatten
    from descend.runtime.process_group import process_group, within_trainer
    from descend.runtime.rows import read_rows
    from descend.runtime.run_directory import RunDirectory, stored_seed, write_beside
    from descend.runtime.safetensors_io import require_storable
    from descend.runtime.save_request import STOPPED, SaveRequest
    from descend.runtime.seeds import generator, seed_evaluation, seed_of, seed_step
    from descend.runtime.signals import Interrupted, SignalHandler

__all__ = [
    "STOPPED",
    "CheckpointManager",
    "Communicator",
    "Interrupted",
    "RunDirectory",
    "SaveRequest",
    "SignalHandler",
    "Snapshot",
    "flatten",
    "generator",
    "good_checkpoints",
    "newest_checkpoint",
    "optimizer_state",
    "process_group",
    "read_rows",
    "read_state",
    "read_weights",
    "require_storable",
    "restore_optimizer",
    "save_checkpoint",
    "seed_evaluation",
    "seed_of",
    "seed_step",
    "stored_seed",
    "unflatten",
    "verify",
    "within_trainer",
    "write_beside",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint": (
            "good_checkpoints",
            "newest_checkpoint",
            "read_state",
            "read_weights",
            "save_checkpoint",
            "verify",
        ),
        "checkpoint_manager": ("CheckpointManager", "Snapshot"),
        "communicator": ("Communicator",),
        "optimizer_state": ("flatten", "optimizer_state", "restore_optimizer", "unflatten"),
        "process_group": ("process_group", "within_trainer"),
        "rows": ("read_rows",),
        "run_directory": ("RunDirectory", "stored_seed", "write_beside"),
        "safetensors_io": ("require_storable",),
        "save_request": ("STOPPED", "SaveRequest"),
        "seeds": ("generator", "seed_evaluation", "seed_of", "seed_step"),
        "signals": ("Interrupted", "SignalHandler"),
    },
)
