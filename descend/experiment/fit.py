"""`fit`: any nn.Module, any data, any optimizer, through the same loop, checkpoints and checks as every other run."""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from descend.data import Batches, Loading, open_data
from descend.data.map_dataset import SampleReader
from descend.errors import ConfigurationError
from descend.experiment import rule
from descend.experiment.asynchronous import alone, check_asynchronous, execute_asynchronous
from descend.experiment.batch_norm import share_unit
from descend.experiment.losses import describe, loss_of
from descend.experiment.metrics import build_metrics
from descend.experiment.module_run import check_names
from descend.experiment.module_task import ModuleTask
from descend.experiment.patched_module import device_of, patched_for_training
from descend.experiment.population import TrainerContext, assign_ranks, execute_population, trainer_seed
from descend.experiment.precision import precision_of
from descend.experiment.ranks import mute_other_ranks, require_unsharded, unwrapped
from descend.experiment.runner import Result, Work, execute
from descend.experiment.unused_parameters import WarnUnusedParameters
from descend.graph import TorchModel
from descend.runtime import process_group
from descend.strict_keywords import strict_keywords
from descend.train import KFAC, LTFB, BatchedIterativeOptimizer, MajorityVote, Mode, ParameterServer, Stop
from descend.train.numerics import Numerics
from descend.train.patches.dropout import unsupported_dropout
from descend.train.stopping import whole
from descend.train.strategies.majority_vote import check_optimizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from descend.data import Feed
    from descend.graph import AutomaticMixedPrecision
    from descend.train import Callback, TrainingAlgorithm

__all__ = ["device_of", "fit"]


@strict_keywords(
    epochs="say stop=descend.Epochs(n)",
    max_epochs="say stop=descend.Epochs(n)",
    num_epochs="say stop=descend.Epochs(n)",
    steps="say stop=descend.Steps(n)",
    max_steps="say stop=descend.Steps(n)",
    lr="the rate is the optimizer's, as in optimizer=descend.SGD(learn_rate=0.1)",
    learn_rate="the rate is the optimizer's, as in optimizer=descend.SGD(learn_rate=0.1)",
    learning_rate="the rate is the optimizer's, as in optimizer=descend.SGD(learn_rate=0.1)",
    weight_decay="decay is the optimizer's, as in functools.partial(descend.optim.AdamW, lr=1e-3, weight_decay=0.1)",
    scheduler="a schedule is the optimizer's rate, as in functools.partial(descend.optim.SGD, lr=schedule)",
    device="a module is trained where its weights are: move it with module.to(device)",
    model="say module=",
    criterion="say loss=",
    loss_fn="say loss=",
)
def fit(
    module: torch.nn.Module | TorchModel,
    loss: Any,
    data: Any,
    *,
    optimizer: Any,
    batch_size: int | None,
    micro_batch_size: int | Literal["auto"] | None = None,
    stop: Stop,
    valid: Any = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    precision: str | AutomaticMixedPrecision = "float32",
    on_nonfinite: str = "stop",
    shuffle: bool = True,
    test: Any = None,
    metrics: Mapping[str, Any] | Iterable[str] = (),
    targets: int | Sequence[str] | None = None,
    workers: int | None = None,
    skip_bad: int = 0,
    timeout_seconds: float | None = None,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    clip_global_norm: float | None = None,
    reset_optimizer: bool = False,
    weights_only: bool = False,
    batch_norm_group_size: int | None = None,
    shard_optimizer: bool = False,
    gradient_compression: str | MajorityVote | None = None,
    asynchronous: ParameterServer | None = None,
    algorithm: TrainingAlgorithm | None = None,
    tournament: Any = None,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
) -> Result:
    """Train a module in place, on the device where its weights are.

        result = descend.fit(
            model, nn.CrossEntropyLoss(), TensorDataset(x, y),
            optimizer=functools.partial(torch.optim.AdamW, lr=1e-3), batch_size=64, stop=descend.Epochs(10),
        )

    Args:
        module: Called with the inputs of a sample; it is trained, and not otherwise changed. Of one wrapped in
            DistributedDataParallel it is the module inside, since gradients are summed here; one that `fully_shard` has
            cut up sums them by itself, and stays cut up. A model that `descend.Model.from_torch` made brings its loss,
            metrics, targets and callbacks where none are given here.
        loss: A loss module of torch, a name such as "cross_entropy", or a function (output, *targets) that returns
            (numerator, denominator) or a scalar mean over samples.
        data: What to train on: a torch Dataset or DataLoader, a tuple of tensors or arrays, a reader, a list of
            batches, an iterable, or a function that returns one. See `descend.data.torch_data`.
        optimizer: A description such as `descend.SGD(learn_rate=0.1)`, or anything that takes named parameters and
            returns a torch optimizer.
        batch_size: Samples of one update; None takes that of a DataLoader, or batches as they come.
        micro_batch_size: Samples that go through the module at once; the update does not depend on it. None or "auto"
            begins with all and halves them when memory runs out; a number stays.
        stop: When to stop, such as `descend.Epochs(10) | descend.Seconds(3600)`, counted from the beginning of the run.
        valid: Data to evaluate after each epoch.
        seed: Of the order of samples and of all random numbers of the run.
        callbacks: Who watches.
        run_dir: A new or empty directory for rows and checkpoints; None keeps no files.
        resume: Continue the newest good checkpoint of `run_dir`, or begin where there is none.
        precision: "float32" computes in the type of the weights; "bfloat16" and "float16" in these types where torch
            holds that safe, the latter with a loss scale, whose numbers a `descend.AutomaticMixedPrecision` can set.
        on_nonfinite: What a NaN or an infinity in a gradient does: "stop", "skip" (up to 10 in a row), or "allow".
        shuffle: Give each epoch an order of its own.
        test: Data to evaluate once at the end.
        metrics: What else to measure: names ("accuracy", "mse", …), or anything that can be a loss, by name.
        targets: Names of the fields that are targets, or how many of the last ones are, where that is not clear.
        workers: Processes that read samples; None is as many as a DataLoader says and otherwise 0.
        skip_bad: Replace up to so many samples that cannot be used by the next one.
        timeout_seconds: Longest wait for a batch.
        clip_value: Bound on the magnitude of each element of the gradient.
        clip_norm: Bound on the norm of each weight's gradient.
        clip_global_norm: Bound on the norm of the whole gradient.
        reset_optimizer: With `resume`, continue the checkpoint with an optimizer without state.
        weights_only: With `resume`, begin anew with those weights of the checkpoint that fit by name and shape.
        batch_norm_group_size: Samples that share the statistics of batch norm, in the order of the batch; what is left
            over is a group of its own. None is what goes through at once: the whole batch, of all ranks, or a
            micro-batch that was asked for.
        shard_optimizer: Let each of several ranks keep the optimizer's state of some weights only; the updates are the
            same. One rank keeps all.
        gradient_compression: "sign", or `descend.MajorityVote(momentum=0.9)` which it stands for: ranks send one bit
            for each element of the gradient and follow the majority; with `descend.optim.SignSGD`.
        asynchronous: `descend.ParameterServer()`: rank 0 makes an update by each gradient that another rank sends, as
            late as it comes; with `descend.optim.DCASGD` it compensates for that.
        algorithm: What is done until `stop`, such as `descend.KFAC(damping_act=0.01)`; mini-batch descent without one.
            With `descend.LTFB`, `stop` is the end of a round.
        tournament: Data on which several trainers compare their models; never trained on.
        trainers: How many train the module, each by itself but for what the algorithm exchanges; None for one a block
            of ranks. The first of this process trains `module`, each other one a copy.
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.

    Returns:
        The trained module, the history, the reason for having stopped.

    Raises:
        ConfigurationError: a setting is wrong; nothing was started.
        DataError: the data, a sample or a target is not what it should be.
        NumericalError: a gradient was not finite; everything is as it was before that step.
        StorageError: a checkpoint cannot be written or trusted.
        Stopped: a signal asked for an end; the state is saved if there is a `run_dir`.
    """
    flags = {
        "shuffle": shuffle,
        "resume": resume,
        "reset_optimizer": reset_optimizer,
        "weights_only": weights_only,
        "shard_optimizer": shard_optimizer,
    }
    seed, batch_size, micro_batch_size = whole(seed), whole(batch_size), whole(micro_batch_size)
    batch_norm_group_size = whole(batch_norm_group_size)
    _check(module, stop, callbacks, seed, micro_batch_size, batch_norm_group_size, flags)
    if isinstance(module, TorchModel):
        loss, metrics = module.loss if loss is None else loss, metrics or module.measures
        targets, callbacks = module.targets if targets is None else targets, (*module.callbacks, *callbacks)
        module = cast("torch.nn.Module", module.module)
    module = cast("torch.nn.Module", unwrapped(module))
    objective, measured = loss_of(loss), build_metrics(metrics, loss)
    compression = MajorityVote.of(gradient_compression)
    late = ParameterServer.of(asynchronous)
    doing = (algorithm or BatchedIterativeOptimizer()).until(stop)
    device = device_of(module)
    autocast, scaler = precision_of(precision, device)
    numerics = Numerics(on_nonfinite, clip_value, clip_norm, clip_global_norm, scaler)
    for part in (objective, *measured.values()):
        part.to(device)
    sources = {Mode.TRAIN: data, Mode.VALIDATION: valid, Mode.TOURNAMENT: tournament, Mode.TEST: test}
    if isinstance(doing, LTFB):
        doing.check(list(measured), [mode.role for mode, source in sources.items() if source is not None])
    with ExitStack() as stack:
        world = stack.enter_context(process_group(device))
        stack.enter_context(mute_other_ranks(world))
        shares = assign_ranks(world, trainers, procs_per_trainer, run_dir if resume else None)
        require_unsharded(module, shares.trainers)

        others = len(shares.of_rank(world.rank)) - 1  # copied while nobody trains them
        parts = iter([(module, callbacks), *(copy.deepcopy((module, callbacks)) for _ in range(others))])

        def make(seat: TrainerContext) -> Work:
            part, watching = next(parts)
            sizes = (micro_batch_size, batch_norm_group_size)
            own_seed = trainer_seed(seed, seat.number)
            check_names(part, watching, ["objective", *measured])
            made = rule.build(optimizer, part)
            _check_compression(compression, made, shard_optimizer, algorithm)
            looking = replace(numerics, scaler=copy.deepcopy(scaler))
            task = ModuleTask(part, objective, measured, targets, autocast)
            loading = Loading(
                batch_size=batch_size,
                seed=own_seed,
                shuffle=shuffle,
                rank=seat.process.rank,
                ranks=seat.process.world_size,
                workers=workers,
                skip_bad=skip_bad,
                timeout_seconds=timeout_seconds,
                unit=share_unit(part, *sizes, batch_size, seat.process.world_size),
            )
            feeds = _open(sources, loading, stack)
            _tell_of_draws(part, feeds[Mode.TRAIN], micro_batch_size, seat.process.world_size)
            training = stack.enter_context(
                patched_for_training(task, own_seed, feeds[Mode.TRAIN], *sizes, seat.process)
            )
            return Work(
                name=type(part).__name__,
                task=task,
                optimizer=made,
                data=feeds,
                process=seat.process,
                algorithm=doing,
                seed=own_seed,
                metrics=tuple(measured),
                callbacks=(*watching, WarnUnusedParameters()),
                micro_batch_size=micro_batch_size or "auto",
                unit=training.unit,
                settings={
                    **_settings(made, loading, numerics, feeds, stop, loss),
                    **({"metrics": sorted(measured)} if measured else {}),
                    "precision": precision if isinstance(precision, str) else repr(precision),
                    "micro_batch_size": micro_batch_size,
                    "batch_norm_group_size": batch_norm_group_size,
                    "algorithm": None if algorithm is None else repr(algorithm),
                    **({"gradient_compression": repr(compression)} if compression else {}),
                    **({"asynchronous": repr(late)} if late else {}),
                },
                numerics=looking,
                before_part=training.begin,
                reset_optimizer=reset_optimizer,
                weights_only=weights_only,
                running=training.running,
                in_turns=training.in_turns,
                shard_optimizer=shard_optimizer,
                compression=compression,
            )

        kept = {"keep_files": run_dir is not None or resume, "resume": resume}
        if late:
            work = make(
                TrainerContext(0, replace(world, rank=0, world_size=1, group=None))
            )  # each rank takes whole mini-batches
            check_asynchronous(late, world.world_size, shares.trainers, work, skip_bad)
            if world.world_size > 1:
                return execute_asynchronous(late, work, world, run_dir, **kept)
            return execute(alone(late, work), run_dir, **kept)
        if shares.trainers == 1:
            return execute(make(TrainerContext(0, world)), run_dir, **kept)
        return execute_population(make, shares, world, seed, run_dir, **kept)


def _check(
    module: Any,
    stop: Any,
    callbacks: Any,
    seed: Any,
    micro_batch_size: Any,
    group_size: Any,
    flags: Mapping[str, Any],
) -> None:
    """What is wrong with the settings that nobody else looks at."""
    problems: list[str] = []
    if not isinstance(module, (torch.nn.Module, TorchModel)):
        problems.append(
            f"module is a {type(module).__name__} and is to be a torch.nn.Module; a class must be called first"
        )
    if not isinstance(stop, Stop):
        problems.append(f"stop= must be a criterion such as descend.Epochs(10) and is {stop!r}")
    if not isinstance(callbacks, (list, tuple)):
        problems.append(f"callbacks is {callbacks!r} and is to be a list of callbacks")
    problems += [
        f"{name} is {value!r} and is to be True or False"
        for name, value in flags.items()
        if value is not True and value is not False
    ]
    if not _is_count(seed, 0):
        problems.append(f"seed is {seed!r} and is to be a whole number of at least 0")
    if micro_batch_size not in (None, "auto") and not _is_count(micro_batch_size, 1):
        problems.append(f"micro_batch_size is {micro_batch_size!r} and is to be a whole number above 0, None or 'auto'")
    if group_size is not None and not _is_count(group_size, 1):
        problems.append(f"batch_norm_group_size is {group_size!r} and is to be a whole number above 0, or None")
    if problems:
        raise ConfigurationError(problems)


def _check_compression(
    compression: MajorityVote | None,
    optimizer: torch.optim.Optimizer,
    shard_optimizer: bool,
    algorithm: TrainingAlgorithm | None,
) -> None:
    if compression is None:
        return
    check_optimizer(optimizer)
    if shard_optimizer:
        raise ConfigurationError("gradient_compression and shard_optimizer: SignSGD has no state to share out")
    if isinstance(algorithm, KFAC):
        raise ConfigurationError("gradient_compression: K-FAC needs the gradient itself; leave one of them out")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _open(sources: Mapping[Mode, Any], loading: Loading, stack: ExitStack) -> dict[Mode, Feed]:
    """A feed for each mode that has data; processes that read end with `stack`."""
    feeds: dict[Mode, Feed] = {}
    for mode, source in sources.items():
        if source is None and mode is not Mode.TRAIN:
            continue
        feed = feeds[mode] = open_data(source, replace(loading, role=mode.role))
        if isinstance(feed, Batches):
            for note in feed.notes:
                warnings.warn(note, stacklevel=3)
            if isinstance(feed.reader, SampleReader):
                stack.callback(feed.reader.close)
    return feeds


def _tell_of_draws(module: torch.nn.Module, feed: Feed, micro_batch_size: int | str | None, ranks: int) -> None:
    """Warn where a batch is cut and draws depend on how."""
    cut = isinstance(micro_batch_size, int) and micro_batch_size < (feed.first_size or micro_batch_size + 1)
    if (cut or ranks > 1) and (names := unsupported_dropout(module)):
        warnings.warn(
            f"what '{names[0]}' ({type(module.get_submodule(names[0])).__name__}) drops depends on micro_batch_size "
            "and on the number of ranks: its dropout is a function inside it; an nn.Dropout layer beside it draws the "
            "same whatever the cut",
            stacklevel=3,
        )


def _settings(
    optimizer: torch.optim.Optimizer,
    loading: Loading,
    numerics: Numerics,
    feeds: Mapping[Mode, Feed],
    stop: Stop,
    loss: Any,
) -> dict[str, Any]:
    """What a continuation is compared with; `changes.py` says what becomes of a difference."""
    samples = {"samples" if mode is Mode.TRAIN else f"{mode} samples": feed.num_samples for mode, feed in feeds.items()}
    return {
        **rule.settings(optimizer),
        **{name: getattr(loading, name) for name in ("batch_size", "seed", "shuffle", "skip_bad")},
        **{name: getattr(numerics, name) for name in ("on_nonfinite", "clip_value", "clip_norm", "clip_global_norm")},
        **{name: count for name, count in samples.items() if count is not None},
        "stop": repr(stop) if is_dataclass(stop) else describe(stop),
        "loss": describe(loss),
    }
