"""How large gradients, weights and updates are, and how noisy gradients are. None of them is part of LBANN's format.

Each records what it finds as rows of the history and of metrics.jsonl, with mode "train" and the number of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.names import at_least
from descend.errors import ConfigurationError
from descend.train import Callback

if TYPE_CHECKING:
    import torch

    from descend.train import PartView, RunView, StepView

__all__ = ["GradientNoiseScale", "GradientNorm", "UpdateNorm", "WeightNorm"]


def _norm(tensors: list[torch.Tensor]) -> float:
    """‖·‖₂ over all entries of all tensors; waits for the device once."""
    import torch

    return float(torch.stack([t.detach().norm().double() for t in tensors]).norm()) if tensors else 0.0


@dataclass
class GradientNorm(Callback):
    """Records ‖g‖₂ over all gradients as `gradient_norm`.

    Runs:  after_backward, so before any clipping by the loop and before the update.
    Reads: gradients. Changes nothing.
    Costs: one norm for each weights object and one wait for the device, every `every_steps` steps.
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
class WeightNorm(Callback):
    """Records ‖w‖₂ over all trained weights as `weight_norm`.

    Runs:  after_step.
    Reads: weights. Changes nothing.
    Costs: one norm for each weights object and one wait for the device, every `every_steps` steps.
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
class UpdateNorm(Callback):
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
class GradientNoiseScale(Callback):
    """Estimates B_simple = tr(Σ) / |G|², the batch size at which noise and signal of the gradient are equal.

    From m micro-batches of b samples each, with q = mean of |gⱼ|² and Q = |mean of gⱼ|²:

        |G|² ≈ (m Q − q) / (m − 1)        tr(Σ) ≈ b m (q − Q) / (m − 1)

    Both are unbiased; they are averaged over steps, and the ratio of the averages is recorded as `noise_scale`, with
    `gradient_square` and `gradient_variance` beside it.

    Runs:  after_part, after_backward.
    Reads: gradients of the micro-batches. Changes nothing but, where asked to, how a mini-batch is cut.
    Costs: a copy of the gradients, two passes over them a micro-batch and a wait for the device a step.

    Args:
        every_steps: Record every so many steps; each step is used.
        averaged_over: Steps that the running averages reach back; 0 averages all steps alike.
        micro_batch_size: Cut mini-batches so; 0 leaves it to the run.

    Raises:
        ConfigurationError: a number is negative; from a hook, mini-batches that are not cut at all.

    Source: McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, appendix A, in the form that uses all
        micro-batches. Examples have to be independent given the weights: with batch norm the unit is its group. A
        mini-batch with micro-batches of different sizes, such as the last of an epoch, is left out.
    """

    remembers: ClassVar[tuple[str, ...]] = ("steps", "square", "variance")
    records: ClassVar[tuple[str, ...]] = ("noise_scale", "gradient_square", "gradient_variance")

    every_steps: int = 10
    averaged_over: int = 0
    micro_batch_size: int = 0
    steps: int = field(default=0, init=False, repr=False)
    square: float = field(default=0.0, init=False, repr=False)
    variance: float = field(default=0.0, init=False, repr=False)
    _before: list[torch.Tensor] = field(default_factory=list["torch.Tensor"], init=False, repr=False)
    _squares: list[torch.Tensor] = field(default_factory=list["torch.Tensor"], init=False, repr=False)
    _sizes: list[int] = field(default_factory=list[int], init=False, repr=False)

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps")
        at_least(self, 0, "averaged_over", "micro_batch_size")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.steps, self.square, self.variance = 0, 0.0, 0.0
        if self.micro_batch_size:
            run.control.micro_batch_size = self.micro_batch_size

    def after_part(self, part: PartView) -> None:
        """See `Callback.after_part`."""
        if part.parts == 1:
            return
        gradients = [p.grad for p in part.module.parameters() if p.grad is not None]
        if part.index == 0:
            self._before, self._squares, self._sizes = [g.new_zeros(()) for g in gradients], [], []
        own = sum((g - before).double().square().sum() for g, before in zip(gradients, self._before, strict=True))
        self._squares.append(own / part.samples**2)  # pyright: ignore[reportArgumentType]  # a sum of tensors is one
        self._sizes.append(part.samples)
        self._before = [g.clone() for g in gradients]

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        import torch

        parts, size = len(self._sizes), step.run.control.micro_batch_size
        if size is None or (parts == 0 and step.batch.step == 0):
            raise ConfigurationError(
                "GradientNoiseScale compares micro-batches and these mini-batches are not cut: set micro_batch_size= "
                "to a half or less of the mini-batch"
            )
        squares, before = self._squares, self._before
        self._squares, self._before = [], []
        if parts > 1 and len(set(self._sizes)) == 1:
            b = self._sizes[0]
            q = float(torch.stack(squares).mean())
            whole = float(sum(g.double().square().sum() for g in before)) / (b * parts) ** 2
            self._average((parts * whole - q) / (parts - 1), b * parts * (q - whole) / (parts - 1))
        self._sizes = []
        if self.steps and step.step % self.every_steps == 0:
            found = {"gradient_square": self.square, "gradient_variance": self.variance}
            step.run.control.record({"noise_scale": self.variance / self.square, **found}, step.step)

    def _average(self, square: float, variance: float) -> None:
        self.steps += 1
        share = 1 / min(self.steps, self.averaged_over or self.steps)
        self.square += share * (square - self.square)
        self.variance += share * (variance - self.variance)
