"""A run on several ranks: all are configured alike, and rank zero alone prints, records and owns the run directory."""

from __future__ import annotations

import hashlib
import re
import tempfile
import warnings
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.callbacks.console import is_muted, muted
from descend.data import Batches
from descend.data.loading.batch_iterable import BatchIterable
from descend.data.nested_fields import digest_of, spread
from descend.errors import ConfigurationError, DescendError, warn
from descend.runtime.dtensor import copy_into, fsdp_modules, full_tensor, is_sharded, mesh_size
from descend.torch_private import reset_reducer
from descend.train import Mode
from descend.train.micro_batch import suggested_group
from descend.train.module_state import bits_sum
from descend.train.optional_classes import is_kfac, is_sharded_optimizer
from descend.train.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train import Callback
    from descend.train.objective import Task
    from descend.train.run import Run

__all__ = [
    "NoFiles",
    "mute_other_ranks",
    "require_same_configuration",
    "require_unsharded",
    "unwrapped",
]

_COMPARED = 64  # samples of each mode that ranks compare


def unwrapped(module: Any) -> Any:
    """The module that DistributedDataParallel holds, since gradients are all-reduced here; any other module as it is.

    Raises:
        Unsupported: its parameters are sharded in another way than by fully_shard.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        # A forward pass without a backward pass has left its hooks waiting for one, and they would take part in ours.
        reset_reducer(module)
        _outlive_reducer(module)
        return module.module
    if isinstance(module, torch.nn.Module) and (fsdp_modules(module) or any(map(is_sharded, module.parameters()))):
        from descend.train.strategies.fsdp import require_fsdp, reshard

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
    """Refuse several trainers of a sharded module.

    Raises:
        ConfigurationError: it is.
    """
    if trainers > 1 and any(is_sharded(p) for p in module.parameters()):
        raise ConfigurationError(
            f"{type(module).__name__} was sharded by fully_shard, and {trainers} trainers need a whole module each: "
            "pass the module before that, or start one trainer"
        )


@contextmanager
def mute_other_ranks(process: Communicator) -> Generator[None]:
    """On all ranks but rank zero, neither lines nor warnings reach the user."""
    if process.is_rank_zero:
        yield
        return
    with muted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def require_same_configuration(run: Run) -> None:
    """Compare what the ranks are about to do, and broadcast parameters and buffers of rank zero to all.

    Where those differed, rank zero says so.

    Raises:
        ConfigurationError: a mini-batch cannot be shared among ranks, the ranks are set to do different things, or
            samples that are spread over their data differ.
    """
    communicator, module = run.communicator, run.task.module
    _check_shards(run)
    run.strategy.world.require_equal(_facts(run), "the settings of the run")
    _compare_samples(run)
    if communicator.world_size == 1:
        return
    if run.task.micro_batch_unit is None and not run.task.needs_lockstep:
        raise ConfigurationError(
            f"{communicator.world_size} ranks share each mini-batch, and a layer of this model works on all of it: for "
            f"batch norm declare how many samples share statistics, as in batch_norm_group_size={_group_of(run)}, or "
            "start one rank"
        )
    tensors = [*module.parameters(), *module.buffers()]
    if not _are_equal([tensor for tensor in tensors if not is_sharded(tensor)], communicator):
        said = "the weights differ between ranks: those of rank 0 are broadcast to all"
        run.say(said)
        if is_muted():
            warn(said)
    communicator.broadcast(0, [tensor for tensor in tensors if not is_sharded(tensor)])
    for tensor in (tensor for tensor in tensors if is_sharded(tensor)):
        values = full_tensor(tensor)
        communicator.broadcast(0, [values])
        copy_into(tensor, values)


def _group_of(run: Run) -> int:
    """An example of how many samples share statistics, so that each rank has a group."""
    feed = run.data.get(Mode.TRAIN)
    size = None if feed is None else feed.first_size
    return suggested_group(size and size // run.communicator.world_size)


def _are_equal(tensors: Sequence[torch.Tensor], communicator: Communicator) -> bool:
    """Whether all ranks hold the same tensors, by sums of their bits, which take one reading of them."""
    sums = [bits_sum(tensor) for tensor in tensors]
    own = torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64, device=communicator.device)
    of_all = communicator.all_gather_cat(own[None].to(communicator.device))
    return bool((of_all == of_all[:1]).all())


def _compare_samples(run: Run) -> None:
    """Compare the content of some samples of each mode, where reading one twice gives the same.

    Raises:
        ConfigurationError: they differ between ranks.
    """
    world = run.strategy.world
    if world.world_size == 1:
        return
    own = {str(mode): sample_digests(feed) for mode, feed in run.data.items()}
    of_all = world.all_gather_object(own)
    known = [mode for mode in own if all(one.get(mode) for one in of_all)]
    differing = {
        mode: [key for key in own[mode] if any(one[mode].get(key) != own[mode][key] for one in of_all)]
        for mode in known
    }
    if any(differing.values()):
        # A sample may be drawn at random now and then: only one that is the same each time is evidence.
        drawn = world.all_gather_object({mode: _drawn(run.data[Mode(mode)], keys) for mode, keys in differing.items()})
        differing = {
            mode: [key for key in keys if not any(key in one[mode] for one in drawn)]
            for mode, keys in differing.items()
        }
    facts = {f"{mode} {key}": own[mode][key] for mode, keys in differing.items() for key in keys}
    world.require_equal(facts, "the data")


def sample_digests(feed: Feed) -> dict[str, str]:
    """Hashes of samples that are spread over the data, by "sample N" or "batch N"; nothing where they cannot be read by
    their numbers, or the first and the last are drawn at random."""
    if isinstance(feed, BatchIterable):
        return feed.digests  # of a list; the strategy compares what others yield when it is there
    if not isinstance(feed, Batches) or not feed.num_samples:
        return {}
    ids = spread(len(feed.reader), _COMPARED)
    try:
        if _digests(feed, ids[[0, -1]]) != _digests(feed, ids[[0, -1]]):
            return {}
        return _digests(feed, ids)
    except DescendError:  # which the run reports where it reads this sample
        return {}


def _digests(feed: Batches, ids: NDArray[np.int64]) -> dict[str, str]:
    """A hash of each of these samples."""
    fields = feed.reader.read(ids)
    rows = ({name: values[i : i + 1] for name, values in fields.items()} for i in range(len(ids)))
    return {f"sample {number}": digest_of(row) for number, row in zip(ids.tolist(), rows, strict=True)}


def _drawn(feed: Feed, keys: Sequence[str]) -> list[str]:
    """The numbers of samples that are not the same each time they are read."""
    if not keys or not isinstance(feed, Batches):
        return []
    ids = np.array([int(key.split()[1]) for key in keys], dtype=np.int64)
    first, *again = (_digests(feed, ids) for _ in range(3))
    return [key for key in keys if any(one[key] != first[key] for one in again)]


def _check_shards(run: Run) -> None:
    """Refuse what does not go together with sharded parameters.

    Raises:
        ConfigurationError: all that does not.
    """
    shard = next((p for p in run.parameters.values() if is_sharded(p)), None)
    if shard is None:
        return
    problems: list[str] = []
    ranks = run.communicator.world_size
    if (size := mesh_size(shard)) != ranks:
        problems.append(f"its mesh has {size} ranks, and {ranks} train it; let the mesh hold all of them")
    if is_sharded_optimizer(run.optimizer):
        problems.append("shard_optimizer=True: the optimizer's state is sharded as the weights are; leave it out")
    if is_kfac(run.config.algorithm):
        problems.append("K-FAC needs the whole weights and gradients of each layer")
    if run.precision.checks_for_overflow:
        problems.append("precision='float16' scales the loss, which each rank would do for itself; take 'bfloat16'")
    problems += _needs_whole(run.optimizer)
    if problems:
        what = f"{type(run.task.module).__name__} was sharded by fully_shard"
        raise ConfigurationError([f"{what}, and {problem}" for problem in problems])


def _needs_whole(optimizer: torch.optim.Optimizer) -> list[str]:
    rules = {type(rule).__name__: rule for rule in (group.get("rule") for group in optimizer.param_groups)}
    return [
        f"{name} needs whole matrices; choose a rule that works by elements, or SGD for these weights"
        for name, rule in rules.items()
        if getattr(rule, "whole_tensor", False)
    ]


def _facts(run: Run) -> dict[str, Any]:
    """What must be the same on all ranks."""
    module = run.task.module
    tensors: dict[str, torch.Tensor] = {
        **dict(module.named_parameters()),
        **run.parameters,
        **dict(module.named_buffers()),
    }
    forms = {f"weights '{name}'": _form(tensor) for name, tensor in tensors.items()}
    sizes = {
        f"{mode} samples, batches, batch sizes": (feed.num_samples, feed.steps_per_epoch, feed.first_size)
        for mode, feed in run.data.items()
    }
    functions = {f"code of {name}": digest for name, digest in _codes(run.task)}
    callbacks = [shown for callback in run.callbacks.all if (shown := _described(callback))]
    # Where ranks have roles, as with a parameter server, those that only compute call none.
    watching = {"callbacks": callbacks} if run.strategy.world is run.communicator else {}
    return {**run.config.settings, **sizes, **forms, **functions, **watching}


def _form(tensor: torch.Tensor) -> str:
    trained = tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
    return f"{tuple(tensor.shape)} {tensor.dtype}{'' if trained else ', frozen'}"


def _described(callback: Callback) -> str | None:
    """A callback of ours with its options but for addresses; None for one of the user's own, which may only watch."""
    if not type(callback).__module__.startswith("descend.") or not is_dataclass(callback):
        return None
    return re.sub(r" at 0x[0-9a-f]+", "", repr(callback))


def _codes(task: Task) -> Generator[tuple[str, str]]:
    """Digests of the byte code of the user's functions of a task: two functions may share a name, as lambdas do."""
    for name, function in task.functions.items():
        code = getattr(getattr(function, "func", function), "__code__", None)
        if isinstance(code, CodeType):
            yield name, hashlib.blake2b(_content(code).encode(), digest_size=8).hexdigest()


def _content(code: CodeType) -> str:
    """What a function computes, without the file and the lines where it is written."""
    constants = [
        _content(one)
        if isinstance(one, CodeType)
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {constants}"


# ---- the store of a run that keeps no files


class NoFiles(RunStore):
    """Keeps nothing, and restores runs from checkpoints that others wrote."""

    @contextmanager
    def opened(self, run: Run) -> Generator[None]:
        """See `RunStore.opened`."""
        with ExitStack() as stack:
            if not run.communicator.is_rank_zero:
                folder = tempfile.TemporaryDirectory(prefix="descend-rank-", ignore_cleanup_errors=True)
                self.scratch = Path(stack.enter_context(folder))
            yield

    def load(self, run: Run, checkpoint: Path) -> None:
        """See `RunStore.load`."""
        from descend.experiment.checkpoint import load, restore

        restore(load(checkpoint, run), run)
