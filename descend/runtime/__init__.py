"""The execution context of a process: device, ranks, seeds, signals, the run directory and its checkpoints."""

from descend.runtime.checkpoint import read_weights, save_checkpoint, verify
from descend.runtime.process import Process
from descend.runtime.run_directory import RunDirectory, write_beside
from descend.runtime.seeds import generator, seed_of
from descend.runtime.signals import StopRequests

__all__ = [
    "Process",
    "RunDirectory",
    "StopRequests",
    "generator",
    "read_weights",
    "save_checkpoint",
    "seed_of",
    "verify",
    "write_beside",
]
