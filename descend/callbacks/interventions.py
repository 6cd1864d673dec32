"""Callbacks that change training: gradients, samples, frozen layers, weights."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from descend.callbacks.name_fields import at_least, require, words
from descend.errors import ConfigurationError
from descend.graph import IdentityZero
from descend.graph.fields import described_openly
from descend.train import Callback
from descend.train.callback import Beginning
from descend.train.layers import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from descend.train import RunView, StepView

__all__ = ["AlternateUpdates", "ClipGradientNorm", "Mixup", "ReplaceWeights", "SetWeightsValue"]


@described_openly
class ClipGradientNorm(Callback):
    """Scales gradients down to a norm of `value` where theirs is larger.

    Runs:  after_backward.
    Reads: gradients. Changes them.
    Costs: one norm for each parameter, without a wait for the device.

    Args:
        weights: Whose gradients; all trained ones where none is named.
        global_norm: Use the norm of all these gradients together; otherwise each parameter has its own.
        value: The largest norm.

    Raises:
        ConfigurationError: `value` is not above 0.
    """

    message: ClassVar[str] = "Callback.CallbackClipGradientNorm"

    weights: str = ""
    global_norm: bool = False
    value: float = 0.0

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ConfigurationError(f"ClipGradientNorm: value must be a number > 0, got {self.value!r}")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`; unknown weights are refused now."""
        run.control.select(words(self.weights))

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        import torch

        chosen = step.run.control.select(words(self.weights)).values()
        gradients = [p.grad for p in chosen if p.grad is not None]
        norms = [gradient.norm() for gradient in gradients]
        if self.global_norm and norms:
            norms = [torch.stack(norms).norm()] * len(norms)
        for gradient, norm in zip(gradients, norms, strict=True):
            gradient.mul_((self.value / norm).clamp(max=1.0).nan_to_num(nan=1.0))  # 0 / 0 is a gradient of zeros


@described_openly
class Mixup(Callback):
    """Mixes each sample of a training mini-batch with another one of it: λ x + (1 − λ) x′, all fields alike.

    λ = max(λ′, 1 − λ′) with λ′ ~ Beta(alpha, alpha) for each sample, and x′ from a random permutation. Both are
    functions of seed and step.

    Runs:  before_step.
    Reads: the mini-batch. Changes it; how it is cut in micro-batches or shared by ranks makes no difference.
    Costs: one copy of the mini-batch; on several ranks each gets the samples of all.

    Args:
        layers: Input layers. LBANN's Input gives samples and labels at once, so naming any of them mixes both here.
        alpha: 0 mixes nothing.

    Raises:
        ConfigurationError: `alpha` is negative, or a named layer is not an Input; from a hook, integer labels,
            which cannot be mixed.

    Source: Zhang et al. 2018, https://arxiv.org/abs/1710.09412; the maximum as in LBANN's CallbackMixup.
    """

    message: ClassVar[str] = "Callback.CallbackMixup"

    layers: str = ""
    alpha: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "alpha")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        plan = plan_of(run.module)
        inputs = {layer.name for layer in plan.layers if hasattr(layer.layer, "data_field")} if plan else set[str]()
        if plan and (wrong := [name for name in words(self.layers) if name not in inputs]):
            raise ConfigurationError(
                f"Mixup: layer '{wrong[0]}' is not an Input; there are {', '.join(sorted(inputs))}"
            )

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        batch = step.run.control.batch
        if self.alpha == 0:
            return
        draw = np.random.default_rng(step.run.control.generator("Mixup", step.step).initial_seed())
        share = draw.beta(self.alpha, self.alpha, size=batch.size)
        own = slice(batch.position, batch.position + len(batch.ids))  # of several ranks each mixes the samples it has
        share, partner = np.maximum(share, 1 - share)[own], draw.permutation(batch.size)[own]
        of_all = step.run.control.of_all_ranks
        fields = {name: _mixed(name, values, share, partner, of_all) for name, values in batch.fields.items()}
        step.run.control.batch = replace(batch, fields=fields)


def _mixed(
    name: str,
    values: Any,
    share: NDArray[Any],
    partner: NDArray[Any],
    of_all: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    """An array or a tensor mixed with samples of the whole mini-batch."""
    import torch

    tensor = torch.as_tensor(values)
    if not tensor.is_floating_point():
        raise ConfigurationError(
            f"Mixup: field '{name}' has type {values.dtype}, which cannot be mixed; use one-hot vectors as labels"
        )
    own = torch.from_numpy(share).to(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
    mixed = own * tensor + (1 - own) * of_all(tensor)[torch.from_numpy(partner).to(tensor.device)]
    return mixed.numpy() if isinstance(values, np.ndarray) else mixed


@described_openly
class AlternateUpdates(Callback):
    """Trains `layers_1` for `iters_1` steps with `layers_2` frozen, then the other way round for `iters_2`, and so on.

    Runs:  before_step, after_training, after_run.
    Reads: the number of the step. Changes which weights get gradients; an IdentityZero among frozen layers gives zeros.
    Costs: nothing; frozen weights need no gradient.

    Raises:
        ConfigurationError: no layers, or a number of steps below 1; at the start, layers that share weights.
    """

    message: ClassVar[str] = "Callback.CallbackAlternateUpdates"

    layers_1: str = ""
    layers_2: str = ""
    iters_1: int = 0
    iters_2: int = 0

    def __post_init__(self) -> None:
        require(self, "layers_1", "layers_2")
        at_least(self, 1, "iters_1", "iters_2")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        first, second = self._weights(run)
        if shared := [name for name in first if name in second]:
            raise ConfigurationError(f"AlternateUpdates: weights '{shared[0]}' belong to layers of both sets")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`: the second set has its turn after the first."""
        return Beginning(f"iters_1={self.iters_1}", "updates", self.iters_1 + 1)

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        place = (step.step - 1) % (self.iters_1 + self.iters_2)
        if place in (0, self.iters_1) or step.run.step == step.step - 1:
            self._free(step.run, first=place < self.iters_1, second=place >= self.iters_1)

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        self._free(run, first=True, second=True)

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        self._free(run, first=True, second=True)

    def _free(self, run: RunView, first: bool, second: bool) -> None:
        for weights, free in zip(self._weights(run), (first, second), strict=True):
            for p in weights.values():
                p.requires_grad_(free)
        for layers, free in ((self.layers_1, first), (self.layers_2, second)):
            _switch(run, words(layers), frozen=not free)

    def _weights(self, run: RunView) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        trained = run.control.trained
        first, second = (
            {name: p for name, p in run.control.weights_of(words(layers)).items() if name in trained}
            for layers in (self.layers_1, self.layers_2)
        )
        return first, second


def _switch(run: RunView, names: tuple[str, ...], frozen: bool) -> None:
    """Freeze or unfreeze the layers of these names that have state besides their weights."""
    plan, module = plan_of(run.module), cast("Any", run.module)
    for planned in plan.layers if plan is not None else ():
        if planned.name in names and isinstance(planned.layer, IdentityZero):
            layer = copy.copy(planned.layer)
            layer.freeze = frozen
            module.exchange(replace(planned, layer=layer))


@described_openly
class ReplaceWeights(Callback):
    """Copies the weights of each source layer over those of the destination layer at the same place of the list.

    Runs:  after_step, every `batch_interval` steps.
    Reads: weights. Changes weights; the optimizer's state of them stays.
    Costs: a copy of these weights.

    Raises:
        ConfigurationError: no layers, or an interval below 1; at the start, lists of different length or weights of
            different shapes.
    """

    message: ClassVar[str] = "Callback.CallbackReplaceWeights"

    source_layers: str = ""
    destination_layers: str = ""
    batch_interval: int = 1

    def __post_init__(self) -> None:
        require(self, "source_layers", "destination_layers")
        at_least(self, 1, "batch_interval")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`."""
        return Beginning(f"batch_interval={self.batch_interval}", "updates", self.batch_interval)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        sources, destinations = self._pairs(run)
        shapes = [[tuple(p.shape) for p in weights] for weights in (sources, destinations)]
        if shapes[0] != shapes[1]:
            raise ConfigurationError(
                f"ReplaceWeights: the weights of '{self.source_layers}' are {shapes[0]} and those of "
                f"'{self.destination_layers}' {shapes[1]}"
            )

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        import torch

        if step.step % self.batch_interval == 0:
            with torch.no_grad():
                for source, destination in zip(*self._pairs(step.run), strict=True):
                    destination.copy_(source)

    def _pairs(self, run: RunView) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        of = run.control.weights_of
        return list(of(words(self.source_layers)).values()), list(of(words(self.destination_layers)).values())


@described_openly
class SetWeightsValue(Callback):
    """Fills weights with `value` before the training step that follows `step` updates.

    Runs:  before_step.
    Reads: the number of the step. Changes weights, trained or not.
    Costs: nothing in all other steps.

    Raises:
        ConfigurationError: no weights, or a negative step; from a hook, unknown weights.
    """

    message: ClassVar[str] = "Callback.CallbackSetWeightsValue"

    weights: str = ""
    value: float = 0.0
    step: int = 0

    def __post_init__(self) -> None:
        require(self, "weights")
        at_least(self, 0, "step")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`: it acts before the update that follows."""
        return Beginning(f"step={self.step}", "updates", self.step + 1)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        if missing := [name for name in words(self.weights) if name not in run.control.weights]:
            raise ConfigurationError(f"SetWeightsValue: there are no weights '{missing[0]}'")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if step.step - 1 == self.step:
            for name in words(self.weights):
                step.run.control.weights[name].detach().fill_(self.value)
