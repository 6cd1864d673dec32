"""Which parameters must stay at their address because other code may hold it.

An arena moves `p.data` into memory of its own. That is invisible only if no other code reads or writes the memory that
the parameter leaves: a flat parameter or a bucket of which `p` is a view (FSDP1, ZeroRedundancyOptimizer), a NumPy
array behind `torch.from_numpy`, a `state_dict()` or a slice `p[:k]` that is still alive, another process, a captured
CUDA graph. Such a parameter is updated in place. One is moved only if all of this holds:

    its storage has exactly its elements, was allocated by torch, and is shared with no other tensor or storage object;
    or an arena that no longer exists put it where it lies, and that memory has no other user either.

The test reads use counts, which costs microseconds a tensor, once for each layout and never in a step. It cannot see
an address that was kept elsewhere (`p.data_ptr()` given to foreign code): share such memory or use runner="plain".

Of distributed parameters (FSDP2 gathers whole ones from their memory) an arena works on an ordinary parameter over this
rank's shard, with this rank's shard of the gradient. That is enough for elementwise rules; norms and noise belong to
the whole tensor, so rules that need them run tensor by tensor.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.optim.engine.step_inputs import PLAIN_TYPES, aligned, local
from descend.torch_private import storage_identity, storage_use_count, weak_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

__all__ = ["PinnedTensor", "attach", "detach", "in_place", "note_placement"]


class _Placements(NamedTuple):
    """Which arenas put parameters into one storage; it may live longer than they do."""

    is_gone: Callable[[], bool]
    arenas: dict[int, weakref.ref[object]]  # by the address of a parameter


# By the identity of storages. A weak reference to a parameter would forbid torch.utils.swap_tensors, which a module
# calls in `to` and `load_state_dict` when torch.__future__ says so; its storage may be referred to.
_placements: dict[int, _Placements] = {}
_FEWEST = 128  # entries that are kept before those of storages that are gone are dropped
_limit = _FEWEST


def note_placement(p: Tensor, arena: object) -> None:
    """Record that `arena` gave `p` the memory in which it lies now."""
    storage = p.untyped_storage()
    identity = storage_identity(storage)
    if identity not in _placements:
        if len(_placements) >= _limit:
            _forget_gone()
        _placements[identity] = _Placements(weak_storage(storage), {})
    _placements[identity].arenas[p.data_ptr()] = weakref.ref(arena)


def _forget_gone() -> None:
    """Delete entries of storages that are gone; as many may come then as are left, so all of it takes linear time."""
    global _limit
    for other in [other for other, entry in _placements.items() if entry.is_gone()]:
        del _placements[other]
    _limit = max(_FEWEST, 2 * len(_placements))


def in_place(params: Iterable[Tensor], family: Iterable[Tensor]) -> set[int]:
    """The identities of the parameters that must be updated where they are.

    Args:
        params: Parameters about to be laid out.
        family: All parameters of the optimizer, which may share the memory of an arena that it had before.
    """
    abandoned = [p for p in family if _is_abandoned(p)]
    ours = {id(p) for p in abandoned}
    users = Counter(_storage(p) for p in abandoned)
    captured = functools.cache(_has_cuda_graphs)
    return {
        id(p)
        for p in params
        if _is_elsewhere_too(p)
        or (p.is_cuda and captured())
        or (not _is_used_by(p, users[_storage(p)]) if id(p) in ours else not (_fills_storage(p) and _is_used_by(p, 1)))
    }


def _storage(p: Tensor) -> int:
    return storage_identity(p.untyped_storage())


def _is_abandoned(p: Tensor) -> bool:
    """Whether p lies where an arena put it that exists no longer."""
    if type(p) not in PLAIN_TYPES:
        return False
    placements = _placements.get(_storage(p))
    if placements is None or placements.is_gone():
        return False
    arena = placements.arenas.get(p.data_ptr())
    return arena is not None and arena() is None


def _is_elsewhere_too(p: Tensor) -> bool:
    """Whether p is distributed, or visible to other processes or devices."""
    if type(p) not in PLAIN_TYPES:
        return True
    # torch says of all memory on a GPU that it is shared. Asking about page-locked memory may initialize CUDA.
    return p.device.type == "cpu" and (p.is_shared() or (torch.cuda.is_initialized() and p.is_pinned()))


def _fills_storage(p: Tensor) -> bool:
    """Whether the storage has exactly the elements of p, in memory that torch allocated."""
    storage = p.untyped_storage()
    return storage.nbytes() == p.numel() * p.element_size() and storage.resizable()


def _is_used_by(p: Tensor, tensors: int) -> bool:
    """Whether the storage of p has this many tensors, p among them, and no other user."""
    alone = _references_to_one()
    if alone is None:
        return False
    counted, named = _references(p)
    return counted == alone[0] + tensors - 1 and named == alone[1]


def _references(p: Tensor) -> tuple[int, int]:
    """How often the storage of p is referred to, by C++ and by Python, this function included."""
    storage = p.untyped_storage()
    return storage_use_count(storage), sys.getrefcount(storage)


@functools.cache
def _references_to_one() -> tuple[int, int] | None:
    """The same for a storage with a single tensor; None where this torch cannot count, so that nothing is moved."""
    probe = torch.zeros(2, device="cpu")
    try:
        alone = _references(probe)
        view = probe[:1]
        shared = _references(probe)
        del view
        held = probe.untyped_storage()
        named = _references(probe)
        del held
    except (AttributeError, TypeError):
        return None
    right = shared == (alone[0] + 1, alone[1]) and named[1] == alone[1] + 1 and _references(probe) == alone
    return alone if right else None


def _has_cuda_graphs() -> bool:
    """Whether memory belongs to a captured graph, which replays with the addresses that it saw."""
    return any(tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0) for segment in torch.cuda.memory_snapshot())


@dataclass(frozen=True, slots=True, eq=False)
class PinnedTensor:
    """Weights that stay where they are.

    Attributes:
        whole: As the user holds them.
        here: This rank's part, an ordinary parameter over the same memory.
    """

    whole: Tensor
    here: Tensor

    @staticmethod
    def of(p: Tensor) -> PinnedTensor:
        """See the class."""
        return PinnedTensor(p, local(p.detach()).detach().requires_grad_())

    def is_home(self) -> bool:
        """Whether the weights lie where they lay; to be called without gradients."""
        now, here = local(self.whole), self.here
        return now.data_ptr() == here.data_ptr() and now.dtype is here.dtype and now.shape == here.shape


@torch.no_grad()
def attach(guests: Iterable[PinnedTensor]) -> bool:
    """Give the parts their gradients of this step.

    Returns:
        Whether all are at the same addresses as before; if not, none may be updated.
    """
    for guest in guests:
        if not guest.is_home():
            return False
        p, g = guest.whole, guest.whole.grad
        if g is None or not p.requires_grad:
            guest.here.grad = None
        else:
            guest.here.grad = local(aligned(g, p)).to(guest.here.dtype)
    return True


def detach(guests: Iterable[PinnedTensor]) -> None:
    """Hold their gradients no longer."""
    for guest in guests:
        guest.here.grad = None
