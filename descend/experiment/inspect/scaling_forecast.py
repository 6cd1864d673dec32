"""Predicts the step time of an experiment on many ranks from a measurement on one process."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from descend.callbacks.console import muted
from descend.errors import ConfigurationError
from descend.experiment.build import build_run
from descend.experiment.build_experiment import build_graph_run
from descend.experiment.runner import execute
from descend.graph import Metric
from descend.launch.cost_model import Network, Profile, fit_network, forecast
from descend.train import BatchedIterativeOptimizer, Callback, Steps
from descend.train.strategies.buckets import BUCKET_BYTES, BucketAllocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.experiment.experiment import Experiment
    from descend.train import EpochView
    from descend.train.run import Run

__all__ = ["forecast_table", "profile_of"]

_STEPS = 15  # per batch size, warm-up included
_WARM = 3
_SIZES = 4  # the batch size, and 1/2, 1/4 and 1/8 of it


class _StepTimes(Callback):
    """Records step times, and the size of the optimizer's state."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.state_bytes = self.largest_state_bytes = 0

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self.seconds += epoch.step_seconds
        each = [sum(map(_bytes, state.values())) for state in epoch.run.optimizer.state.values()]
        self.state_bytes, self.largest_state_bytes = sum(each), max(each, default=0)


def profile_of(experiment: Experiment) -> Profile:
    """Measure a few steps of several batch sizes on this process; writes no files.

    Raises:
        ConfigurationError: the experiment is wrong, or its mini-batch size is 1.
    """
    full = experiment.trainer.mini_batch_size
    sizes = sorted({max(full >> i, 1) for i in range(_SIZES)}, reverse=True)
    if len(sizes) < 2:
        raise ConfigurationError("mini_batch_size must be > 1 to be shared by ranks, got 1")
    found = [_steps(experiment, size) for size in sizes]
    # The minimum, since other programs only make a step longer.
    seconds = [min(watch.seconds[_WARM:] or watch.seconds) for watch, _ in found]
    watch, run = found[0]
    fixed, each = fit_network(sizes, seconds)
    tensors = [*run.task.module.parameters(), *run.task.module.buffers()]
    trained = [p for p in run.task.module.parameters() if p.requires_grad]
    gradients = sum(map(_bytes, trained))
    named = {name: p for name, p in run.task.module.named_parameters() if p.requires_grad}
    buckets = BucketAllocator(named, run.communicator, BUCKET_BYTES, run.say).divide(list(named))
    messages = max(len(buckets), 1)
    weights = sum(map(_bytes, tensors))
    return Profile(fixed, each, weights, gradients, messages, watch.state_bytes, watch.largest_state_bytes)


def _bytes(entry: object) -> int:
    """Of a tensor; a step count and other numbers do not count."""
    return entry.numel() * entry.element_size() if isinstance(entry, torch.Tensor) and entry.dim() else 0


def _steps(experiment: Experiment, size: int) -> tuple[_StepTimes, Run]:
    """A few steps of one batch size."""
    watch = _StepTimes()
    trainer = replace(experiment.trainer, mini_batch_size=size, random_seed=experiment.trainer.random_seed or 1)
    trainer.training_algo, trainer.callbacks = BatchedIterativeOptimizer(), []
    model = copy.copy(experiment.model)
    model.callbacks = []
    model.metrics = [metric for metric in model.metrics if isinstance(metric, Metric)]  # no programs
    with muted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = build_graph_run(replace(experiment, trainer=trainer, model=model))
        run = build_run(
            replace(made.config, algorithm=BatchedIterativeOptimizer(stop=Steps(_STEPS))),
            task=made.task,
            optimizer=made.optimizer,
            data={mode: feed for mode, feed in made.data.items() if mode.role == "train"},
            world=made.communicator,
            micro_batch_size=trainer.micro_batch_size or "auto",
            callbacks=(watch,),
        )
        execute(run)
    return watch, run


def forecast_table(profile: Profile, network: Network, batch_size: int, ranks: Sequence[int]) -> str:
    """A table with one line per number of ranks."""
    lines = [
        f"one rank: {profile.fixed_seconds * 1e3:.3g} ms a step and {profile.sample_seconds * 1e6:.3g} µs a sample, "
        f"measured; {profile.gradient_bytes:,} bytes of gradients in {profile.messages} messages",
        f"network: {network.latency_seconds * 1e6:g} µs a message, {network.bytes_per_second / 1e9:g} GB/s"
        + (", rings or trees" if network.trees else ", rings"),
        f"mini-batch: {batch_size:,} samples",
        "",
        "  ranks   ms/step   sums ms  waiting  samples/s  efficiency  worth from batch  MB/rank  MB, ZeRO 1  MB, FSDP",
    ]
    for count in ranks:
        one = forecast(profile, network, batch_size, count)
        least = f"{math.ceil(one.least_batch):,}" if math.isfinite(one.least_batch) else "never"
        lines.append(
            f"{count:7,} {one.step_seconds * 1e3:9.2f} {one.sum_seconds * 1e3:9.2f} {one.waiting:8.0%} "
            f"{one.samples_per_second:10,.0f} {one.efficiency:11.0%} {least:>17} {one.memory_bytes / 1e6:8.1f} "
            f"{one.sharded_bytes / 1e6:11.1f} {one.fully_sharded_bytes / 1e6:9.1f}"
        )
    return "\n".join(lines)
