"""A module whose weights `fully_shard` has cut up among ranks: it sums its gradients over ranks by itself.

    backward      begins with this rank's numerator, and FSDP2 adds the gradients of all ranks up, each rank keeping the
                  sum for its own part of every weights object; then comes the one division by the denominator
    norms         of this rank's parts are added up over ranks
    turns         every forward and backward pass fetches weights from all ranks, so all make as many; see `turns.py`
    waits         where a part fetches its weights, and in a backward pass, a rank waits for the others, and says so to
                  those that watch over it

Ranks that have no memory left cannot make a step again, since the others wait within it: micro-batches stay as they
are.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from descend.errors import Unsupported
from descend.runtime.dtensor import copies_of, is_sharded, local_shard

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from descend.runtime import Communicator
    from descend.train.session import Session

__all__ = ["FullyShardedParameters", "cut_of", "fsdp_modules", "require_fsdp", "reshard"]


def fsdp_modules(module: nn.Module) -> list[Any]:
    """The parts of a module that `fully_shard` was called with."""
    library: Any = sys.modules.get("torch.distributed.fsdp")  # importing it takes long, and who needs it has done so
    return [part for part in module.modules() if isinstance(part, library.FSDPModule)] if library else []


def reshard(module: nn.Module) -> None:
    """Let go of weights that a forward pass has fetched, so that those that are there are the parts of this rank."""
    for part in fsdp_modules(module):
        part.reshard()


def require_fsdp(module: nn.Module) -> None:
    """Refuse weights that are cut up in another way than by `fully_shard`.

    Raises:
        Unsupported: with the name of one.
    """
    fetched = {id(part) for part in fsdp_modules(module)}
    covered = {id(p) for part in module.modules() if id(part) in fetched for p in part.parameters()}
    for name, p in module.named_parameters():
        if not is_sharded(p):
            continue
        cut: Any = p
        kinds = [placement.is_replicate() for placement in cut.placements]
        if id(p) not in covered or kinds not in ([False], [True, False]):
            raise Unsupported(
                f"'{name}' of {type(module).__name__} is a DTensor with placements {cut.placements} on a mesh of "
                f"{tuple(cut.device_mesh.shape)} ranks: weights may be cut up by fully_shard, on a mesh of one "
                "dimension or of two (replicate, shard), and in no other way"
            )


class FullyShardedParameters:
    """The weights of a run that are cut up, and what has to be done otherwise for them.

    Args:
        module: The module, its weights put together.
        process: This process among its ranks.
    """

    def __init__(self, module: nn.Module, process: Communicator) -> None:
        self._module, self._process = module, process
        cut: dict[str, Any] = {name: p for name, p in module.named_parameters() if is_sharded(p)}
        self._copies = {name: copies_of(p) for name, p in cut.items()}
        self._groups: set[Any] = {group for p in cut.values() for group in p.device_mesh.get_all_groups()}

    @staticmethod
    def local_shards(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Stand-ins for weights that hold the parts of this rank, with their gradients in the same memory."""
        found: dict[str, torch.Tensor] = {}
        for name, p in weights.items():
            found[name] = local_shard(p) if is_sharded(p) else p
            if is_sharded(p) and p.grad is not None:
                found[name].grad = local_shard(p.grad)
        return found

    def norms(self, parameters: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The Euclidean norm of each gradient, all parts of it.

        Args:
            parameters: What `here` gives, with gradients.
        """
        squares = {name: p.grad.double().square().sum() for name, p in parameters.items() if p.grad is not None}
        cut = [name for name in squares if name in self._copies]
        if cut:
            sums = torch.stack([squares[name] / self._copies[name] for name in cut])
            squares.update(zip(cut, self._process.all_reduce(sums), strict=True))
        return [square.sqrt() for square in squares.values()]

    @contextmanager
    def sum_reduction(self) -> Generator[None]:
        """Within this, gradients are sums over ranks; afterwards they are means again, as torch has it."""
        with contextlib.ExitStack() as hooks:
            self._tell_of_waits(hooks)
            try:
                self._divide_by(1.0)
                yield
            finally:
                reshard(self._module)
                self._divide_by(None)

    @contextmanager
    def backward(self) -> Generator[None]:
        """A backward pass, in which the ranks wait for each other."""
        doing = self._process.status
        doing.begun = self._begun
        doing.begin_wait("gradients of a module that is cut up")
        try:
            yield
        finally:
            doing.waiting = doing.begun = None

    def _begun(self) -> int:
        """How many exchanges this rank has begun among those who have parts of the weights."""
        return sum(group._get_sequence_number_for_group() for group in self._groups)  # pyright: ignore[reportPrivateUsage]  # torch tells it nowhere else

    def _tell_of_waits(self, hooks: contextlib.ExitStack) -> None:
        """Say that this rank waits while torch fetches the weights of a part, which it does in a hook of its own."""
        doing = self._process.status

        def begins(part: nn.Module, given: Any) -> None:
            doing.begin_wait("weights of a module that is cut up")

        def ends(part: nn.Module, given: Any) -> None:
            doing.waiting = None

        for part in fsdp_modules(self._module):
            hooks.callback(part.register_forward_pre_hook(begins, prepend=True).remove)
            hooks.callback(part.register_forward_pre_hook(ends).remove)

    def _divide_by(self, factor: float | None) -> None:
        for part in fsdp_modules(self._module):
            part.set_gradient_divide_factor(factor)
            part.set_force_sum_reduction_for_comms(factor is not None)
            part.set_requires_gradient_sync(True, recurse=False)
            part.set_requires_all_reduce(True, recurse=False)


def cut_of(session: Session) -> FullyShardedParameters | None:
    """What a run needs for weights that are cut up; None where none are."""
    cut = any(is_sharded(p) for p in session.weights.values())
    return FullyShardedParameters(session.task.module, session.communicator) if cut else None
