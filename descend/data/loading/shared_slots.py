"""Memory that a worker process fills with batches and its parent reads, without a copy and without pickling.

A slot is a file without a name that both processes map; its descriptor goes over their pipe once. The parent's tensors
lie in it, and when the last of them is gone the worker may fill it again, so a reader needs as many slots as its
consumer holds batches. Nothing is left behind, however a process ends, and the size of /dev/shm does not matter.

Systems without descriptors in pipes (Windows) get the bytes in the message.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Content", "SlotReader", "SlotWriter"]

CAN_SHARE = hasattr(socket, "send_fds") and hasattr(reduction, "send_handle")
_ALIGNED = 64  # bytes, a line of the caches


class _SlotTensor(NamedTuple):
    """Where a tensor is in a slot."""

    dtype: str  # as torch calls it: NumPy has no bfloat16
    shape: tuple[int, ...]
    offset: int
    size: int  # in bytes


class Content(NamedTuple):
    """What is said about a filled slot."""

    slot: int
    is_new: bool  # the descriptor of its file follows
    places: dict[str, _SlotTensor]
    bytes: bytes | None = None  # where memory cannot be shared


class SlotWriter:
    """The slots that a worker fills."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []
        self._free: set[int] = set()

    def free(self, slots: Iterable[int]) -> None:
        """Use these again."""
        self._free.update(slots)

    def put(self, tensors: Mapping[str, Tensor], freed: Iterable[int]) -> tuple[Content, int | None]:
        """Write tensors into a slot that is free, or a new one.

        Args:
            tensors: By name, on the CPU.
            freed: Slots that the parent no longer reads.

        Returns:
            What to send to the parent, and the descriptor to send behind it, which the caller closes.
        """
        self.free(freed)
        places: dict[str, _SlotTensor] = {}
        total = 0
        for name, one in tensors.items():
            size = one.numel() * one.element_size()
            places[name] = _SlotTensor(str(one.dtype).removeprefix("torch."), tuple(one.shape), total, size)
            total += -(-size // _ALIGNED) * _ALIGNED
        try:
            slot, descriptor = self._slot(max(total, 1))
        except (OSError, RuntimeError):  # there is no memory to share, now or on this system
            room = np.zeros(total, np.uint8)
            _fill(room, tensors, places)
            return Content(0, False, places, room.tobytes()), None
        _fill(self._memory[slot].numpy(), tensors, places)
        return Content(slot, descriptor is not None, places), descriptor

    def _slot(self, size: int) -> tuple[int, int | None]:
        """A slot for `size` bytes, and the descriptor of its file if it is new.

        Raises:
            OSError, RuntimeError: there is none.
        """
        if not CAN_SHARE:
            raise OSError("this system sends no descriptors to other processes")
        fitting = [slot for slot in self._free if len(self._memory[slot]) >= size]
        if fitting:
            slot = min(fitting, key=lambda one: len(self._memory[one]))
            self._free.remove(slot)
            return slot, None
        descriptor = _file_without_name(size)
        try:
            memory = _mapped(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if self._free:  # all of them are too small: one goes, so that their number does not grow
            slot = self._free.pop()
            self._memory[slot] = memory
        else:
            slot = len(self._memory)
            self._memory.append(memory)
        return slot, descriptor


class SlotReader:
    """The slots of a worker, in its parent.

    Attributes:
        freed: Slots whose tensors are gone since the last message to the worker.
    """

    def __init__(self) -> None:
        self._memory: dict[int, Tensor] = {}
        self.freed: list[int] = []

    def take_freed(self) -> list[int]:
        """The slots to tell the worker of."""
        freed = self.freed[:]  # more may be added meanwhile, from any thread
        del self.freed[: len(freed)]
        return freed

    def tensors(self, content: Content, pipe: Any) -> dict[str, Tensor]:
        """The tensors in a slot; it is not filled again before the last of them is gone.

        Raises:
            EOFError, OSError, RuntimeError: the worker ended before it sent the descriptor.
        """
        if content.bytes is not None:
            room = np.frombuffer(bytearray(content.bytes), np.uint8)
        else:
            if content.is_new:
                descriptor = reduction.recv_handle(pipe)
                try:
                    self._memory[content.slot] = _mapped(descriptor)
                finally:
                    os.close(descriptor)
            room = self._memory[content.slot].numpy()  # an object of its own, which lives as long as what lies in it
            weakref.finalize(room, self.freed.append, content.slot).atexit = False
        return {name: _tensor_in(room, one) for name, one in content.places.items()}


def _fill(room: NDArray[np.uint8], tensors: Mapping[str, Tensor], places: Mapping[str, _SlotTensor]) -> None:
    for name, one in places.items():
        _tensor_in(room, one).copy_(tensors[name])


def _tensor_in(room: NDArray[np.uint8], place: _SlotTensor) -> Tensor:
    import torch

    flat = torch.from_numpy(room[place.offset : place.offset + place.size])
    return flat.view(getattr(torch, place.dtype)).reshape(place.shape)


def _mapped(descriptor: int) -> Tensor:
    """The bytes of a file. Python's own `mmap` would keep a descriptor for each, of which a process has 1,024."""
    import torch

    size = os.fstat(descriptor).st_size
    return torch.from_file(f"/dev/fd/{descriptor}", shared=True, size=size, dtype=torch.uint8)


def _file_without_name(size: int) -> int:
    """The descriptor of a file of zeros in memory, or in the folder for temporary files where there is none."""
    with contextlib.suppress(OSError, AttributeError):  # not on this system
        descriptor = os.memfd_create("descend-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not a crash at the first use
            os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())
