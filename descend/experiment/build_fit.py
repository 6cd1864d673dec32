"""Builds the runs of `fit`: one for each trainer of this process."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from descend.callbacks import Print, ProgressLines
from descend.callbacks.console import say
from descend.data import Batches, Loading, open_data
from descend.data.loading.map_dataset import SampleReader
from descend.data.loading.torch_data import files_of_feed
from descend.data.tensor_reader import TensorReader
from descend.errors import ConfigurationError, DataError, warn
from descend.experiment.batch_norm import share_unit
from descend.experiment.build import build_run, check_names, say_what_is_skipped
from descend.experiment.build_optimizer import build_optimizer, optimizer_settings
from descend.experiment.execution import trainer_seed
from descend.experiment.field_roles import TARGET_NAMES, check_fields, remember_classes, takes_one
from descend.experiment.losses import FunctionLoss, describe, loss_of, takes_class_numbers
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask
from descend.experiment.patched_module import (
    WarnUnusedParameters,
    device_of,
    layers_with_samples_elsewhere,
    patched_for_training,
)
from descend.experiment.ranks import unwrapped
from descend.lazy import instance_check
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.optional_classes import is_ltfb, is_phased_optimizer
from descend.train.patches.dropout import unsupported_dropout
from descend.train.precision import precision_of, require_castable
from descend.train.run import RunConfig
from descend.train.transforms.usual import usual_transforms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from descend.data import Feed
    from descend.data.files import FileReader
    from descend.experiment.fit import FitConfig
    from descend.experiment.losses import Loss
    from descend.experiment.phases import Phase
    from descend.experiment.runner import TrainerContext
    from descend.launch import TrainerLayout
    from descend.runtime import Communicator
    from descend.train import Callback
    from descend.train.run import Run
    from descend.train.transforms.base import GradientTransform, TransformChain

__all__ = ["FitBuilder"]

_is_local_tournament = instance_check("descend.callbacks.local_tournament", "LocalTournament")
_is_phase = instance_check("descend.experiment.phases", "Phase")


class FitBuilder:
    """What all trainers of a `fit` share.

    Args:
        config: What `fit` was given.

    Raises:
        ConfigurationError: a setting is wrong.

    Attributes:
        config: The same with a plain module.
        module: What is trained.
    """

    def __init__(self, config: FitConfig) -> None:
        self.config = config = config.with_model()
        self.module = cast("torch.nn.Module", unwrapped(config.module))
        self._phases = _phases_of(config.loss)
        if self._phases:
            self._objective, self._metrics = self._losses_of_phases()
        else:
            self._objective, self._metrics = loss_of(config.loss), build_metrics(config.metrics, config.loss)
        self._strategy = config.distribution.chosen()
        self._algorithm = (config.algorithm or BatchedIterativeOptimizer()).until(config.stop)
        device = device_of(self.module)
        self._autocast, self._scaler = precision_of(config.numerics.precision, device)
        require_castable(self.module, self._autocast, scaled=self._scaler is not None)
        self._transforms(config.numerics.transforms)  # finds wrong numbers now
        for part in (self._objective, *self._metrics.values()):
            part.to(device)
        by_role = config.data.by_role()
        self._sources = {mode: by_role[mode.role] for mode in (Mode.TRAIN, Mode.VALIDATION, Mode.TOURNAMENT, Mode.TEST)}
        if is_ltfb(self._algorithm):
            there = [mode.role for mode, source in self._sources.items() if source is not None]
            self._algorithm.check(list(self._metrics), there)

    def _losses_of_phases(self) -> tuple[Loss, dict[str, Loss]]:
        """The loss of the first phase; those of all and metrics by name, which are what such a run measures.

        Raises:
            ConfigurationError: something was asked for that does not go with phases.
        """
        from descend.experiment.phases import metrics_of_phases

        config = self.config
        strategy = config.distribution.chosen()
        others = {
            "algorithm": config.algorithm,
            "strategy": None if strategy is None or strategy.takes_phases else strategy,
            "shard_optimizer": config.distribution.shard_optimizer,
            "targets": config.data.targets is not None,
        }
        if asked := [name for name, value in others.items() if value]:
            raise ConfigurationError(
                f"{', '.join(asked)}: does not go with phases; leave it out"
                + ("" if "strategy" not in asked else ", or use GradientAccumulation or LocalSGD")
            )
        losses: dict[str, Loss] = {phase.name: FunctionLoss(phase.loss) for phase in self._phases}
        measured = metrics_of_phases(self._phases, config.metrics)
        return losses[self._phases[0].name], losses | {name: FunctionLoss(one) for name, one in measured.items()}

    def maker(self, stack: ExitStack, layout: TrainerLayout, world: Communicator) -> Callable[[TrainerContext], Run]:
        """What builds the run of each trainer of this process, in order; its readers and patches end with `stack`."""
        others = len(layout.of_rank(world.rank)) - 1  # copied while no trainer trains them
        own = self.module, tuple(self.config.callbacks), tuple(self.config.numerics.transforms)
        parts = iter([own, *(copy.deepcopy(own) for _ in range(others))])

        def make(context: TrainerContext) -> Run:
            module, watching, transforms = next(parts)
            return self._build(module, watching, transforms, context, layout.trainers, stack)

        return make

    def _transforms(self, own: Sequence[GradientTransform]) -> TransformChain:
        numerics = self.config.numerics
        return usual_transforms(
            numerics.on_nonfinite, numerics.clip_value, numerics.clip_norm, numerics.clip_global_norm, own
        )

    def _build(
        self,
        module: torch.nn.Module,
        callbacks: tuple[Any, ...],
        transforms: Sequence[GradientTransform],
        context: TrainerContext,
        trainers: int,
        stack: ExitStack,
    ) -> Run:
        """The run of one trainer."""
        config, batching = self.config, self.config.batching
        strategy = self._strategy
        world = context.communicator
        sharing = strategy.communicator(world) if strategy else world  # the ranks that share a mini-batch
        sizes = (batching.micro_batch_size, batching.batch_norm_group_size)
        seed = trainer_seed(config.seed, context.number)
        check_names(module, callbacks, ["objective", *self._metrics])
        optimizer = self._optimizer(module)
        loading = self._loading(module, seed, sharing)
        feeds = _open(self._sources, loading, stack)
        if context.number == 0:
            say_what_is_skipped(map(files_of_feed, feeds.values()))
        files = files_of_feed(feeds[Mode.TRAIN])
        targets = config.data.targets if config.data.targets is not None or files is None else files.target or None
        remember_classes(module, files and files.classes)
        _say_rounding(module, feeds[Mode.TRAIN], targets)
        if is_phased_optimizer(optimizer):
            from descend.experiment.phases import PhasedTask

            task = PhasedTask(module, self._phases, optimizer, self._autocast, config.metrics)
            stack.callback(optimizer.release)
        else:
            task = ModuleTask(module, self._objective, self._metrics, targets, self._autocast)
        _warn_of_draws(task, feeds[Mode.TRAIN], batching.micro_batch_size, sharing.world_size)
        self._warn_of_unused(feeds, callbacks, sharing)
        task.patch(stack.enter_context(patched_for_training(task, seed, feeds[Mode.TRAIN], *sizes, sharing)))
        options = config.options
        return build_run(
            RunConfig(
                name=type(module).__name__,
                seed=seed,
                algorithm=self._algorithm,
                settings=self._settings(optimizer, loading, feeds),
                metrics=tuple(self._metrics),
                resume=options.resume,
                reset_optimizer=options.reset_optimizer,
                weights_only=options.weights_only,
                check_ranks=options.check_ranks,
                say=say,
            ),
            task=task,
            optimizer=optimizer,
            data=feeds,
            world=world,
            strategy=strategy,
            transforms=self._transforms(transforms),
            scaler=copy.deepcopy(self._scaler),
            micro_batch_size=batching.micro_batch_size or "auto",
            callbacks=(*callbacks, *self._lines(callbacks, trainers), WarnUnusedParameters()),
            shard_optimizer=config.distribution.shard_optimizer,
            trainers=trainers,
            store=context.store,
        )

    def _optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the run, or those of its phases as one."""
        if not self._phases:
            return build_optimizer(self.config.optimizer, module)
        from descend.experiment.phases import build_phased_optimizer

        return build_phased_optimizer(self._phases, self.config.optimizer, module)

    def _lines(self, callbacks: tuple[Any, ...], trainers: int) -> tuple[ProgressLines, ...]:
        """The line an epoch of a run that prints none otherwise; nothing would tell those of several trainers apart."""
        prints = any(isinstance(callback, (Print, ProgressLines)) for callback in callbacks)
        return (ProgressLines(),) if self.config.verbose and trainers == 1 and not prints else ()

    def _warn_of_unused(self, feeds: Mapping[Mode, Feed], callbacks: Sequence[Callback], sharing: Communicator) -> None:
        """Warn of arguments that nothing in this run uses."""
        data, reader = self.config.data, getattr(feeds[Mode.TRAIN], "reader", None)
        given = {"workers": data.workers, "skip_bad": data.skip_bad, "timeout_seconds": data.timeout_seconds}
        unused = [f"{name}={value}" for name, value in given.items() if value]
        if unused and isinstance(reader, TensorReader):
            warn(f"{', '.join(unused)} has no effect: the training data are tensors in memory, which need no reading")
        others = any(not type(callback).__module__.startswith("descend.") for callback in callbacks)
        plays = is_ltfb(self._algorithm) or any(_is_local_tournament(callback) for callback in callbacks)
        looked_at = (
            others or plays or any(Mode.TOURNAMENT in getattr(callback, "looks_at", ()) for callback in callbacks)
        )
        if Mode.TOURNAMENT in feeds and not looked_at:
            warn("tournament= has no effect: these samples are for algorithm=descend.LTFB(...), and nothing reads them")
        if self.config.distribution.shard_optimizer and sharing.world_size == 1:
            warn("shard_optimizer=True has no effect: this run has one rank, which keeps all of the optimizer's state")

    def _loading(self, module: torch.nn.Module, seed: int, sharing: Communicator) -> Loading:
        """How the data are read."""
        data, batching = self.config.data, self.config.batching
        sizes = (batching.micro_batch_size, batching.batch_norm_group_size)
        targets = data.targets if not isinstance(data.targets, int) else None
        return Loading(
            batch_size=batching.batch_size,
            seed=seed,
            shuffle=data.shuffle,
            sampler=data.sampler,
            rank=sharing.rank,
            ranks=sharing.world_size,
            workers=data.workers,
            skip_bad=data.skip_bad,
            timeout_seconds=data.timeout_seconds,
            unit=share_unit(module, *sizes, batching.batch_size, sharing.world_size),
            targets=tuple([targets] if isinstance(targets, str) else targets or ()),
            class_targets=TARGET_NAMES if takes_class_numbers(self._objective) else (),
            module=module,
            pin_memory=sharing.device.type == "cuda",
        )

    def _settings(
        self, optimizer: torch.optim.Optimizer, loading: Loading, feeds: Mapping[Mode, Feed]
    ) -> dict[str, Any]:
        """What a continuation is compared with; `resume.py` says what becomes of a difference."""
        config, numerics, batching = self.config, self.config.numerics, self.config.batching
        counts = {mode: feed.num_samples for mode, feed in feeds.items() if feed.num_samples is not None}
        precision, sampler = numerics.precision, getattr(feeds[Mode.TRAIN], "sampler", None)
        return {
            **optimizer_settings(optimizer),
            **{name: getattr(loading, name) for name in ("batch_size", "seed", "shuffle", "skip_bad")},
            "on_nonfinite": numerics.on_nonfinite,
            "clip_value": numerics.clip_value,
            "clip_norm": numerics.clip_norm,
            "clip_global_norm": numerics.clip_global_norm,
            **{"samples" if mode is Mode.TRAIN else f"{mode} samples": count for mode, count in counts.items()},
            "stop": repr(config.stop) if is_dataclass(config.stop) else describe(config.stop),
            "loss": [str(phase) for phase in self._phases] or describe(config.loss),
            **({"metrics": sorted(self._metrics)} if self._metrics else {}),
            **(
                {"classes": dict(files.classes)}
                if (files := files_of_feed(feeds[Mode.TRAIN])) and files.classes
                else {}
            ),
            "precision": precision if isinstance(precision, str) else repr(precision),
            "micro_batch_size": batching.micro_batch_size,
            "batch_norm_group_size": batching.batch_norm_group_size,
            "algorithm": None if config.algorithm is None else repr(config.algorithm),
            **({"sampler": repr(sampler)} if sampler is not None else {}),
            **({"strategy": repr(self._strategy)} if self._strategy else {}),
            **({"transforms": [describe(one) for one in numerics.transforms]} if numerics.transforms else {}),
        }


def _phases_of(loss: Any) -> tuple[Phase, ...]:
    """The phases where the loss is a list of them."""
    if not any(map(_is_phase, loss if isinstance(loss, (list, tuple)) else [loss])):
        return ()
    from descend.experiment.phases import phases_of

    return phases_of(loss)


def _open(sources: Mapping[Mode, Any], loading: Loading, stack: ExitStack) -> dict[Mode, Feed]:
    """A feed for each mode that has data; processes that read end with `stack`."""
    feeds: dict[Mode, Feed] = {}
    for mode, source in sources.items():
        if source is None and mode is not Mode.TRAIN:
            continue
        feed = feeds[mode] = open_data(source, replace(loading, role=mode.role))
        if mode is Mode.TRAIN and (files := files_of_feed(feed)):  # the same numbers in all roles
            loading = replace(loading, classes=files.classes, targets=loading.targets or files.target)
        if isinstance(feed, Batches):
            for note in feed.notes:
                warn(note)
            if isinstance(feed.reader, SampleReader):
                stack.callback(feed.reader.close)
    known = _fields(feeds[Mode.TRAIN])
    for mode, feed in feeds.items():  # of other feeds they are known when they are read
        if known and (found := _fields(feed)):
            check_fields(found, known, f"the data for '{mode.role}'")
    _check_channels({mode: files_of_feed(feed) for mode, feed in feeds.items()})
    return feeds


def _check_channels(readers: Mapping[Mode, FileReader | None]) -> None:
    """Check that images of all roles have as many channels, where the roles are read from different places."""
    if (train := readers[Mode.TRAIN]) is None:
        return
    for mode, reader in readers.items():
        if reader is None:
            continue
        for name in sorted(reader.pixels & train.pixels):
            own, wanted = reader.fields[name].shape[0], train.fields[name].shape[0]
            if own != wanted:
                raise DataError(
                    f"the images '{name}' must have the channels that those for 'train' have, {wanted}, got {own} for "
                    f"'{mode.role}': read both by descend.data.read(..., colors='rgb'), or 'grey'"
                )


def _fields(feed: Feed) -> tuple[str, ...]:
    """Names of the fields of a feed whose reader knows them."""
    reader = getattr(feed, "reader", None)
    return reader.names if isinstance(reader, TensorReader) else tuple(getattr(reader, "fields", ()))


def _say_rounding(module: torch.nn.Module, feed: Feed, targets: Any) -> None:
    """Say which columns of integers are rounded where they are joined to one input, in the type of the weights."""
    reader: Any = files_of_feed(feed) or getattr(feed, "reader", None)
    largest: Mapping[str, int] = getattr(reader, "largest", {})
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    exact = round(2 / torch.finfo(kind).eps)
    rounded = [name for name, most in largest.items() if most > exact]
    if not rounded:
        return
    left_out = (
        targets if isinstance(targets, (list, tuple)) else (targets,) if isinstance(targets, str) else TARGET_NAMES
    )
    first = reader.read(np.zeros(1, np.int64))
    given = {name: np.asarray(value) for name, value in first.items() if name not in left_out}
    if any(value.dtype.kind not in "biufc" for value in given.values()):  # text, of which the first batch tells
        return
    inputs = {name: torch.as_tensor(value) for name, value in given.items()}
    rounded = [name for name in rounded if name in inputs]
    if rounded and takes_one(module, list(inputs), inputs):
        listed = ", ".join(f"'{name}' up to {largest[name]:,}" for name in rounded[:5])
        say(
            f"rounded: integers beyond {exact:,} are not all numbers of {str(kind).removeprefix('torch.')}, in which "
            f"columns are joined ({listed}): leave out columns that only name samples, by fields=[...] of "
            "descend.data.read, or normalize them"
        )


def _warn_of_draws(task: ModuleTask, feed: Feed, micro_batch_size: int | str | None, ranks: int) -> None:
    """Warn where a batch is cut and draws depend on how."""
    cut = isinstance(micro_batch_size, int) and micro_batch_size < (feed.first_size or micro_batch_size + 1)
    if not cut and ranks == 1:
        return
    for names, why in (
        (unsupported_dropout(task.module), "its dropout is a function inside it"),
        (layers_with_samples_elsewhere(task, feed), "its input does not have the samples in its first dimension"),
    ):
        if names:
            warn(
                f"what '{names[0]}' ({type(task.module.get_submodule(names[0])).__name__}) drops depends on "
                f"micro_batch_size and on the number of ranks: {why}; an nn.Dropout layer of (samples, ...) draws the "
                "same whatever the split"
            )
