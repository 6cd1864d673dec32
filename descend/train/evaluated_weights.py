"""The weights that evaluations see, where callbacks put others in place of those in training.

    evaluating  around an evaluation: afterwards the weights in training are back, to the same bits, also after an error
    put_in      keeps the weights in training, once per evaluation, and writes others over them

A callback may evaluate while another evaluation is under way, so what is kept is a stack. Where a run has several
averages, the first one in the list of callbacks is put in; the others are measured beside it, each under its name.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from descend.errors import ConfigurationError
from descend.runtime.checksums import bits_sum
from descend.runtime.dtensor import copy_into, is_sharded, local_shard
from descend.torch_private import version_counter
from descend.train.events import Event
from descend.train.module_state import tensors_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from descend.train.callback import Callback
    from descend.train.events import EvaluationView
    from descend.train.run import Run

__all__ = ["AveragingCallback", "EvaluatedWeights", "write_weights"]


class AveragingCallback(Protocol):
    """A callback that keeps an average of the weights.

    Attributes:
        average: By name; None where nothing is averaged yet.
    """

    average: dict[str, torch.Tensor] | None

    @property
    def label(self) -> str:
        """By what the rows of a run call it."""
        ...

    def take_in(self, finished: int) -> None:
        """Average the weights after so many complete epochs, before an evaluation puts others in their place."""
        ...


class EvaluatedWeights:
    """Keeps the weights in training while callbacks put others in their place.

    Args:
        run: The run.

    Attributes:
        is_final: Whether training is over and a callback has put the weights to evaluate into the module for good.
    """

    def __init__(self, run: Run) -> None:
        self._run, self.is_final = run, False
        self._kept: list[dict[str, torch.Tensor]] = []  # of each evaluation under way, the outermost first
        self._averages: list[AveragingCallback] = []

    # ---- averages

    def join(self, average: AveragingCallback) -> None:
        """Take a callback among the averages of the run, which are in the order of the list of callbacks.

        Raises:
            ConfigurationError: another one has the same name.
        """
        if any(other.label == average.label for other in self._averages):
            raise ConfigurationError(
                f"{type(average).__name__}: two averages of this run are called '{average.label}': give one of them a "
                f"name of its own, as in {type(average).__name__}(name='slow')"
            )
        places = {id(callback): i for i, callback in enumerate(self._run.callbacks.all)}
        self._averages = sorted([*self._averages, average], key=lambda one: places[id(one)])

    def place(self, average: AveragingCallback) -> int:
        """The place of an average among those of the run, from 0; the first one is that of the run."""
        return self._averages.index(average)

    def others(self) -> dict[str, dict[str, torch.Tensor]]:
        """The averages behind the first one that have begun, by their names."""
        return {one.label: one.average for one in self._averages[1:] if one.average is not None}

    @property
    def other_names(self) -> list[str]:
        """The names of the averages behind the first one."""
        return [one.label for one in self._averages[1:]]

    def not_begun(self) -> list[AveragingCallback]:
        """The averages in which nothing is yet."""
        return [one for one in self._averages if one.average is None]

    # ---- an evaluation

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers in training by name, also while others are in their place."""
        found = self._tensors()
        for kept in reversed(self._kept):
            found.update(kept)
        return found

    @contextmanager
    def evaluating(self, view: EvaluationView) -> Generator[list[Callback]]:
        """Context manager around an evaluation; calls before_evaluation of all callbacks.

        Yields:
            Callbacks of a user's own that wrote weights, in order. Each puts back what it found, so after_evaluation is
            called of the last one first.
        """
        for average in self._averages:
            average.take_in(view.epoch)
        with self._restored():
            before, wrote = dict[str, torch.Tensor](), list["Callback"]()
            try:
                for callback, hook in self._run.callbacks.listening(Event.BEFORE_EVALUATION):
                    if _is_ours(callback):
                        hook(view)
                        continue
                    if callback.replaces_weights and not before:
                        before = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
                    sums = self._sums()
                    hook(view)
                    if callback.replaces_weights or self._sums() != sums:
                        wrote.append(callback)
                yield wrote
            except BaseException:  # the hook that would put them back is not called
                write_weights(before, self._tensors())
                raise

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Generator[None]:
        """Within this block the module holds these weights; afterwards those that it holds now, to the same bits."""
        with self._restored():
            self.put_in(weights)
            yield

    @contextmanager
    def _restored(self) -> Generator[None]:
        self._kept.append({})
        try:
            yield
        finally:
            write_weights(self._kept.pop(), self._tensors())

    def put_in(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write other parameters and buffers into the module until the evaluation under way is over.

        Args:
            weights: By name, whole or sharded as the module's are; those that are not named stay.

        Raises:
            ConfigurationError: no evaluation is under way.
        """
        if not self._kept:
            raise ConfigurationError(
                "put_in was called outside of an evaluation, after which the weights are put back: call it in "
                "before_evaluation"
            )
        tensors, kept = self._tensors(), self._kept[-1]
        new = [name for name in weights if name in tensors and name not in kept]
        kept.update({name: tensors[name].detach().clone() for name in new})
        write_weights(weights, tensors)

    @contextmanager
    def finishing(self) -> Generator[None]:
        """Context manager around after_training, in which callbacks may put weights in for good."""
        before = self._versions()
        yield
        self.is_final = self._versions() != before

    def _versions(self) -> list[int]:
        return [version_counter(p) for p in self._run.task.module.parameters()]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return tensors_of(self._run.task.module)

    def _sums(self) -> list[int]:
        """Sums of bits, by which a write is noticed however it was made."""
        sums = [bits_sum(local_shard(tensor)).cpu() for tensor in self._tensors().values()]
        return torch.stack(sums).tolist() if sums else []


def _is_ours(callback: Callback) -> bool:
    """Whether a callback is one of this package, which writes weights by `put_in` alone."""
    return type(callback).__module__.partition(".")[0] == __name__.partition(".")[0]


@torch.no_grad()
def write_weights(values: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy values by name, whole or sharded as the tensors are; names that `tensors` lacks are left out."""
    for name, value in values.items():
        if name in tensors and is_sharded(value):
            local_shard(tensors[name]).copy_(local_shard(value))
        elif name in tensors:
            copy_into(tensors[name], value)
