"""Fully sharded data parallelism: a module whose parameters torch's `fully_shard` has sharded among ranks.

    backward      begins with this rank's numerator; FSDP2 sums the gradients of all ranks, and each rank keeps the sum
                  for its own shard of every parameter; then comes the one division by the denominator
    norms         of this rank's shards are added up over ranks
    lockstep      every forward and backward pass gathers parameters from all ranks, so all make as many
    waits         where a submodule gathers its parameters, and in a backward pass, a rank waits for the others, and
                  says so to the watchdog

A step that has run out of memory cannot be repeated, since the other ranks wait within it: micro-batches stay as they
are.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import Unsupported
from descend.runtime.dtensor import copies_of, fsdp_modules, is_sharded, local_shard
from descend.torch_private import collectives_begun
from descend.train.nonfinite_report import diagnose_batch, has_nonfinite_input
from descend.train.strategies.base import joint_norm
from descend.train.strategies.data_parallel import DataParallel, all_gather_names

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from torch import nn

    from descend.data import Batch
    from descend.train.run import Run

__all__ = ["FSDP", "require_fsdp", "reshard"]


def reshard(module: nn.Module) -> None:
    """Free parameters that a forward pass has gathered, so that those that are there are the shards of this rank."""
    for part in fsdp_modules(module):
        part.reshard()


def require_fsdp(module: nn.Module) -> None:
    """Refuse parameters that are sharded in another way than by `fully_shard`.

    Raises:
        Unsupported: with the name of one.
    """
    gathered = {id(part) for part in fsdp_modules(module)}
    covered = {id(p) for part in module.modules() if id(part) in gathered for p in part.parameters()}
    for name, p in module.named_parameters():
        if not is_sharded(p):
            continue
        shard: Any = p
        kinds = [placement.is_replicate() for placement in shard.placements]
        if id(p) not in covered or kinds not in ([False], [True, False]):
            raise Unsupported(
                f"'{name}' of {type(module).__name__} is a DTensor with placements {shard.placements} on a mesh of "
                f"{tuple(shard.device_mesh.shape)} ranks: weights may be sharded by fully_shard, on a mesh of one "
                "dimension or of two (replicate, shard), and in no other way"
            )


class FSDP(DataParallel):
    """One rank among several, each with a shard of every parameter."""

    is_sharded = True
    overlaps = False  # FSDP2 sends gradients by itself
    divides_early = False
    pads_evaluation = True

    def setup(self, run: Run) -> None:
        """See `Strategy.setup`."""
        super().setup(run)
        self._pads, self.can_repeat_step = True, False
        self._module = run.task.module
        shards: dict[str, Any] = {name: p for name, p in self.parameters.items() if is_sharded(p)}
        self._copies = {name: copies_of(p) for name, p in shards.items()}
        self._groups: set[Any] = {group for p in shards.values() for group in p.device_mesh.get_all_groups()}

    @contextmanager
    def running(self) -> Generator[None]:
        """Within this, gradients are sums over ranks; afterwards they are means again, as torch has it."""
        with contextlib.ExitStack() as hooks:
            self._report_waits(hooks)
            try:
                self._divide_by(1.0)
                yield
            finally:
                reshard(self._module)
                self._divide_by(None)

    @contextmanager
    def communicating_backward(self) -> Generator[None]:
        """A backward pass, in which the ranks wait for each other."""
        status = self._communicator.status
        status.begun = self._collectives_begun
        status.begin_wait("gradients of a sharded module")
        try:
            yield
        finally:
            status.waiting = status.begun = None

    def local_parameters(self) -> Mapping[str, torch.Tensor]:
        """Stand-ins for sharded parameters that hold the shards of this rank, with gradients in the same memory."""
        found: dict[str, torch.Tensor] = {}
        for name, p in self.parameters.items():
            found[name] = local_shard(p) if is_sharded(p) else p
            if is_sharded(p) and p.grad is not None:
                found[name].grad = local_shard(p.grad)
        return found

    def gradient_norms(self, parameters: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """See `Strategy.gradient_norms`; all ranks call it together."""
        squares = {name: p.grad.double().square().sum() for name, p in parameters.items() if p.grad is not None}
        shards = [name for name in squares if name in self._copies]
        if shards:
            sums = torch.stack([squares[name] / self._copies[name] for name in shards])
            squares.update(zip(shards, self._communicator.all_reduce(sums), strict=True))
        norms = [square.sqrt() for square in squares.values()]
        return norms, joint_norm(norms)

    def union(self, names: Sequence[str]) -> list[str]:
        """See `Strategy.union`: each rank sees its own shards."""
        return all_gather_names(names, self._communicator)

    def diagnose(self, batch: Batch) -> list[str]:
        """See `Strategy.diagnose`: no rank sees the gradient of its own samples."""
        lines = self.by_rank(diagnose_batch(batch) if has_nonfinite_input(batch) else None)
        return lines or ["the samples of all ranks are finite; FSDP2 sums gradients, so the rank of origin is unknown"]

    def evaluating(self) -> contextlib.AbstractContextManager[Any]:
        """Around an evaluation: parameters that it has gathered are freed afterwards."""
        return _resharding(self._module)

    def _collectives_begun(self) -> int:
        """How many collectives this rank has begun among those that have shards of the parameters."""
        return sum(collectives_begun(group) for group in self._groups)

    def _report_waits(self, hooks: contextlib.ExitStack) -> None:
        """Say that this rank waits while torch gathers the parameters of a submodule, in a hook of its own."""
        status = self._communicator.status

        def begins(part: nn.Module, given: Any) -> None:
            status.begin_wait("weights of a sharded module")

        def ends(part: nn.Module, given: Any) -> None:
            status.waiting = None

        for part in fsdp_modules(self._module):
            hooks.callback(part.register_forward_pre_hook(begins, prepend=True).remove)
            hooks.callback(part.register_forward_pre_hook(ends).remove)

    def _divide_by(self, factor: float | None) -> None:
        for part in fsdp_modules(self._module):
            part.set_gradient_divide_factor(factor)
            part.set_force_sum_reduction_for_comms(factor is not None)
            part.set_requires_gradient_sync(True, recurse=False)
            part.set_requires_all_reduce(True, recurse=False)


@contextmanager
def _resharding(module: nn.Module) -> Generator[None]:
    try:
        yield
    finally:
        reshard(module)
