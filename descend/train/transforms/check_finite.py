"""The finite check: a step whose gradient holds a NaN or an infinity changes nothing, on any rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from descend.arguments import check_choice, require
from descend.errors import NumericalError
from descend.runtime.gpu_copies import HostNumber
from descend.torch_private import AllFinite, foreach_largest, skips_flagged_updates
from descend.train.events import Event
from descend.train.nonfinite_report import nonfinite_message
from descend.train.state import Bookmark
from descend.train.step import compute_gradients
from descend.train.strategies.base import Strategy
from descend.train.transforms.base import GradientTransform, Withheld

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from descend.data import Batch
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["CheckFinite", "FiniteLook", "nonfinite_parameters"]


# Elements, of one gradient on a CPU and of all on a GPU. To write more takes as long as the calls that are saved.
_SMALL = 524_288
_SMALL_ON_A_GPU = 8 * _SMALL


class CheckFinite(GradientTransform):
    """Looks at every gradient before anything changes.

    Gradients that overflowed under a loss scale lower that first. Otherwise the step is bad: it ends the run, or is
    skipped, after 10 in a row of which the run ends.

    Args:
        on_nonfinite: "stop" ends the run, "skip" skips the step, "allow" does not look.

    Raises:
        ConfigurationError: the policy is unknown.
    """

    is_stateless: ClassVar[bool] = True
    POLICIES: ClassVar[tuple[str, ...]] = ("stop", "skip", "allow")
    IN_A_ROW: ClassVar[int] = 10

    def __init__(self, on_nonfinite: str = "stop") -> None:
        require(check_choice("on_nonfinite", on_nonfinite, self.POLICIES))
        self.on_nonfinite = on_nonfinite

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run
        self._looks = self.on_nonfinite != "allow" or run.precision.checks_for_overflow
        self._look = FiniteLook({})
        self._late = LateCheck(run)

    def __call__(self, gradients: Gradients) -> Withheld | None:
        """See `GradientTransform`.

        Raises:
            NumericalError: a gradient is not finite, of this step or of the one before, and the run is to stop then.
        """
        self.settle()
        strategy = self._run.strategy
        look = self._look_at(strategy.local_parameters()) if self._looks else None
        found: list[str] = []
        if look is not None:
            is_late = self.on_nonfinite == "stop" and look.on_device and self._late.can_be_late()
            if is_late and self._late.launch(gradients, look):
                return None
            found = look.nonfinite()
        found = strategy.union(found)
        return self.withhold(gradients, found) if found else None

    def settle(self) -> None:
        """See `GradientTransform.settle`.

        Raises:
            NumericalError: the gradient of the newest step was not finite. Everything is as it was before that step.
        """
        gradients = self._late.found()
        if gradients is None:
            return
        try:
            names = self._look_at(self._run.strategy.local_parameters()).nonfinite()
            if not names:
                raise NumericalError(
                    f"step {self._run.state.step + 1}: a gradient was not finite, and all are when the step is "
                    "computed once more: look for a kernel whose results differ from call to call; "
                    "deterministic=True refuses those of torch"
                )
            self.withhold(gradients, names)
        finally:
            self._run.buffer_snapshot.restore()

    def _look_at(self, parameters: Mapping[str, torch.Tensor]) -> FiniteLook:
        if self._look.parameters is not parameters:
            self._look = FiniteLook(parameters)
        return self._look

    def look_again(self, gradients: Gradients, parameters: Mapping[str, torch.Tensor]) -> Withheld | None:
        """The same for gradients that a later transform has changed, the same on all ranks."""
        found = nonfinite_parameters(parameters) if self._looks else []
        return self.withhold(gradients, found) if found else None

    def withhold(self, gradients: Gradients, names: Sequence[str]) -> Withheld:
        """What becomes of a step with such parameters."""
        run, objective = self._run, float(gradients.value)
        reason = f"the gradient of '{names[0]}' is not finite"
        if math.isfinite(objective) and run.precision.lower_scale():
            return Withheld(f"{reason}: the loss scale was too large")
        run.precision.keep_scale()
        run.state.skipped_in_a_row += 1
        streak = run.state.skipped_in_a_row
        if self.on_nonfinite == "stop" or (streak >= self.IN_A_ROW and self.on_nonfinite == "skip"):
            run.clear_gradients()
            causes = run.strategy.diagnose(gradients.batch)
            raise NumericalError(nonfinite_message(run.state.step + 1, names, objective, causes, streak))
        return Withheld(reason)


class FiniteLook:
    """A look at the gradients of some parameters, prepared once for all steps.

    Small gradients are looked at in one call for all. On a CPU the sum of all elements of a large one shows a NaN or an
    infinity in a twentieth of the time of a norm, and writes nothing; a sum that overflows by itself is cleared by
    looking at each element. On a GPU the largest elements of large ones are found in few launches.

    Args:
        parameters: By name. What their gradients are may be another tensor in each step.

    Attributes:
        on_device: Whether all are on one device other than the CPU.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.parameters = parameters
        self._small: list[torch.Tensor] = []
        self._large: list[torch.Tensor] = []
        real = [p for p in parameters.values() if p.is_floating_point()]
        types = {(p.device, p.dtype) for p in real}
        device = next(iter(types))[0] if types else torch.device("cpu")
        on_gpu = len(types) == 1 and device.type == "cuda" and sum(p.numel() for p in real) < _SMALL_ON_A_GPU
        for p in parameters.values():
            is_small = p.is_floating_point() and (on_gpu or (p.numel() < _SMALL and p.is_cpu))
            (self._small if is_small else self._large).append(p)
        self._all_finite = AllFinite(device if on_gpu else torch.device("cpu"))
        self.on_device = (
            len({p.device for p in parameters.values()}) == 1 and not next(iter(parameters.values())).is_cpu
        )

    def nonfinite(self) -> list[str]:
        """Names of the parameters whose gradient is not finite. Waits for the device, once."""
        small = [g for p in self._small if (g := p.grad) is not None]
        large = [g for p in self._large if (g := p.grad) is not None]
        if self._are_finite(small) and (not large or math.isfinite(abs(_total(large)))):
            return []
        named = _gradients(self.parameters)
        return [name for name, gradient in named if not bool(torch.isfinite(gradient).all())]

    def flag(self) -> torch.Tensor | None:
        """A 0-d tensor on the device, above 0 if an element of a gradient is not finite; None where a gradient is
        sparse, of which only a sum is looked at. The host does not wait."""
        every = [g for p in self.parameters.values() if (g := p.grad) is not None and g.numel()]
        if not every or any(g.layout is not torch.strided for g in every):
            return None
        if not self._large:
            return self._all_finite.flag(every)
        return torch.stack(foreach_largest(every)).max().isfinite().logical_not().float()

    def _are_finite(self, small: Sequence[torch.Tensor]) -> bool:
        """Whether small gradients are finite. Where one is sparse, its parameter counts as a large one from now on:
        to ask each gradient in each step would take longer than the look."""
        try:
            return not small or self._all_finite(small)
        except RuntimeError:
            sparse = {id(p) for p in self._small if p.grad is not None and p.grad.layout is not torch.strided}
            if not sparse:
                raise
            self._large += [p for p in self._small if id(p) in sparse]
            self._small = [p for p in self._small if id(p) not in sparse]
            return not self.nonfinite()


def nonfinite_parameters(parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the parameters whose gradient is not finite. Waits for the device, once."""
    return FiniteLook(parameters).nonfinite()


def _total(gradients: Iterable[torch.Tensor]) -> complex:
    """A number that is finite only if all elements are: the sum of all on the CPU, and of the largest of each gradient
    on a device. What lies there is looked at in few launches and read once."""
    total, dense, elsewhere = 0.0, list[torch.Tensor](), list[torch.Tensor]()
    for gradient in gradients:
        if gradient.is_cpu:
            total += gradient.sum().item()
        elif gradient.layout is not torch.strided:
            elsewhere.append(gradient.sum().abs())
        elif gradient.numel():
            dense.append(gradient)
    elsewhere += foreach_largest(dense)
    return total + torch.stack(elsewhere).max().item() if elsewhere else total


def _gradients(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The gradients that are there; of a sparse one, the values of the rows that it has."""
    for name, p in weights.items():
        if p.grad is not None:
            yield name, p.grad.coalesce().values() if p.grad.is_sparse else p.grad


# ---- the finite check on a GPU without a wait: the host learns of a bad gradient when the next update is due
#
#     step n       a flag is computed on the device; where it is raised, the optimizer leaves the update out there
#                  the flag is copied to page-locked memory
#     step n + 1   forward and backward passes are launched, then the host reads the flag, which has long arrived
#                  where it was raised: the run goes back to before step n, computes its gradient once more and looks at
#                  that as it does without a GPU, so the error, the weights and what is saved are the same
#
# Whatever looks at the run between two steps (a callback, an evaluation, a checkpoint) settles this first; see
# `TransformChain.settle`. The flag is handed to the optimizer as torch's `GradScaler` does it.

_SEEN_BY_CALLBACKS = (Event.BEFORE_STEP, Event.AFTER_PART, Event.AFTER_BACKWARD, Event.AFTER_STEP)


@dataclass(frozen=True)
class _Pending:
    """An update that may have been left out.

    Attributes:
        flag: Above 0 if it was.
        batch: Its mini-batch.
        before: Where the run stood.
    """

    flag: HostNumber
    batch: Batch
    before: Bookmark


class LateCheck:
    """The flags of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: _Pending | None = None

    def can_be_late(self) -> bool:
        """Whether the host may learn of a bad gradient a step later: one process trains on a device, its optimizer
        leaves out the updates of a flag there, and nothing else sees the step meanwhile."""
        run = self._run
        return (
            type(run.strategy) is Strategy
            and not run.precision.checks_for_overflow
            and run.transforms.is_stateless
            and skips_flagged_updates(run.optimizer)
            and not any(map(run.callbacks.wants, _SEEN_BY_CALLBACKS))
        )

    def launch(self, gradients: Gradients, look: FiniteLook) -> bool:
        """Look at the gradients of a step whose update follows. The host does not wait.

        Returns:
            Whether that is possible; if not, nothing was done.
        """
        flag = look.flag()
        if flag is None:
            return False
        run = self._run
        if run.precision.found_inf is not None:  # of a check before this one: either leaves the update out
            flag = torch.maximum(flag, run.precision.found_inf)
        run.precision.found_inf = flag
        run.buffer_snapshot.keeps_two = True
        self._pending = _Pending(HostNumber(flag), gradients.batch, Bookmark.of(run.state))
        return True

    def found(self) -> Gradients | None:
        """The gradients, computed once more, of an update that was left out, with the run as it was before that; None
        where the newest update was made, or all is known of it.

        While the gradients of the next step are there, its buffers are those that `restored_on_error` gives back.
        """
        pending, self._pending = self._pending, None
        if pending is None or not pending.flag.read():
            return None
        run = self._run
        pending.before.restore(run.state)
        run.buffer_snapshot.step_back()
        return compute_gradients(run, pending.batch)
