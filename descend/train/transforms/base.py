"""A gradient transform acts on the whole gradient of a mini-batch, between the backward pass and the update.

    backward passes → reduced over ranks, divided once → transform 1 → transform 2 → … → optimizer

The chain of a run is: the penalty and a check that anything is trained, which complete the gradient where it is
computed; then after_backward of the callbacks, the finite check, what an algorithm or a strategy inserts (K-FAC,
gradient accumulation), those of `fit(transforms=...)`, and clipping. A transform that returns `Withheld` ends the step
without an update; nothing after it in the chain runs.

The word is optax's: https://optax.readthedocs.io/en/latest/api/transformations.html
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from descend.data import Batch
    from descend.train.events import StepView
    from descend.train.micro_batch import MicroBatch
    from descend.train.objective import Ratio, Totals
    from descend.train.run import Run

__all__ = ["GradientTransform", "Gradients", "TransformChain", "UpdateWindow", "Withheld"]

_Kind = TypeVar("_Kind", bound="GradientTransform")


@dataclass
class Gradients:
    """The gradient of a mini-batch; the tensors are in the `.grad` of the parameters.

    Attributes:
        run: The run.
        batch: This rank's share of the mini-batch.
        objective: Of the whole mini-batch, over all ranks, detached.
        totals: Sums of objective and metrics on this rank.
        count: What its loss counts, over all ranks: the denominator of the objective without the penalty.
        divisor: What gradients of layers' outputs are still to be divided by, the loss scale aside: 1 where each
            backward pass started from its share of the mean.
    """

    run: Run
    batch: Batch
    objective: Ratio
    totals: Totals
    count: torch.Tensor | float
    divisor: torch.Tensor | float = 1.0

    @property
    def value(self) -> torch.Tensor:
        """The objective, a 0-d tensor."""
        return torch.as_tensor(self.objective.numerator / self.objective.denominator)

    @cached_property
    def view(self) -> StepView:
        """The step as callbacks see it."""
        return self.run.views.of_step(self.batch, self.objective)


@dataclass(frozen=True)
class Withheld:
    """Why a mini-batch makes no update.

    Attributes:
        reason: A sentence.
        skipped: Whether the mini-batch is dropped: buffers are restored and the step is counted as skipped. False where
            its gradient is kept for a later update.
    """

    reason: str
    skipped: bool = True


class UpdateWindow(NamedTuple):
    """The number of mini-batches of which an update is made.

    Attributes:
        first: The first update.
        every: Each update; None where that changes.
        setting: What says so, as the user wrote it.
    """

    first: int = 1
    every: int | None = 1
    setting: str = ""


class GradientTransform:
    """Base of the gradient transforms, also of a user's own, for `fit(transforms=[...])`; this one changes nothing.

    A subclass defines `__call__`, which gets the gradient of the whole mini-batch, the mean over what its loss counts,
    in the `.grad` of each parameter, of the parameter's shape and dtype. All ranks call it and must make the same
    change. docs/how-to/custom_transform.md writes one.

    Attributes:
        is_local: Whether it runs on the rank that computes the gradient, before it is complete, as a penalty does: a
            worker of a parameter server applies it, and the server does not. Such a transform cannot withhold an
            update.
        needs_all_gradients: Whether it needs those of parameters that another rank updates, too.
        is_stateless: Whether it keeps nothing of a step, so that a step can be computed once more, or its gradient be
            found to be NaN only afterwards.
    """

    is_stateless: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    needs_all_gradients: ClassVar[bool] = False

    def setup(self, run: Run) -> None:
        """Called once, when the run has all of its parts."""

    def begin(self) -> None:
        """Called before the gradient of a step is computed, or computed again after memory ran out."""

    def observing(self, micro_batch: MicroBatch) -> AbstractContextManager[Any]:
        """Context manager around the forward pass of each micro-batch, without its backward pass."""
        return nullcontext()

    def settle(self) -> None:
        """Called before anything but the next step looks at the run: raise what a device has found meanwhile."""

    def __call__(self, gradients: Gradients) -> Withheld | None:
        """Change the gradients in place, or say why there is no update."""
        return None

    def window(self) -> UpdateWindow:
        """The number of mini-batches of which it lets an update be made."""
        return UpdateWindow()

    def kept(self) -> str:
        """The gradients that it keeps for an update to come, as the beginning of a sentence; empty for none."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps. All ranks call it together."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; an empty dict resets."""


class TransformChain:
    """The transforms of a run, in order.

    Args:
        transforms: In call order.

    Attributes:
        after_reduce: Those that act on the complete gradient, in call order.
        is_stateless: Whether all of them are.
    """

    resets_with_optimizer: ClassVar[bool] = True

    def __init__(self, transforms: Sequence[GradientTransform] = ()) -> None:
        self._arrange(list(transforms))

    def _arrange(self, transforms: list[GradientTransform]) -> None:
        self._transforms = transforms
        self.after_reduce = [transform for transform in transforms if not transform.is_local]
        self._local = [transform for transform in transforms if transform.is_local]
        self._observers = [transform for transform in transforms if _overrides(transform, "observing")]
        self._with_begin = [transform for transform in transforms if _overrides(transform, "begin")]
        self._with_settle = [transform for transform in transforms if _overrides(transform, "settle")]
        self.is_stateless = all(transform.is_stateless for transform in transforms)

    def apply_local(self, gradients: Gradients) -> Gradients:
        """Apply those that run where the gradient is computed.

        Raises:
            ConfigurationError: one withholds the update, which other ranks would not know of.
        """
        for transform in self._local:
            if withheld := transform(gradients):
                raise ConfigurationError(
                    f"{type(transform).__name__} has is_local=True and withheld an update ({withheld.reason}): a "
                    "transform that may do so must be the same on all ranks; set is_local=False"
                )
        return gradients

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        for transform in self._transforms:
            transform.setup(run)

    def begin(self) -> None:
        """See `GradientTransform.begin`."""
        for transform in self._with_begin:
            transform.begin()

    def settle(self) -> None:
        """See `GradientTransform.settle`."""
        for transform in self._with_settle:
            transform.settle()

    def window(self) -> UpdateWindow:
        """See `GradientTransform.window`; the longest."""
        return max(
            (transform.window() for transform in self._transforms), key=lambda one: one.first, default=UpdateWindow()
        )

    def kept(self) -> str:
        """See `GradientTransform.kept`."""
        return "; ".join(kept for transform in self._transforms if (kept := transform.kept()))

    def observing(self, micro_batch: MicroBatch) -> AbstractContextManager[Any]:
        """See `GradientTransform.observing`; costs nothing where no transform observes."""
        if not self._observers:
            return _NOTHING
        stack = ExitStack()
        for transform in self._observers:
            stack.enter_context(transform.observing(micro_batch))
        return stack

    def one(self, kind: type[_Kind]) -> _Kind:
        """The transform of a class.

        Raises:
            LookupError: the chain has none.
        """
        for transform in self._transforms:
            if isinstance(transform, kind):
                return transform
        raise LookupError(f"the chain has no {kind.__name__}")

    def insert(self, transform: GradientTransform, after: type[GradientTransform]) -> None:
        """Call `transform` right after the one of class `after`. Once the chain is set up, call `transform.setup(run)`
        first.

        Raises:
            LookupError: no transform of the chain is an `after`.
        """
        place = self._transforms.index(self.one(after)) + 1
        self._arrange([*self._transforms[:place], transform, *self._transforms[place:]])

    @contextmanager
    def inserted(self, transform: GradientTransform, after: type[GradientTransform]) -> Generator[None]:
        """Within this block `transform` is called right after the one of class `after`.

        Raises:
            LookupError: no transform of the chain is an `after`.
        """
        before = self._transforms
        self.insert(transform, after)
        try:
            yield
        finally:
            self._arrange(before)

    def state_dict(self) -> dict[str, Any]:
        """The state of each transform that has one, by its class; a second one of a class has a number."""
        states = {name: transform.state_dict() for name, transform in self._named()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each transform its state."""
        for name, transform in self._named():
            transform.load_state_dict(state_dict.get(name, {}))

    def _named(self) -> Iterator[tuple[str, GradientTransform]]:
        counts = Counter[str]()
        for transform in self._transforms:
            name = type(transform).__name__
            counts[name] += 1
            yield (f"{name} {counts[name]}" if counts[name] > 1 else name), transform


_NOTHING = nullcontext()


def _overrides(transform: GradientTransform, method: str) -> bool:
    return getattr(type(transform), method) is not getattr(GradientTransform, method)
