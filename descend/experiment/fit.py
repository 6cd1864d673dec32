"""`fit`: any nn.Module, any data, any optimizer. Arguments → `FitConfig` → `build_fit` → `execute_all`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from descend.arguments import check_bool, check_instance, check_integer, require, together
from descend.arguments.strict_keywords import strict_keywords
from descend.callbacks.console import quiet
from descend.data.samplers import as_sampler
from descend.experiment.build import strategy_of
from descend.experiment.build_fit import FitBuilder
from descend.experiment.execution import assign_ranks, execute_all
from descend.experiment.field_roles import checked_targets
from descend.experiment.patched_module import device_of
from descend.experiment.ranks import mute_other_ranks, require_unsharded
from descend.experiment.runner import RunOptions
from descend.lazy import instance_check
from descend.runtime import process_group
from descend.runtime.seeds import deterministic_algorithms
from descend.train import Stop, TrainingAlgorithm
from descend.train.stopping import whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import TypeIs

    from descend.experiment.runner import Result
    from descend.graph import AutomaticMixedPrecision, Optimizer, TorchModel
    from descend.train import Callback
    from descend.train.strategies.base import StrategyDescription
    from descend.train.strategies.majority_vote import MajorityVote
    from descend.train.strategies.parameter_server import ParameterServer
    from descend.train.transforms.base import GradientTransform

__all__ = ["FitConfig", "device_of", "fit", "fit_config"]


# ---- the arguments of `fit`, as values in groups; `build_fit.py` builds the run from these

_is_torch_model: Callable[[object], TypeIs[TorchModel]] = instance_check("descend.graph.torch_model", "TorchModel")
_is_description: Callable[[object], TypeIs[Optimizer]] = instance_check("descend.graph.optimizers", "Optimizer")


@dataclass(frozen=True)
class FitData:
    """The data of a run.

    Attributes:
        data: What to train on: a torch Dataset or DataLoader, a tuple of tensors or arrays, a reader, a list of
            batches, an iterable, or a function that returns one. See `descend.data.loading.torch_data`. A dictionary by
            role, `{"train": ..., "validation": ...}` or as `descend.data.split` makes it, has the others as well.
        valid: Data to evaluate after each epoch.
        test: Data to evaluate once at the end.
        tournament: Data on which several trainers compare their models; never trained on.
        targets: Names of the fields that are targets, or how many of the last ones are, where that is not clear.
        shuffle: Give each epoch an order of its own.
        sampler: Which training sample is at each position of an epoch, in place of `shuffle`:
            `descend.WeightedSampler(weights)`, `descend.ClassBalancedSampler(labels)`, a `descend.Sampler` of your own,
            or a function (seed, epoch, positions) that returns numbers of samples. None is each sample once.
        workers: Processes that read samples; None is as many as a DataLoader says and otherwise 0.
        skip_bad: Replace up to so many samples that cannot be used by the next one.
        timeout_seconds: Longest wait for a batch.
    """

    data: Any
    valid: Any = None
    test: Any = None
    tournament: Any = None
    targets: int | Sequence[str] | None = None
    shuffle: bool = True
    sampler: Any = None
    workers: int | None = None
    skip_bad: int = 0
    timeout_seconds: float | None = None

    def by_role(self) -> dict[str, Any]:
        """The data of each role; those of a dictionary that `descend.data.split` made are in it.

        Raises:
            ConfigurationError: a role has two data sets, or nothing is there to train on.
        """
        given = {"train": self.data, "validate": self.valid, "test": self.test, "tournament": self.tournament}
        if not isinstance(self.data, Mapping):
            return given
        from descend.data.splits import data_of_roles

        if (parts := data_of_roles(self.data)) is None:
            return given
        arguments = {"validate": "valid", "test": "test", "tournament": "tournament"}
        require(
            [
                f"data has the role '{role}', and {name}= is given as well; remove one of them"
                for role, name in arguments.items()
                if role in parts and given[role] is not None
            ],
            [] if "train" in parts else [f"data has the roles {', '.join(parts)} and none is 'train'"],
            where="fit",
        )
        return {**given, "train": None, **parts}


@dataclass(frozen=True)
class FitBatching:
    """How mini-batches go through the module.

    Attributes:
        batch_size: Samples of one update; None takes that of a DataLoader, or batches as they come.
        micro_batch_size: Samples that go through the module at once; the update does not depend on it. None or "auto"
            begins with all and halves them when memory runs out; a number stays.
        batch_norm_group_size: Samples that share the statistics of batch norm, in the order of the batch; what is left
            over is a group of its own. None is what goes through at once: the whole batch, of all ranks, or a
            micro-batch that was asked for.
    """

    batch_size: int | None
    micro_batch_size: int | Literal["auto"] | None = None
    batch_norm_group_size: int | None = None


@dataclass(frozen=True)
class FitNumerics:
    """Precision, and what happens to gradients.

    Attributes:
        precision: "float32" computes in the type of the weights; "bfloat16" and "float16" in these types where torch
            holds that safe, the latter with a loss scale, whose numbers a `descend.AutomaticMixedPrecision` can set.
        on_nonfinite: What a NaN or an infinity in a gradient does: "stop", "skip" (up to 10 in a row), or "allow".
        clip_value: Bound on the magnitude of each element of the gradient.
        clip_norm: Bound on the norm of each weight's gradient.
        clip_global_norm: Bound on the norm of the whole gradient.
        transforms: Instances of `descend.GradientTransform`, called in this order on the gradient of the whole batch,
            after the finite check and before clipping. Their state is in the checkpoint. Several trainers have copies.
    """

    precision: str | AutomaticMixedPrecision = "float32"
    on_nonfinite: str = "stop"
    clip_value: float | None = None
    clip_norm: float | None = None
    clip_global_norm: float | None = None
    transforms: Sequence[GradientTransform] = ()


@dataclass(frozen=True)
class FitDistribution:
    """Ranks.

    Attributes:
        strategy: Where parameters are and how ranks communicate. "auto" is a single device, data parallelism on several
            ranks, and FSDP for a sharded module. `descend.MajorityVote()` sends one bit for each element of the
            gradient and follows the majority, with `descend.optim.SignSGD`. `descend.ParameterServer()`: rank zero
            makes an update by each gradient that another rank sends, however stale; with `descend.optim.DCASGD` it
            compensates for that. `descend.LocalSGD(steps=8)` averages parameters after so many steps of each rank.
        shard_optimizer: Let each rank keep the optimizer's state of some parameters only; the updates are the same.
        gradient_compression: "sign" is `strategy=descend.MajorityVote()`.
        asynchronous: `descend.ParameterServer()`, which can be given as `strategy` as well.
    """

    strategy: StrategyDescription | str | None = None
    shard_optimizer: bool = False
    gradient_compression: str | MajorityVote | None = None
    asynchronous: ParameterServer | None = None

    def chosen(self) -> StrategyDescription | None:
        """The one strategy that was asked for; None for the usual one.

        Raises:
            ConfigurationError: there are several, or one is not a strategy.
        """
        wanted: dict[str, Any] = {"strategy": self.strategy}
        if self.gradient_compression is not None:
            from descend.train.strategies.majority_vote import MajorityVote

            wanted["gradient_compression"] = MajorityVote.of(self.gradient_compression)
        if self.asynchronous is not None:
            from descend.train.strategies.parameter_server import ParameterServer

            wanted["asynchronous"] = ParameterServer.of(self.asynchronous)
        return strategy_of(wanted)


@dataclass(frozen=True)
class FitConfig:
    """Everything that `fit` is given.

    Attributes:
        module: Called with the inputs of a sample; it is trained, and not otherwise changed. Of one wrapped in
            DistributedDataParallel it is the module inside, since gradients are all-reduced here; one that
            `fully_shard` has sharded reduces them by itself, and stays sharded. A model that
            `descend.Model.from_torch` made brings its loss, metrics, targets and callbacks where none are given here.
        loss: A loss module of torch, a name such as "cross_entropy", or a function (output, *targets) that returns
            (numerator, denominator) or a scalar mean over samples. Or a list of `descend.Phase`: several losses over
            parts of the module, each with an optimizer, whose updates alternate.
        optimizer: A description such as `descend.SGD(learn_rate=0.1)`, or anything that takes named parameters and
            returns a torch optimizer.
        stop: When to stop, such as `descend.Epochs(10) | descend.Seconds(3600)`, counted from the beginning of the run.
        seed: Of the order of samples and of all random numbers of the run.
        callbacks: Called at the moments of the run, in this order.
        metrics: What else to measure: names ("accuracy", "mse", …), or anything that can be a loss, by name.
        algorithm: What is done until `stop`, such as `descend.KFAC(damping_act=0.01)`; mini-batch descent without one.
            With `descend.LTFB`, `stop` is the end of a round.
        verbose: Print a line an epoch, and on a terminal a progress bar; `descend.Print` among the callbacks prints its
            own lines instead. False prints nothing but warnings; what callbacks say is then in `log.txt` alone.
        data: See `FitData`.
        batching: See `FitBatching`.
        numerics: See `FitNumerics`.
        distribution: See `FitDistribution`.
        options: Where the run is kept, and the trainers.
    """

    module: torch.nn.Module | TorchModel
    loss: Any
    optimizer: Any
    stop: Stop
    seed: int
    callbacks: Sequence[Callback]
    metrics: Mapping[str, Any] | Iterable[str]
    algorithm: TrainingAlgorithm | None
    verbose: bool
    data: FitData
    batching: FitBatching
    numerics: FitNumerics
    distribution: FitDistribution
    options: RunOptions

    def with_model(self) -> FitConfig:
        """The same with a plain module, and with what a `Model.from_torch` brings where none is given here."""
        model = self.module
        if not _is_torch_model(model):
            return self
        targets = model.targets if self.data.targets is None else self.data.targets
        return replace(
            self,
            module=cast("torch.nn.Module", model.module),
            loss=model.loss if self.loss is None else self.loss,
            metrics=self.metrics or model.measures,
            callbacks=(*model.callbacks, *self.callbacks),
            data=replace(self.data, targets=targets),
        )


def fit_config(**given: Any) -> FitConfig:
    """The arguments of `fit` in their groups.

    Raises:
        ConfigurationError: all arguments that are wrong by themselves.
    """
    with together():
        for name in ("seed", "batch_size", "micro_batch_size", "batch_norm_group_size"):
            given[name] = whole(given[name])
        flags = ("verbose", "shuffle", "resume", "reset_optimizer", "weights_only", "shard_optimizer")
        flags = (*flags, "deterministic", "check_ranks")
        require(
            []
            if _is_torch_model(given["module"])
            else check_instance(
                "module",
                given["module"],
                torch.nn.Module,
                "a torch.nn.Module",
                remedy="a class must be called first" if isinstance(given["module"], type) else "",
            ),
            check_instance("stop=", given["stop"], Stop, "a criterion such as descend.Epochs(10)"),
            check_instance("callbacks", given["callbacks"], (list, tuple), "a list, such as [descend.EMA()]"),
            check_instance("transforms", given["transforms"], (list, tuple), "a list of gradient transforms"),
            check_instance(
                "algorithm", given["algorithm"], TrainingAlgorithm, "an algorithm such as descend.KFAC()", also=(None,)
            ),
            [check_bool(name, given[name]) for name in flags],
            given["optimizer"].problems() if _is_description(given["optimizer"]) else [],
            check_integer("seed", given["seed"], 0),
            check_integer("batch_size", given["batch_size"], 1, also=(None,)),
            check_integer("micro_batch_size", given["micro_batch_size"], 1, also=(None, "auto")),
            check_integer("batch_norm_group_size", given["batch_norm_group_size"], 1, also=(None,)),
        )
        given["targets"] = checked_targets(given["targets"])
        given["sampler"] = as_sampler(given["sampler"])
        keep_files = given["run_dir"] is not None or given["resume"]
        groups: dict[str, Any] = {
            "data": _taken(FitData, given),
            "batching": _taken(FitBatching, given),
            "numerics": _taken(FitNumerics, given),
            "distribution": _taken(FitDistribution, given),
            "options": _taken(RunOptions, {**given, "keep_files": keep_files, "working_dir": None}),
        }
        own = ("module", "loss", "optimizer", "stop", "seed", "callbacks", "metrics", "algorithm", "verbose")
        return FitConfig(**{name: given[name] for name in own}, **groups)


def _taken(group: Any, given: Mapping[str, Any]) -> Any:
    """The arguments of one group."""
    return group(**{entry.name: given[entry.name] for entry in fields(group)})


def documented(function: Any) -> Any:
    """Add the descriptions of all arguments to the docstring of a function that takes them."""
    arguments: list[str] = []
    for group in (FitConfig, FitData, FitBatching, FitNumerics, FitDistribution, RunOptions):
        _, _, text = (group.__doc__ or "").partition("Attributes:\n")
        kept = text.rstrip().split("\n        ")
        arguments += [line for line in _entries(kept) if ": See `Fit" not in line and not line.startswith("options: ")]
    text = "\n".join(f"        {argument}" for argument in arguments)
    function.__doc__ = (function.__doc__ or "").replace("    Returns:", f"    Args:\n{text}\n\n    Returns:")
    return function


def _entries(lines: Sequence[str]) -> list[str]:
    """Lines that belong together, one entry each."""
    found: list[str] = []
    for line in lines:
        if line.startswith("    ") and found:
            found[-1] += f"\n        {line}"
        elif line.strip():
            found.append(line.strip())
    return found


@strict_keywords(
    loss="'cross_entropy'",
    optimizer="functools.partial(descend.optim.AdamW, lr=1e-3)",
    batch_size="64",
    stop="descend.Epochs(10)",
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
@documented
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
    sampler: Any = None,
    test: Any = None,
    metrics: Mapping[str, Any] | Iterable[str] = (),
    targets: int | Sequence[str] | None = None,
    workers: int | None = None,
    skip_bad: int = 0,
    timeout_seconds: float | None = None,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    clip_global_norm: float | None = None,
    transforms: Sequence[GradientTransform] = (),
    deterministic: bool = False,
    check_ranks: bool = True,
    reset_optimizer: bool = False,
    weights_only: bool = False,
    batch_norm_group_size: int | None = None,
    shard_optimizer: bool = False,
    strategy: StrategyDescription | str | None = None,
    gradient_compression: str | MajorityVote | None = None,
    asynchronous: ParameterServer | None = None,
    algorithm: TrainingAlgorithm | None = None,
    tournament: Any = None,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
    verbose: bool = True,
) -> Result:
    """Train a module in place, on the device where its weights are.

        result = descend.fit(
            model, nn.CrossEntropyLoss(), TensorDataset(x, y),
            optimizer=functools.partial(torch.optim.AdamW, lr=1e-3), batch_size=64, stop=descend.Epochs(10),
        )

    Returns:
        The trained module, the history, the reason for having stopped.

    Raises:
        ConfigurationError: a setting is wrong; nothing was started.
        DataError: the data, a sample or a target is not what it should be.
        NumericalError: a gradient was not finite; everything is as it was before that step.
        StorageError: a checkpoint cannot be written or trusted.
        Stopped: a signal asked it to stop; the state is saved if there is a `run_dir`.
    """
    builder = FitBuilder(fit_config(**locals()))
    options, module = builder.config.options, builder.module
    with ExitStack() as stack:
        stack.enter_context(deterministic_algorithms(builder.config.options.deterministic))
        if not builder.config.verbose:
            stack.enter_context(quiet())
        world = stack.enter_context(process_group(device_of(module)))
        stack.enter_context(mute_other_ranks(world))
        layout = assign_ranks(world, options.trainers, options.procs_per_trainer, options.continued)
        require_unsharded(module, layout.trainers)
        make = builder.maker(stack, layout, world)
        return execute_all(make, layout, world, builder.config.seed, options)
