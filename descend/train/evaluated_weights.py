"""The weights that evaluations see, where callbacks put others in place of those in training.

    evaluating  around an evaluation: afterwards the weights in training are back, to the same bits, also after an error
    put_in      keeps the weights in training, once per evaluation, and writes others over them

A callback may evaluate while another evaluation is under way, so what is kept is a stack. Where a run has several
averages, the first one in the list of callbacks is put in; the others are measured beside it, each under its name.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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


@runtime_checkable
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
        self._averages = [one for one in run.callbacks.all if isinstance(one, AveragingCallback)]
        # Of each evaluation under way, the outermost first: what its hooks have done, in order. Tensors are those that
        # were there before others were put in; a callback of a user's own is one that puts back what it found.
        self._done: list[list[Callback | dict[str, torch.Tensor]]] = []

    # ---- averages

    def check_names(self) -> None:
        """Refuse two averages of one name.

        Raises:
            ConfigurationError: there are two.
        """
        labels = [one.label for one in self._averages]
        for label, one in zip(labels, self._averages, strict=True):
            if labels.count(label) > 1:
                raise ConfigurationError(
                    f"{type(one).__name__}: two averages of this run are called '{label}': give one of them a name of "
                    f"its own, as in {type(one).__name__}(..., name='slow')"
                )

    def place(self, average: AveragingCallback) -> int:
        """The place of an average among those of the run, from 0; the first one is that of the run."""
        return next(place for place, one in enumerate(self._averages) if one is average)

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
        for done in reversed(self._done):
            for one in reversed(done):
                found.update(one if isinstance(one, dict) else {})
        return found

    @contextmanager
    def evaluating(self, view: EvaluationView) -> Generator[None]:
        """Context manager around an evaluation: calls before_evaluation, and takes back what that did to the weights
        where after_evaluation is not called, because of an error."""
        for average in self._averages:
            average.take_in(view.epoch)
        with self._restored() as done:
            ends = {id(callback) for callback, _ in self._run.callbacks.listening(Event.AFTER_EVALUATION)}
            for callback, hook in self._run.callbacks.listening(Event.BEFORE_EVALUATION):
                if _is_ours(callback) or id(callback) not in ends:
                    hook(view)
                    continue
                if callback.replaces_weights:
                    done.append({name: tensor.detach().clone() for name, tensor in self._tensors().items()})
                sums = self._sums()
                hook(view)
                if callback.replaces_weights or self._sums() != sums:
                    done.append(callback)
            yield

    def end(self, view: EvaluationView) -> None:
        """Call after_evaluation: of those that look on, of those that put weights in, the last one first, and of those
        that save."""
        hooks = self._run.callbacks.listening(Event.AFTER_EVALUATION)
        done = self._done[-1]
        nested = {id(one): one for one in done if not isinstance(one, dict)}
        for callback, hook in hooks:
            if not callback.saves and id(callback) not in nested:
                hook(view)
        while done:
            if isinstance(one := done[-1], dict):
                write_weights(one, self._tensors())
            else:
                next(hook for callback, hook in hooks if callback is one)(view)
            done.pop()
        for callback, hook in hooks:
            if callback.saves and id(callback) not in nested:
                hook(view)

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Generator[None]:
        """Within this block the module holds these weights; afterwards those that it holds now, to the same bits."""
        with self._restored():
            self.put_in(weights)
            yield

    @contextmanager
    def _restored(self) -> Generator[list[Callback | dict[str, torch.Tensor]]]:
        done: list[Any] = []
        self._done.append(done)
        try:
            yield done
        finally:
            self._done.pop()
            for one in reversed(done):
                if isinstance(one, dict):
                    write_weights(one, self._tensors())

    def put_in(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write other parameters and buffers into the module until the evaluation under way is over.

        Args:
            weights: By name, whole or sharded as the module's are; those that are not named stay.

        Raises:
            ConfigurationError: no evaluation is under way.
        """
        if not self._done:
            raise ConfigurationError(
                "put_in was called outside of an evaluation, after which the weights are put back: call it in "
                "before_evaluation"
            )
        tensors, done = self._tensors(), self._done[-1]
        if not (done and isinstance(done[-1], dict)):
            done.append({})
        kept: Any = done[-1]
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
