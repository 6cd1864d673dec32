"""A user's module while it is trained: what holds for `fit` and for `run` of a model made of a torch module."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from descend.arguments import check_instance, require
from descend.data import Batches
from descend.errors import Unsupported, warn
from descend.experiment.batch_norm import BatchNormGroups, spans_ranks
from descend.runtime.dtensor import is_sharded
from descend.torch_private import batch_norm_class
from descend.train import Callback
from descend.train.events import Event
from descend.train.module_state import modes_kept
from descend.train.patches.dropout import RANDOM_LAYERS, ReproducibleDropout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from descend.data import Feed
    from descend.experiment.module_task import ModuleTask
    from descend.runtime import Communicator
    from descend.train import EpochView, StepView
    from descend.train.micro_batch import MicroBatch
    from descend.train.strategies.buffers import RunningStatistics

__all__ = [
    "TrainingPatches",
    "WarnUnusedParameters",
    "device_of",
    "layers_with_samples_elsewhere",
    "patched_for_training",
]


class TrainingPatches(NamedTuple):
    """What the patches of a module ask of its training.

    Attributes:
        begin: Called with each micro-batch before it goes through the module.
        unit: Samples that micro-batches are made of; None where a mini-batch cannot be split.
        running: The running statistics of its batch norm layers, where each rank has groups of its own.
        in_turns: Whether groups span ranks, so that all ranks go through the module as often.
    """

    begin: Callable[[MicroBatch], None]
    unit: int | None
    running: list[RunningStatistics]
    in_turns: bool = False


def device_of(module: torch.nn.Module) -> torch.device:
    """Where the module is.

    Raises:
        ConfigurationError: it is no module.
        Unsupported: its weights are on several devices, or on none that holds numbers.
    """
    remedy = "a class must be called first" if isinstance(module, type) else ""
    require(check_instance("module", module, (torch.nn.Module,), "a torch.nn.Module", remedy=remedy))
    devices = {p.device for p in module.parameters()}
    if len(devices) > 1:
        places = ", ".join(sorted(map(str, devices)))
        raise Unsupported(f"the weights of {type(module).__name__} are on several devices ({places}); move them to one")
    device = devices.pop() if devices else torch.device("cpu")
    if device.type == "meta":
        raise Unsupported(
            f"the weights of {type(module).__name__} are on the device 'meta', which holds no numbers: call "
            "module.to_empty(device='cpu') and initialize them"
        )
    return device


def layers_with_samples_elsewhere(task: ModuleTask, feed: Feed) -> list[str]:
    """Names of the random layers whose input has the samples in another dimension than the first, as (time, samples).

    The module is run on one sample and on two, which tell the dimensions apart; empty where it cannot be.
    """
    layers = {name: part for name, part in task.module.named_modules() if type(part) in RANDOM_LAYERS}
    if not layers or not isinstance(feed, Batches) or any(map(is_sharded, task.module.parameters())):
        return []
    sizes: list[list[tuple[str, int]]] = []
    try:
        for count in (1, 2):
            rows: list[tuple[str, int]] = []
            with ExitStack() as hooks:
                for name, part in layers.items():
                    hook = part.register_forward_pre_hook(partial(_note_rows, rows, name))
                    hooks.callback(hook.remove)
                _some_samples(task, feed, count)
            sizes.append(rows)
    except Exception:  # of a user's module, which may take no batch so small
        return []
    return list({first[0]: None for first, second in zip(*sizes, strict=False) if second[1] != 2 * first[1]})


def _note_rows(rows: list[tuple[str, int]], name: str, _part: torch.nn.Module, x: tuple[Any, ...]) -> None:
    rows.append((name, len(x[0])))


def _some_samples(task: ModuleTask, feed: Batches, count: int = 1) -> None:
    """Run a module on the first sample, `count` times over, without a trace, before it is trained."""
    module, device = task.module, device_of(task.module)
    fields = feed.reader.read(np.zeros(count, dtype=np.int64))
    with modes_kept(module), torch.random.fork_rng([device] if device.type == "cuda" else []):
        module.eval()
        task.pass_through({name: torch.as_tensor(values).to(device) for name, values in fields.items()})


def _tell_of_parts_in_evaluation_mode(module: torch.nn.Module) -> None:
    """Warn of layers in evaluation mode that training puts into the other; nothing where the whole module is in it."""
    if not module.training:
        return
    before = [(name, part) for name, part in module.named_modules() if not part.training]
    if not before:
        return
    with modes_kept(module):
        module.train()  # which a module may override so that some parts stay
        named = [f"'{name}' ({type(part).__name__})" for name, part in before if part.training and _has_modes(part)]
    if named:
        others = f" and {len(named) - 1:,} more are" if len(named) > 1 else " is"
        warn(
            f"{named[0]}{others} in evaluation mode, and each epoch puts the whole module into training mode: call "
            ".eval() of parts to stay so in a callback's before_epoch, or module.eval() before the run if none are"
        )


def _has_modes(part: torch.nn.Module) -> bool:
    """Whether a layer of torch works in another way in training."""
    recurrent = isinstance(part, (torch.nn.MultiheadAttention, torch.nn.RNNBase)) and part.dropout > 0
    tracks = bool(getattr(part, "track_running_stats", False))
    return recurrent or tracks or isinstance(part, (*RANDOM_LAYERS, batch_norm_class()))


@contextmanager
def patched_for_training(
    task: ModuleTask,
    seed: int,
    feed: Feed,
    micro_batch_size: int | str | None = None,
    batch_norm_group_size: int | None = None,
    process: Communicator | None = None,
) -> Generator[TrainingPatches]:
    """Let random layers draw by sample and batch norm work by groups, and leave every part of the module as it was.

    Args:
        task: The module and its losses.
        seed: Of the run.
        feed: The training data.
        micro_batch_size: Samples that go through the module at once.
        batch_norm_group_size: Samples that share the statistics of batch norm; None for those that go through at once.
        process: This process among the ranks that train the module; None for one.
    """
    module = task.module
    _tell_of_parts_in_evaluation_mode(module)
    with modes_kept(module), ReproducibleDropout(module, seed) as masks:
        sizes = (micro_batch_size, batch_norm_group_size)
        joint = process is not None and spans_ranks(module, *sizes, feed.first_size, process.world_size)
        norms = BatchNormGroups(module, feed, *sizes, process if joint else None)

        def begin(part: MicroBatch) -> None:
            if masks.has_layers:
                masks.begin(part.step, part.count, part.draw_position)
            if norms.has_layers:
                norms.begin(part)

        try:
            if isinstance(feed, Batches):
                norms.look(partial(_some_samples, task, feed))
            yield TrainingPatches(begin, norms.unit, norms.running, joint)
        finally:
            norms.close()


# ---- warns of unused parameters: trainable, and without a gradient in the whole first epoch


class WarnUnusedParameters(Callback):
    """Warns of trainable parameters that got no gradient in the first epoch.

    Runs:  after_backward, after_epoch.
    Reads: which parameters have a gradient. Changes nothing.
    Costs: a check of each parameter in the first step, nothing once all have had a gradient.
    """

    def __init__(self) -> None:
        self._without_gradient: dict[str, torch.nn.Parameter] = {}

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step == 1:  # a resumed run has not seen all of its first epoch
            self._without_gradient = {name: p for name, p in step.module.named_parameters() if p.requires_grad}
        if self._without_gradient:
            self._without_gradient = {name: p for name, p in self._without_gradient.items() if p.grad is None}
        if not self._without_gradient:
            step.run.unsubscribe(self, Event.AFTER_BACKWARD)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self._without_gradient and epoch.samples[0] == epoch.samples[1]:
            names = ", ".join(f"'{name}'" for name in self._without_gradient)
            warn(
                f"unused parameters: {names} got no gradient in the first epoch and are not trained, because the "
                "forward pass does not use them or detaches them; freeze them with requires_grad_(False) if intended"
            )
        self._without_gradient = {}
