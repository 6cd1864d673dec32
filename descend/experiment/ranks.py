"""A run on several ranks: all begin alike, and the first one alone prints, records and owns the run directory."""

from __future__ import annotations

import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks.output import muted
from descend.errors import ConfigurationError, Unsupported
from descend.graph import BatchNormalization, EntrywiseBatchNormalization
from descend.train.statistics import Running

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.data import Batch
    from descend.experiment.conduct import Work
    from descend.graph import Plan
    from descend.runtime import Process

__all__ = ["begin_alike", "behind_the_first", "running_of", "silent", "unwrapped"]


def unwrapped(module: Any) -> Any:
    """The module that a wrapper of torch for several ranks holds, since the ranks' gradients are summed here.

    Raises:
        Unsupported: its weights are cut up among ranks, as fully_shard does.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return module.module
    library = sys.modules.get("torch.distributed.tensor")  # importing it takes a second, and who needs it has done so
    cut = [name for name, p in _parameters(module) if library and isinstance(p, library.DTensor)]
    if cut:
        raise Unsupported(
            f"'{cut[0]}' of {type(module).__name__} is a DTensor, cut up among ranks by fully_shard or a mesh; hand in "
            "the module before that, with shard_optimizer=True to share out the optimizer's state"
        )
    return module


def _parameters(module: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return list(module.named_parameters()) if isinstance(module, torch.nn.Module) else []


@contextmanager
def silent(process: Process) -> Generator[None]:
    """On all ranks but the first, neither lines nor warnings reach the user."""
    if process.first:
        yield
        return
    with muted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def behind_the_first() -> Generator[Path]:
    """A folder for what callbacks write on a rank that leaves no files; it is thrown away."""
    with tempfile.TemporaryDirectory(prefix="descend-rank-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def begin_alike(work: Work) -> None:
    """Compare what the ranks are about to do, and give all of them the weights and buffers of the first.

    Raises:
        ConfigurationError: a mini-batch cannot be shared among ranks, or the ranks are set to do different things.
    """
    process, module = work.process, work.task.module
    if process.ranks == 1:
        return
    process.require_same(_facts(work), "the settings of the run")
    if work.unit is None:
        raise ConfigurationError(
            f"{process.ranks} ranks share each mini-batch, and a layer of this model works on all of it: for batch "
            "norm declare how many samples share statistics, as in batch_norm_group_size=64, or start one rank"
        )
    process.copy_from(0, [*module.parameters(), *module.buffers()])


def _facts(work: Work) -> dict[str, Any]:
    """What has to be the same on all ranks."""
    tensors: dict[str, torch.Tensor] = {
        **dict(work.task.module.named_parameters()),
        **dict(work.task.module.named_buffers()),
    }
    forms = {f"weights '{name}'": f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
    sizes = {
        f"{mode} samples, batches, batch sizes": (feed.num_samples, feed.steps_per_epoch, feed.first_size)
        for mode, feed in work.data.items()
    }
    return {**work.settings, **sizes, **forms}


def running_of(plan: Plan) -> list[Running]:
    """The running statistics of a graph, by the names of its weights."""
    unit = plan.batch_norm_group_size

    def groups(batch: Batch) -> int:
        return -(-len(batch.ids) // unit) if unit else 1

    found: list[Running] = []
    for planned in plan.layers:
        layer = planned.layer
        if isinstance(layer, BatchNormalization):
            found.append(Running(tuple(planned.weights[2:4]), float(layer.setting("decay")), None, groups))
        elif isinstance(layer, EntrywiseBatchNormalization):
            found.append(Running(tuple(planned.weights[:2]), float(layer.decay), None, groups))
    return found
