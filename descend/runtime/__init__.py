"""The execution context of a process: device, ranks, seeds, signals, the run directory and its checkpoints."""

from descend.runtime.archive import STOPPED, Archive, Moment, Wish
from descend.runtime.checkpoint import (
    good_checkpoints,
    newest_checkpoint,
    read_state,
    read_weights,
    save_checkpoint,
    verify,
)
from descend.runtime.group import joined, within_block
from descend.runtime.process import Process
from descend.runtime.run_directory import RunDirectory, stored_seed, write_beside
from descend.runtime.seeds import generator, seed_evaluation, seed_of, seed_step
from descend.runtime.signals import Interrupted, StopRequests
from descend.runtime.state import flatten, optimizer_state, restore_optimizer, unflatten
from descend.runtime.tensors import require_storable

__all__ = [
    "STOPPED",
    "Archive",
    "Interrupted",
    "Moment",
    "Process",
    "RunDirectory",
    "StopRequests",
    "Wish",
    "flatten",
    "generator",
    "good_checkpoints",
    "joined",
    "newest_checkpoint",
    "optimizer_state",
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
    "within_block",
    "write_beside",
]
