"""What fits into memory: micro-batches that are made smaller when a device, or this machine, has no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.runtime import Communicator

__all__ = ["MicroBatchSizes", "RemoteOutOfMemory", "out_of_memory", "part_size", "retry_on_oom"]

_T = TypeVar("_T")
# torch has a class of its own for its allocators on devices alone.
_PHRASES = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class RemoteOutOfMemory(MemoryError):
    """Another rank has no memory left, so all of them make the step again."""


class MicroBatchSizes(Protocol):
    """What goes through a module part by part: a session, or what stands for one.

    Attributes:
        micro_batch_size: Samples that go through at once; None for all.
        adaptive: Whether that may be changed.
        communicator: Where it happens.
        say: Tells the user something.
    """

    micro_batch_size: int | None
    adaptive: bool
    communicator: Communicator
    say: Callable[[str], None]


def out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, of a device or of this machine."""
    import torch  # here, because descriptions are checked without it

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


def part_size(wanted: int | None, count: int, unit: int | None) -> int:
    """Samples of a micro-batch.

    Args:
        wanted: As many as were asked for; None for all.
        count: Samples of the mini-batch, or of this rank's share.
        unit: A micro-batch is made of whole units, and of one at least; None where it cannot be cut.
    """
    if unit is None or wanted is None:
        return count
    return max(wanted // unit, 1) * unit


def retry_on_oom(
    session: MicroBatchSizes, count: int, unit: int | None, attempt: Callable[[], _T], undo: Callable[[], None]
) -> _T:
    """What `attempt` returns; where memory runs out and micro-batches may be chosen, once more with smaller ones.

    Args:
        session: Its micro-batch size is changed, and stays so.
        count: Samples that `attempt` is about.
        unit: As in `part_size`.
        attempt: Goes through the samples.
        undo: Takes back what an attempt that failed has left.
    """
    import torch

    while True:
        size = part_size(session.micro_batch_size, count, unit)
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            if not session.adaptive or not out_of_memory(error):
                raise
            if size <= (unit or size) and not isinstance(error, RemoteOutOfMemory):
                error.add_note(_cannot_be_cut(size, unit))
                raise
            session.micro_batch_size = part_size(-(-min(size, count) // 2), count, unit)
        undo()
        if session.communicator.device.type == "cuda":
            torch.cuda.empty_cache()
        session.say(f"out of memory: micro-batches of {session.micro_batch_size:,} from here on, the same updates")


def _cannot_be_cut(size: int, unit: int | None) -> str:
    if unit is None:
        return (
            f"the mini-batch of {size:,} samples cannot be cut into micro-batches, because a layer works on all of it: "
            "for batch norm declare the samples that share statistics (batch_norm_group_size=64), or take a smaller "
            "batch"
        )
    what = f"one group of batch norm ({unit:,} samples)" if unit > 1 else "one sample"
    return f"{what} goes through at once, and not even that fits into memory"
