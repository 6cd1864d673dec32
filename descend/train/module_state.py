"""The state of a module: what a checkpoint keeps of it, and its buffers as they were before a step."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from descend.data import Batches
from descend.data.loading.map_dataset import SampleReader
from descend.errors import StorageError, warn
from descend.runtime import flatten
from descend.torch_private import foreach_copy, own_buffers
from descend.train.callback import given_back, kept

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train.progress import Mode

__all__ = [
    "BufferSnapshot",
    "LossBuffers",
    "ModuleExtraState",
    "ReplacedSamples",
    "bits_sum",
    "modes_kept",
    "tensors_of",
]


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; a tensor under several names stands under the first."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@contextmanager
def modes_kept(module: torch.nn.Module) -> Generator[None]:
    """After this block every part of a module is in the mode, training or evaluation, in which it was."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in before:
            if part.training is not training:  # a module takes long to set an attribute
                part.training = training


class ModuleExtraState:
    """The extra state of modules, as torch's `get_extra_state` gives it.

    Args:
        module: All modules in it that have some are meant.
    """

    resets_with_optimizer: ClassVar[bool] = False

    def __init__(self, module: torch.nn.Module) -> None:
        self._parts = {
            name: part
            for name, part in module.named_modules()
            if type(part).get_extra_state is not torch.nn.Module.get_extra_state
        }

    def state_dict(self) -> dict[str, Any]:
        """By the names of modules; what is neither tensors nor plain values is left out, with a warning."""
        states: dict[str, Any] = {}
        for name, part in self._parts.items():
            extra = kept(part.get_extra_state())
            try:
                flatten(extra)
            except StorageError as error:
                warn(
                    f"the extra state of '{name}' ({type(part).__name__}) is not saved, so it starts over when the run "
                    f"is continued: {error}"
                )
            else:
                states[name] = extra
        return states

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the modules that are there what `state_dict` had taken."""
        states = {name: given_back(extra) for name, extra in state_dict.items()}
        for name, part in self._parts.items():
            if name in states:
                part.set_extra_state(states[name])


class LossBuffers:
    """The buffers of a user's loss that training has changed; others are settings, and may be others when it continues.

    Args:
        loss: What has them if it is a module.
    """

    resets_with_optimizer: ClassVar[bool] = False

    def __init__(self, loss: object) -> None:
        self._module = loss if isinstance(loss, torch.nn.Module) else torch.nn.Module()
        self._first = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}

    def __bool__(self) -> bool:
        return bool(self._first)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The buffers that differ from what they were when this was made."""
        return {
            name: buffer.detach().clone()
            for name, buffer in self._module.named_buffers()
            if name in self._first and not torch.equal(buffer, self._first[name])
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Put back those that are there in the same shape; a warning tells the others."""
        there = dict(self._module.named_buffers())
        for name, saved in state_dict.items():
            if name in there and there[name].shape == saved.shape:
                there[name].copy_(saved)
            else:
                warn(f"'{name}', a buffer of the loss, starts over: it is {tuple(saved.shape)} in the checkpoint")


class ReplacedSamples:
    """Bad samples that are replaced by others, see `skip_bad`.

    Args:
        data: By mode.
        communicator: Each rank reads other samples.
    """

    resets_with_optimizer: ClassVar[bool] = False

    def __init__(self, data: Mapping[Mode, Feed], communicator: Communicator) -> None:
        self._data, self._communicator = data, communicator

    def state_dict(self) -> dict[str, list[list[Any]]]:
        """Numbers of such samples of each mode, on all ranks, each with its reason."""
        found: dict[str, list[list[Any]]] = {}
        for mode, reader in self._readers():
            of_all = self._communicator.all_gather_object(list(reader.bad.items()))
            found[mode.value] = [list(sample) for sample in sorted({(i, why) for bad in of_all for i, why in bad})]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        bad = {mode: {int(i): str(why) for i, why in samples} for mode, samples in state_dict.items()}
        for mode, reader in self._readers():
            reader.bad = bad.get(mode.value, {})

    def _readers(self) -> Iterator[tuple[Mode, SampleReader]]:
        for mode, feed in self._data.items():
            if isinstance(feed, Batches) and isinstance(feed.reader, SampleReader):
                yield mode, feed.reader


# ---- the buffers of a module as they were before a step, for steps that are skipped, repeated, or fail


class BufferSnapshot:
    """The buffers of a module as they were before a step, so that a step that is skipped leaves no trace in them.

    All are copied before each forward pass. Torch's count of writes to a tensor does not tell which ones are needed:
    its batch norm writes to running statistics without counting.

    Attributes:
        keeps_two: Whether the buffers before the last step but one are kept, too, for `step_back`.
        loss: The buffers of the user's loss, as they were at the beginning; None where there is no such loss.
    """

    loss: LossBuffers | None = None

    def __init__(self, module: torch.nn.Module) -> None:
        self._owners = [part for part in module.modules() if any(True for _ in part.buffers(recurse=False))]
        self._newest, self._older = _Copies(), _Copies()
        self.keeps_two = self._in_step = False

    def keep(self) -> None:
        """Remember what all buffers hold now."""
        if self._owners:
            if self.keeps_two:
                self._newest, self._older = self._older, self._newest
            self._newest.take(self._owners)

    def restore(self) -> None:
        """Give all buffers what they held at `keep`."""
        self._newest.give(self._owners)

    def step_back(self) -> None:
        """Give all buffers what they held at the `keep` before the last one, or at the last one if a step has ended
        since; `restore` gives them the same from now on."""
        if self._in_step:
            self._newest, self._older = self._older, self._newest
        self.restore()

    def restored_on_error(self) -> Self:
        """Keep the buffers now; where the block raises, restore them, so that what is saved next is from before it."""
        self.keep()
        return self

    def __enter__(self) -> None:
        self._in_step = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._in_step = False
        if error is not None:
            self.restore()


class _Copies:
    """Copies of buffers, made in one call for all of one type where they are the same tensors as the last time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.nn.Module, str], torch.Tensor] = {}
        self._sources: list[torch.Tensor] = []  # whose copies are made as follows
        self._at_once: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []  # copies and buffers of one type each
        self._alone: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def take(self, owners: Sequence[torch.nn.Module]) -> None:
        """Copy what the buffers of these modules hold."""
        now = [buffer for part in owners for buffer in own_buffers(part)]
        if len(now) != len(self._sources) or any(map(operator.is_not, now, self._sources)):
            self._make_room(owners)
            self._sources = now
        for copies, buffers in self._at_once:
            foreach_copy(copies, buffers)
        for copy, buffer in self._alone:
            copy.copy_(buffer)

    def _make_room(self, owners: Sequence[torch.nn.Module]) -> None:
        """Prepare for buffers of which one is another tensor than before."""
        groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._alone = []
        for place, buffer in _buffers(owners):
            copy, plain = self._kept.get(place), type(buffer) is torch.Tensor
            if copy is None or _form(copy) != _form(buffer):
                copy = self._kept[place] = torch.empty_like(buffer) if plain else buffer.detach().clone()
            if plain:
                copies, buffers = groups.setdefault((buffer.device, buffer.dtype), ([], []))
                copies.append(copy)
                buffers.append(buffer)
            else:
                self._alone.append((copy, buffer))
        self._at_once = list(groups.values())

    @torch.no_grad()
    def give(self, owners: Sequence[torch.nn.Module]) -> None:
        """Give the buffers what was copied."""
        for place, buffer in _buffers(owners):
            if place in self._kept and not _is_expanded(buffer):
                buffer.copy_(self._kept[place])


def _buffers(owners: Sequence[torch.nn.Module]) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
    """All buffers that are there now; a module may put another tensor in the place of one."""
    for part in owners:
        for name, buffer in part.named_buffers(recurse=False):
            yield (part, name), buffer


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, so that nothing can have written to it in place, and nothing can now."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


# ---- sums of the bit patterns of tensors, by which copies are compared without sending them

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the bit patterns of all elements, as int64 that may wrap around; 0 without dense memory."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return torch.zeros((), dtype=torch.int64)
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
