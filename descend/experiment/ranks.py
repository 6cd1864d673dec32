"""A run on several ranks: all begin alike, and the first one alone prints, records and owns the run directory."""

from __future__ import annotations

import tempfile
import warnings
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks.console import muted
from descend.errors import ConfigurationError
from descend.graph import BatchNormalization, EntrywiseBatchNormalization
from descend.runtime.dtensor import copy_into, full_tensor, is_sharded, mesh_size
from descend.train import KFAC
from descend.train.strategies.buffers import RunningStatistics
from descend.train.strategies.fsdp import require_fsdp, reshard

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.data import Batch
    from descend.experiment.runner import Work
    from descend.graph import Plan
    from descend.runtime import Communicator

__all__ = [
    "compare",
    "mute_other_ranks",
    "require_same_configuration",
    "require_unsharded",
    "running_of",
    "scratch_directory",
    "unwrapped",
]


def unwrapped(module: Any) -> Any:
    """The module that DistributedDataParallel holds, since the ranks' gradients are summed here; any other as it is.

    Raises:
        Unsupported: its weights are cut up among ranks in another way than by fully_shard.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        # A forward pass without a backward pass has left its hooks waiting for one, and they would take part in ours.
        module.reducer._reset_state()  # pyright: ignore[reportPrivateUsage]  # there is no other way to say so
        _outlive_reducer(module)
        return module.module
    if isinstance(module, torch.nn.Module):
        reshard(module)
        require_fsdp(module)
    return module


def _outlive_reducer(module: torch.nn.parallel.DistributedDataParallel) -> None:
    """Keep the wrapper's process group until after its reducer is gone.

    Where the reducer is the last to hold a group, as it is once the group was left, torch takes the group down with
    Python's lock held and waits for its threads, and a thread that lets go of its last tensor waits for that lock.
    """
    weakref.finalize(module.reducer, _let_go, module.process_group).atexit = False


def _let_go(group: object) -> None:
    """Nothing but the end of a reference, which gives Python's lock away while the group is taken down."""


def require_unsharded(module: torch.nn.Module, trainers: int) -> None:
    """Refuse several trainers of a module that is cut up among ranks.

    Raises:
        ConfigurationError: it is.
    """
    if trainers > 1 and any(is_sharded(p) for p in module.parameters()):
        raise ConfigurationError(
            f"{type(module).__name__} was cut up by fully_shard, and {trainers} trainers need a whole module each: "
            "hand in the module before that, or start one trainer"
        )


@contextmanager
def mute_other_ranks(process: Communicator) -> Generator[None]:
    """On all ranks but the first, neither lines nor warnings reach the user."""
    if process.is_rank_zero:
        yield
        return
    with muted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def scratch_directory() -> Generator[Path]:
    """A folder for what callbacks write on a rank that leaves no files; it is thrown away."""
    with tempfile.TemporaryDirectory(prefix="descend-rank-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def require_same_configuration(work: Work) -> None:
    """Compare what the ranks are about to do, and give all of them the weights and buffers of the first.

    Raises:
        ConfigurationError: a mini-batch cannot be shared among ranks, or the ranks are set to do different things.
    """
    process, module = work.process, work.task.module
    _check_cut(work)
    if process.world_size == 1:
        return
    compare(work, process)
    if work.unit is None and not work.in_turns:
        raise ConfigurationError(
            f"{process.world_size} ranks share each mini-batch, and a layer of this model works on all of it: for "
            "batch norm declare how many samples share statistics, as in batch_norm_group_size=64, or start one rank"
        )
    tensors = [*module.parameters(), *module.buffers()]
    process.broadcast(0, [tensor for tensor in tensors if not is_sharded(tensor)])
    for tensor in (tensor for tensor in tensors if is_sharded(tensor)):
        values = full_tensor(tensor)
        process.broadcast(0, [values])
        copy_into(tensor, values)


def _check_cut(work: Work) -> None:
    """Refuse what does not go together with weights that are cut up among ranks.

    Raises:
        ConfigurationError: all that does not.
    """
    cut = next((p for p in work.task.module.parameters() if is_sharded(p)), None)
    if cut is None:
        return
    problems: list[str] = []
    if (size := mesh_size(cut)) != work.process.world_size:
        problems.append(
            f"its mesh has {size} ranks, and {work.process.world_size} train it; let the mesh hold all of them"
        )
    if work.shard_optimizer:
        problems.append("shard_optimizer=True: the optimizer's state is cut up as the weights are; leave it out")
    if work.compression is not None:
        problems.append("gradient_compression: the signs of a gradient are not there before it has been summed")
    if isinstance(work.algorithm, KFAC):
        problems.append("K-FAC needs the whole weights and gradients of each layer")
    if work.numerics.scaler is not None:
        problems.append("precision='float16' scales the loss, which each rank would do for itself; take 'bfloat16'")
    problems += _needs_whole(work.optimizer)
    if problems:
        what = f"{type(work.task.module).__name__} was cut up by fully_shard"
        raise ConfigurationError([f"{what}, and {problem}" for problem in problems])


def _needs_whole(optimizer: torch.optim.Optimizer) -> list[str]:
    rules = {type(rule).__name__: rule for rule in (group.get("rule") for group in optimizer.param_groups)}
    return [
        f"{name} needs whole matrices; choose a rule that works by elements, or SGD for these weights"
        for name, rule in rules.items()
        if getattr(rule, "whole_tensor", False)
    ]


def compare(work: Work, process: Communicator) -> None:
    """Compare what the ranks are about to do.

    Args:
        work: What this rank is.
        process: This process among those that are compared.

    Raises:
        ConfigurationError: they are set to do different things.
    """
    process.require_equal(_facts(work), "the settings of the run")


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


def running_of(plan: Plan) -> list[RunningStatistics]:
    """The running statistics of a graph, by the names of its weights."""
    unit = plan.batch_norm_group_size

    def groups(batch: Batch) -> int:
        return -(-len(batch.ids) // unit) if unit else 1

    found: list[RunningStatistics] = []
    for planned in plan.layers:
        layer = planned.layer
        if isinstance(layer, BatchNormalization):
            found.append(RunningStatistics(tuple(planned.weights[2:4]), float(layer.setting("decay")), None, groups))
        elif isinstance(layer, EntrywiseBatchNormalization):
            found.append(RunningStatistics(tuple(planned.weights[:2]), float(layer.decay), None, groups))
    return found
