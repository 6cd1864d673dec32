"""`fit`: any nn.Module, any data, any optimizer. Arguments → `FitConfig` → `build_fit` → `execute_all`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from descend.arguments.strict_keywords import strict_keywords
from descend.callbacks.console import quiet
from descend.experiment.build_fit import FitBuilder
from descend.experiment.execution import assign_ranks, execute_all
from descend.experiment.fit_config import documented, fit_config
from descend.experiment.patched_module import device_of
from descend.experiment.ranks import mute_other_ranks, require_unsharded
from descend.runtime import process_group
from descend.runtime.determinism import deterministic_algorithms

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from descend.experiment.runner import Result
    from descend.graph import AutomaticMixedPrecision, TorchModel
    from descend.train import Callback, Stop, TrainingAlgorithm
    from descend.train.strategies.base import StrategyDescription
    from descend.train.strategies.majority_vote import MajorityVote
    from descend.train.strategies.parameter_server import ParameterServer
    from descend.train.transforms.base import GradientTransform

__all__ = ["device_of", "fit"]


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
