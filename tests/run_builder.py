"""Runs for tests: what `build_run` takes as one value that can be replaced in part, and `execute` for it."""

from dataclasses import dataclass, field
from typing import Any

from descend.callbacks.console import say
from descend.experiment.build import build_run
from descend.experiment.run_store import DirectoryStore
from descend.experiment.runner import execute as execute_run
from descend.runtime import Communicator
from descend.train import BatchedIterativeOptimizer
from descend.train.run import RunConfig


@dataclass(frozen=True)
class Parts:
    """The parts of a run, before it is built."""

    name: str
    task: Any
    optimizer: Any
    data: Any
    algorithm: Any = field(default_factory=BatchedIterativeOptimizer)
    seed: int = 0
    callbacks: tuple = ()
    micro_batch_size: Any = "auto"
    settings: Any = field(default_factory=dict)
    summary_dir: str = "tensorboard"
    more: Any = field(default_factory=dict)  # further arguments of `build_run`

    def built(self, store=None, **options):
        """The run."""
        config = RunConfig(
            self.name,
            self.seed,
            self.algorithm,
            settings=self.settings,
            summary_dir=self.summary_dir,
            say=say,
            **options,
        )
        return build_run(
            config,
            task=self.task,
            optimizer=self.optimizer,
            data=self.data,
            world=Communicator(),
            callbacks=tuple(self.callbacks),
            micro_batch_size=self.micro_batch_size,
            store=store,
            **self.more,
        )


def execute(parts, run_dir=None, *, keep_files=True, **options):
    """Carry out a run in a directory, or without files."""
    return execute_run(parts.built(DirectoryStore(lambda: run_dir) if keep_files else None, **options))
