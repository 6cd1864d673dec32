"""Builds a run from its parts: the one place where what a door has read becomes a `descend.train.run.Run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from descend.arguments import shown
from descend.callbacks.console import say
from descend.callbacks.name_fields import problems as unknown_names
from descend.errors import ConfigurationError
from descend.experiment.ranks import NoFiles
from descend.runtime.dtensor import is_sharded
from descend.terminal import is_tty
from descend.train import Callbacks
from descend.train.layers import layer_names
from descend.train.micro_batch import MicroBatchSize
from descend.train.precision import precision_for
from descend.train.run import Run, RunConfig
from descend.train.state import TrainState
from descend.train.stop_signal import StopSignal
from descend.train.strategies.base import Strategy, StrategyDescription
from descend.train.transforms.usual import usual_transforms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train import Callback, Mode
    from descend.train.objective import Task
    from descend.train.store import RunStore
    from descend.train.transforms.base import TransformChain

__all__ = ["build_run", "check_names", "say_what_is_skipped", "strategy_of"]

_LISTED = 5  # fields that are left out


def say_what_is_skipped(readers: Iterable[Any], said: set[str] | None = None) -> None:
    """Print what the files of some readers have and is not read, and what is suspicious in them, each line once.

    Args:
        readers: Of any kind; those of `descend.data.read` know it.
        said: Lines that were printed, to which these are added.
    """
    said = set() if said is None else said
    for note in (note for reader in readers for note in (*getattr(reader, "notes", ()), *_left_out(reader))):
        if note not in said:
            said.add(note)
            say(note)


def _left_out(reader: Any) -> list[str]:
    """A line for each field of files that is left out, unless the caller chose the fields."""
    names, source = getattr(reader, "names", ()), getattr(reader, "source", None)
    if source is None or len(names) < len(getattr(source, "fields", names)):
        return []
    lines = [f"left out: '{name}': {why}" for name, why in reader.left_out.items()]
    more = [f"left out: {len(lines) - _LISTED:,} fields more, which `descend data` lists"]
    return lines[:_LISTED] + (more if len(lines) > _LISTED else [])


def build_run(
    config: RunConfig,
    *,
    task: Task,
    optimizer: torch.optim.Optimizer,
    data: Mapping[Mode, Feed],
    world: Communicator,
    strategy: StrategyDescription | None = None,
    transforms: TransformChain | None = None,
    scaler: torch.amp.GradScaler | None = None,
    micro_batch_size: int | Literal["auto"] | None = None,
    callbacks: Sequence[Callback] = (),
    shard_optimizer: bool = False,
    trainers: int = 1,
    store: RunStore | None = None,
) -> Run:
    """A run, ready to be carried out.

    Args:
        config: Its plain values.
        task: The module and its losses.
        optimizer: What updates the module.
        data: Mini-batches by mode.
        world: This process among the ranks of the run.
        strategy: What the user asked for; None for a single device, data parallelism, or FSDP where the module is
            sharded.
        transforms: The gradient transforms; None for the usual ones.
        scaler: The loss scale of float16.
        micro_batch_size: Samples that go through the module at once; None or "auto" for as many as fit.
        callbacks: In the order in which they are called.
        shard_optimizer: Let each rank keep the optimizer's state of some parameters.
        trainers: How many train the model, each by itself.
        store: Where rows and checkpoints go; None keeps no files.

    Raises:
        ConfigurationError: the strategy does not go with the rest.
    """
    parameters = dict(task.module.named_parameters())
    communicator = strategy.communicator(world) if strategy else world
    if shard_optimizer:
        from descend.train.strategies.zero import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(optimizer, parameters, communicator)
    watching = tuple(callbacks)
    if is_tty(sys.stdout):
        from descend.callbacks.progress_bar import ProgressBar

        if not any(isinstance(callback, ProgressBar) for callback in watching):
            watching = (*watching, ProgressBar(bar_width=20))
    run = Run(
        config=config,
        communicator=communicator,
        task=task,
        optimizer=optimizer,
        strategy=(strategy and strategy.create(world)) or _default_strategy(communicator, parameters, shard_optimizer),
        transforms=transforms or usual_transforms(),
        precision=precision_for(scaler),
        data=data,
        callbacks=Callbacks(watching),
        state=TrainState(communicator),
        store=store or NoFiles(),
        stop=StopSignal(),
        micro_batch_size=MicroBatchSize(
            micro_batch_size if isinstance(micro_batch_size, int) else None,
            adaptive=not isinstance(micro_batch_size, int),
        ),
    )
    if strategy:
        if problems := strategy.problems(run, world, trainers):
            raise ConfigurationError(problems)
        strategy.prepare(run, world)
    return run


def strategy_of(wanted: Mapping[str, Any]) -> StrategyDescription | None:
    """The one strategy among what a user has asked for.

    Args:
        wanted: Descriptions, or None, by the name of the argument. "auto" is None.

    Raises:
        ConfigurationError: there are several, or one is not a strategy.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in wanted.items()
        if value is not None and not (isinstance(value, str) and value == "auto")
    }
    if wrong := [name for name, value in given.items() if not isinstance(value, StrategyDescription)]:
        raise ConfigurationError(
            f"{wrong[0]} must be a strategy such as descend.MajorityVote(), descend.ParameterServer() or "
            f"descend.LocalSGD(steps=8), or 'auto', got {shown(given[wrong[0]])}"
        )
    if len(given) > 1:
        names = " and ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigurationError(f"{names}: each is a strategy, and a run has one; leave out the others")
    return next(iter(given.values()), None)


def check_names(module: torch.nn.Module, callbacks: Iterable[Any], metrics: Iterable[str]) -> None:
    """Refuse names in callbacks that nothing has.

    Raises:
        ConfigurationError: all of them.
    """
    weights = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    known = {"layer": layer_names(module), "weights": weights, "metric": metrics}
    if found := unknown_names(callbacks, known):
        raise ConfigurationError(found)


def _default_strategy(
    communicator: Communicator, parameters: Mapping[str, torch.Tensor], shard_optimizer: bool
) -> Strategy:
    if any(is_sharded(p) for p in parameters.values()):
        from descend.train.strategies.fsdp import FSDP

        return FSDP()
    if communicator.world_size == 1:
        return Strategy()
    if shard_optimizer:
        from descend.train.strategies.zero import ZeroDataParallel

        return ZeroDataParallel()
    from descend.train.strategies.data_parallel import DataParallel

    return DataParallel()
