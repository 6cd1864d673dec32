"""What a checkpoint keeps of modules and data."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.data import Batches
from descend.data.loading.map_dataset import SampleReader
from descend.errors import StorageError, warn
from descend.runtime import flatten
from descend.train.callback import given_back, kept

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train.progress import Mode

__all__ = ["LossBuffers", "ModuleExtraState", "ReplacedSamples", "modes_kept", "tensors_of"]


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
