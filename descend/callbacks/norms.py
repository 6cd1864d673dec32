"""Norms of gradients, weights and updates, and the gradient noise scale. None of them is part of LBANN's format.

Each records what it finds as rows of the history and of metrics.jsonl, with mode "train" and the number of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.name_fields import at_least
from descend.errors import ConfigurationError, Unsupported
from descend.machine import as_double
from descend.train import Callback
from descend.train.callback import Beginning

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from descend.train import PartView, RunView, StepView
    from descend.train.callback_api import RunControl

__all__ = ["GradientNoiseScale", "GradientNorm", "UpdateNorm", "WeightNorm"]


def _norm(tensors: list[torch.Tensor]) -> float:
    """‖·‖₂ over all entries of all tensors; waits for the device once."""
    import torch

    return float(torch.stack([as_double(t.detach().norm()) for t in tensors]).norm()) if tensors else 0.0


class _EverySteps(Callback):
    """Base of what looks every `every_steps` steps."""

    every_steps: int

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`."""
        return Beginning(f"every_steps={self.every_steps}", "updates", self.every_steps)


@dataclass
class GradientNorm(_EverySteps):
    """Records ‖g‖₂ over all gradients as `gradient_norm`.

    Runs:  after_backward, so before any clipping by the loop and before the update.
    Reads: gradients. Changes nothing.
    Costs: one norm for each parameter and one wait for the device, every `every_steps` steps.
    """

    records: ClassVar[tuple[str, ...]] = ("gradient_norm",)

    every_steps: int = 100

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps")

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step % self.every_steps == 0:
            step.run.control.record({"gradient_norm": _norm(list(step.gradients.values()))}, step.step)


@dataclass
class WeightNorm(_EverySteps):
    """Records ‖w‖₂ over all trained weights as `weight_norm`.

    Runs:  after_step.
    Reads: weights. Changes nothing.
    Costs: one norm for each parameter and one wait for the device, every `every_steps` steps.
    """

    records: ClassVar[tuple[str, ...]] = ("weight_norm",)

    every_steps: int = 100

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps")

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step % self.every_steps == 0:
            step.run.control.record({"weight_norm": _norm(list(step.run.control.trained.values()))}, step.step)


@dataclass
class UpdateNorm(_EverySteps):
    """Records ‖Δw‖₂, how far one update moved the trained weights, as `update_norm`.

    Runs:  after_backward, after_step.
    Reads: weights before and after an update. Changes nothing.
    Costs: a copy of the weights, one norm for each and one wait for the device, every `every_steps` steps.
    """

    records: ClassVar[tuple[str, ...]] = ("update_norm",)

    every_steps: int = 100
    _before: dict[str, torch.Tensor] = field(default_factory=dict[str, "torch.Tensor"], init=False, repr=False)

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps")

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step % self.every_steps == 0:
            self._before = {name: p.detach().clone() for name, p in step.run.control.trained.items()}

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step % self.every_steps == 0:
            moved = [p.detach() - self._before[name] for name, p in step.run.control.trained.items()]
            step.run.control.record({"update_norm": _norm(moved)}, step.step)
            self._before = {}


@dataclass
class GradientNoiseScale(_EverySteps):
    """Estimates B_simple = tr(Σ) / |G|², the batch size at which noise and signal of the gradient are equal.

    From m micro-batches of b₁, …, bₘ samples, B in all, with q = mean of |gⱼ|², Q = |Σ bⱼ gⱼ / B|² and h = mean of
    1 / bⱼ:

        tr(Σ) ≈ (q − Q) / (h − 1 / B)        |G|² ≈ Q − tr(Σ) / B

    Both are unbiased, since |gⱼ|² is |G|² + tr(Σ) / bⱼ in the mean; they are averaged over steps, and the ratio of the
    averages is recorded as `noise_scale`, with `gradient_square` and `gradient_variance` beside it. The shares of
    several ranks are micro-batches too, and all of them count.

    Runs:  after_part, after_backward.
    Reads: gradients of the micro-batches. Changes nothing but, where asked to, how a mini-batch is cut.
    Costs: a copy of the gradients, two passes over them a micro-batch and a wait for the device a step; on several
        ranks a sum of all gradients beside the one of the step.

    Args:
        every_steps: Record every so many steps; each step is used.
        averaged_over: Steps that the running averages reach back; 0 averages all steps alike.
        micro_batch_size: Cut mini-batches so; 0 leaves it to the run.

    Raises:
        ConfigurationError: a number is negative; from a hook, mini-batches that are not cut at all.
        Unsupported: from a hook, where FSDP2 shards the module.

    Source: McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, appendix A, in the form that uses all
        micro-batches. Examples have to be independent given the weights: with batch norm the unit is its group. A
        mini-batch that is not cut, such as a small last one of an epoch, is left out.
    """

    remembers: ClassVar[tuple[str, ...]] = ("steps", "square", "variance")
    records: ClassVar[tuple[str, ...]] = ("noise_scale", "gradient_square", "gradient_variance")

    every_steps: int = 10
    averaged_over: int = 0
    micro_batch_size: int = 0
    steps: int = field(default=0, init=False, repr=False)
    square: float = field(default=0.0, init=False, repr=False)
    variance: float = field(default=0.0, init=False, repr=False)
    _before: dict[str, torch.Tensor] = field(default_factory=dict[str, "torch.Tensor"], init=False, repr=False)
    _squares: list[torch.Tensor] = field(default_factory=list["torch.Tensor"], init=False, repr=False)
    _sizes: list[int] = field(default_factory=list[int], init=False, repr=False)

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps")
        at_least(self, 0, "averaged_over", "micro_batch_size")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        from descend.runtime.dtensor import is_sharded

        if any(is_sharded(p) for p in run.module.parameters()):
            raise Unsupported(
                "GradientNoiseScale reads gradients of micro-batches, and FSDP2 sums those of all ranks at once: take "
                "the callback out, or give the run a module that is not sharded"
            )
        self.steps, self.square, self.variance = 0, 0.0, 0.0
        self._forget()
        if self.micro_batch_size:
            run.control.micro_batch_size = self.micro_batch_size

    def after_part(self, part: PartView) -> None:
        """See `Callback.after_part`."""
        if part.parts == 1 and part.run.control.ranks == 1:  # the gradient has been divided
            return
        if part.index == 0:
            self._forget()
        gradients = {name: p.grad for name, p in part.module.named_parameters() if p.grad is not None}
        own = [g - self._before[name] if name in self._before else g for name, g in gradients.items()]
        self._squares.append(_square(own) / part.samples**2)
        self._sizes.append(part.samples)
        self._before = {name: g.clone() for name, g in gradients.items()}

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        control = step.run.control
        parts, samples, inverses, squares = self._sums(control)
        if parts < 2 and (step.batch.step == 0 or (control.ranks == 1 and control.micro_batch_size is None)):
            raise ConfigurationError(
                "GradientNoiseScale compares micro-batches and these mini-batches are not split: set micro_batch_size= "
                "to a half or less of the mini-batch"
            )
        if parts > 1:
            whole = float(_square([self._whole(control)])) / samples**2
            variance = (squares / parts - whole) / (inverses / parts - 1 / samples)
            self._average(whole - variance / samples, variance)
        self._forget()
        if self.steps and step.step % self.every_steps == 0:
            found = {"gradient_square": self.square, "gradient_variance": self.variance}
            control.record({"noise_scale": self.variance / self.square, **found}, step.step)

    def _sums(self, control: RunControl) -> list[float]:
        """Of the micro-batches of all ranks: how many there are, their samples, Σ 1 / bⱼ and Σ |gⱼ|²."""
        import torch

        sizes, squares = self._sizes, float(sum(self._squares, torch.zeros(())))
        own = [len(sizes), sum(sizes), sum(1 / size for size in sizes), squares]
        return control.sum(torch.tensor(own, dtype=torch.float64)).tolist()

    def _whole(self, control: RunControl) -> torch.Tensor:
        """Σ bⱼ gⱼ over all ranks, as one vector."""
        import torch

        own = [self._before.get(name, torch.zeros_like(p)) for name, p in control.trained.items()]
        return control.sum(torch.cat([gradient.reshape(-1) for gradient in own]))

    def _forget(self) -> None:
        self._before, self._squares, self._sizes = {}, [], []

    def _average(self, square: float, variance: float) -> None:
        self.steps += 1
        share = 1 / min(self.steps, self.averaged_over or self.steps)
        self.square += share * (square - self.square)
        self.variance += share * (variance - self.variance)


def _square(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of the squares of all entries, in float64."""
    import torch

    return sum((as_double(tensor).square().sum() for tensor in tensors), torch.zeros((), dtype=torch.float64))
