"""Micro-batches, in which a mini-batch goes through the module, made smaller where memory runs out.

Training, evaluation and inference go through the module alike.
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = [
    "MicroBatch",
    "MicroBatchSize",
    "RemoteOutOfMemory",
    "largest_share",
    "out_of_memory",
    "part_size",
    "release",
    "retry_on_oom",
    "split_into_micro_batches",
    "suggested_group",
]


@dataclass(slots=True)  # a frozen one takes three times as long to make
class MicroBatch:
    """Samples of a mini-batch that go through the module at once.

    Attributes:
        fields: (count, *shape) tensors by name, on the device of the run.
        batch: This rank's share of the mini-batch.
        step: Updates applied so far.
        start: Where the samples begin in the share.
        count: Number of samples.
        position: Where they begin in the mini-batch of all ranks.
        index: Number of this micro-batch in the share, from 0.
        of: How many micro-batches the share has.
        kept: Samples before this mini-batch that belong to the same update.
        counts: Whether its samples count; padding, which keeps ranks in lockstep, does not.
    """

    fields: dict[str, torch.Tensor]
    batch: Batch
    step: int
    start: int
    count: int
    position: int
    index: int = 0
    of: int = 1
    kept: int = 0
    counts: bool = True

    @property
    def draw_position(self) -> int:
        """Where the samples begin in the update, of which random numbers are a function."""
        return self.kept + self.position


def split_into_micro_batches(
    batch: Batch, communicator: Communicator, size: int | None, unit: int | None = 1, step: int = 0, kept: int = 0
) -> list[MicroBatch]:
    """The micro-batches of a mini-batch, on the device of the run.

    Args:
        batch: This rank's share; a share without samples has no micro-batches, since modules need not take empty
            inputs.
        communicator: Knows the device.
        size: Samples of a micro-batch; None for all.
        unit: Micro-batches are made of whole units of so many samples; None where the mini-batch cannot be split.
        step: Updates applied so far.
        kept: Samples before this mini-batch that belong to the same update.
    """
    count = len(batch.ids)
    if not count:
        return []
    fields = communicator.to_device(batch.fields)
    if size is None or (size := part_size(size, count, unit)) >= count:
        return [MicroBatch(fields, batch, step, 0, count, batch.position, kept=kept)]
    starts = range(0, count, size)
    return [
        MicroBatch(
            fields={name: tensor[start : start + size] for name, tensor in fields.items()},
            batch=batch,
            step=step,
            start=start,
            count=min(size, count - start),
            position=batch.position + start,
            index=index,
            of=len(starts),
            kept=kept,
        )
        for index, start in enumerate(starts)
    ]


# ---- what fits into memory: micro-batches that are made smaller when a device, or this machine, runs out of it

_T = TypeVar("_T")
# torch has a class of its own for its allocators on devices alone.
_PHRASES = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # what cuBLAS says where its workspace does not fit
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL
)


class RemoteOutOfMemory(MemoryError):
    """Another rank is out of memory, so all of them repeat the step."""


@dataclass
class MicroBatchSize:
    """How many samples go through a module at once.

    Attributes:
        samples: None for all of a mini-batch.
        adaptive: Whether a step that runs out of memory is repeated with smaller micro-batches.
    """

    resets_with_optimizer: ClassVar[bool] = False

    samples: int | None = None
    adaptive: bool = False

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"samples": self.samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what was found; a size that the user has set stays."""
        if self.adaptive:
            self.samples = state_dict["samples"]


def out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, of a device or of this machine."""
    import torch  # here, because descriptions are checked without it

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


def largest_share(batch: Batch, unit: int | None, world_size: int) -> int:
    """Samples of a mini-batch on the rank that has most, so that all ranks choose micro-batches alike.

    Args:
        batch: This rank's share.
        unit: As in `part_size`.
        world_size: Ranks that share the mini-batch.
    """
    if world_size == 1:
        return len(batch.ids)
    unit = unit or 1
    return math.ceil(math.ceil(batch.size / unit) / world_size) * unit


def release(error: BaseException, device: torch.device) -> None:
    """Free what the functions held in which memory ran out, so that there is some for telling other ranks."""
    import torch

    traceback.clear_frames(error.__traceback__)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def part_size(wanted: int | None, count: int, unit: int | None) -> int:
    """Samples of a micro-batch.

    Args:
        wanted: As many as were asked for; None for all.
        count: Samples of the mini-batch, or of this rank's share.
        unit: A micro-batch is made of whole units, and of one at least; None where it cannot be split.
    """
    if unit is None or wanted is None:
        return count
    return max(wanted // unit, 1) * unit


class HasMemory(Protocol):
    """What samples go through: a run, or a stand-in for one.

    Attributes:
        micro_batch_size: Changed where it is adaptive, and stays so.
    """

    micro_batch_size: MicroBatchSize

    @property
    def communicator(self) -> Communicator:
        """Knows the device."""
        ...

    def say(self, text: str) -> None:
        """Print for the user."""
        ...


def retry_on_oom(
    memory: HasMemory, count: int, unit: int | None, attempt: Callable[[], _T], *, undo: Callable[[], None]
) -> _T:
    """What `attempt` returns; where memory runs out, once more with smaller micro-batches.

    Args:
        memory: The run.
        count: Samples that `attempt` is about.
        unit: As in `part_size`.
        attempt: Computes with the samples.
        undo: Takes back what an attempt that failed has left.
    """
    size = memory.micro_batch_size
    while True:
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            if not size.adaptive or not out_of_memory(error):
                raise
            samples = part_size(size.samples, count, unit)
            if samples <= (unit or samples) and not isinstance(error, RemoteOutOfMemory):
                error.add_note(_cannot_be_split(samples, unit))
                raise
            size.samples = part_size(-(-min(samples, count) // 2), count, unit)
        undo()
        if memory.communicator.device.type == "cuda":
            import torch  # here, because descriptions are checked without it

            torch.cuda.empty_cache()
        memory.say(f"out of memory: micro-batches of {size.samples:,} from here on, the same updates")


def suggested_group(size: int | None) -> int:
    """An example of how many samples may share statistics: a power of two, at most half of the mini-batch."""
    return 64 if size is None else min(64, 1 << max(size // 2, 2).bit_length() - 1)


def _cannot_be_split(size: int, unit: int | None) -> str:
    if unit is None and size < 4:
        return f"the {size:,} samples of a mini-batch go through at once, and not even these fit into memory"
    if unit is None:
        return (
            f"the mini-batch of {size:,} samples cannot be split into micro-batches, because a layer works on all of "
            "it: for batch norm declare the samples that share statistics "
            f"(batch_norm_group_size={suggested_group(size)}), or use a smaller batch"
        )
    what = f"one group of batch norm ({unit:,} samples)" if unit > 1 else "one sample"
    return f"{what} goes through at once, and not even that fits into memory"
