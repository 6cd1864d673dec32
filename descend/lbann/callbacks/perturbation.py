"""Random perturbations of hyperparameters and weights; the draws are a function of (seed, callback, step).

A positive setting x becomes x exp(factor · N(0, 1)); of β and of a dropout's keep_prob it is 1 − β that does.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least, require, words
from descend.errors import ConfigurationError
from descend.graph.fields import described_openly
from descend.torch_private import dropout_class
from descend.train import Callback
from descend.train.layers import plan_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.train import RunView, StepView

__all__ = ["PerturbAdam", "PerturbDropout", "PerturbLearningRate", "PerturbWeights"]


def _log_normal(value: float, factor: float, generator: torch.Generator) -> float:
    import torch

    return value * math.exp(factor * float(torch.randn((), generator=generator, dtype=torch.float64)))


class _PerturbOptions(Callback):
    """What changes options of the optimizer has in common."""

    weights: str
    perturb_during_training: bool
    batch_interval: int

    def factors(self) -> Mapping[str, float]:
        """The options that change and how much."""
        raise NotImplementedError

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self._perturb(run, 0)

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        done = step.step - 1
        if self.perturb_during_training and done and done % (self.batch_interval or 1) == 0:
            self._perturb(step.run, done)

    def _perturb(self, run: RunView, step: int) -> None:
        generator = run.control.generator(type(self).__name__, step)
        names = run.control.select(words(self.weights))
        for option, factor in self.factors().items():
            now: dict[str, Any] = run.control.options(option)
            if factor and all(now[name] is None for name in names):
                raise ConfigurationError(f"{type(self).__name__}: no weights have a rule with '{option}' to be changed")
            values = {name: self._changed(option, now[name], factor, generator) for name in names if now[name]}
            if factor:
                run.control.set_each(option, values)  # what is 0, as a rate at the end of a schedule, stays so

    def _changed(self, option: str, value: float, factor: float, generator: torch.Generator) -> float:
        if option in ("beta1", "beta2"):
            return max(1 - _log_normal(1 - value, factor, generator), 0.0)
        return _log_normal(value, factor, generator)


@described_openly
class PerturbAdam(_PerturbOptions):
    """Multiplies learning rate, 1 − β₁, 1 − β₂ and ε of each parameter by log-normal factors.

    Runs:  after_setup; before_step every `batch_interval` steps (0 counts as 1) with `perturb_during_training`.
    Reads: the options in force. Changes them; a β that would be negative is 0.
    Costs: nothing to speak of.

    Raises:
        ConfigurationError: a negative number; at the start, weights of which none is trained by Adam.
    """

    message: ClassVar[str] = "Callback.CallbackPerturbAdam"

    learning_rate_factor: float = 0.0
    beta1_factor: float = 0.0
    beta2_factor: float = 0.0
    eps_factor: float = 0.0
    perturb_during_training: bool = False
    batch_interval: int = 0
    weights: str = ""

    def __post_init__(self) -> None:
        at_least(self, 0, "learning_rate_factor", "beta1_factor", "beta2_factor", "eps_factor", "batch_interval")

    def factors(self) -> Mapping[str, float]:
        """See `_PerturbOptions.factors`."""
        return {
            "lr": self.learning_rate_factor,
            "beta1": self.beta1_factor,
            "beta2": self.beta2_factor,
            "eps": self.eps_factor,
        }


@described_openly
class PerturbLearningRate(_PerturbOptions):
    """Multiplies the learning rate of each parameter by a log-normal factor.

    Runs:  after_setup; before_step every `batch_interval` steps (0 counts as 1) with `perturb_during_training`.
    Reads: the rates in force. Changes them.
    Costs: nothing to speak of.

    Raises:
        ConfigurationError: a negative number.
    """

    message: ClassVar[str] = "Callback.CallbackPerturbLearningRate"

    learning_rate_factor: float = 0.0
    perturb_during_training: bool = False
    batch_interval: int = 0
    weights: str = ""

    def __post_init__(self) -> None:
        at_least(self, 0, "learning_rate_factor", "batch_interval")

    def factors(self) -> Mapping[str, float]:
        """See `_PerturbOptions.factors`."""
        return {"lr": self.learning_rate_factor}


@described_openly
class PerturbDropout(Callback):
    """Multiplies 1 − keep_prob of each Dropout layer by a log-normal factor; keep_prob stays in [0.5, 1].

    In a plain module these are torch's dropout layers, whose p is 1 − keep_prob; they have their own p again after the
    run.

    Runs:  after_setup, after_run.
    Reads: the descriptions of the layers. Changes what they compute.
    Costs: nothing afterwards.

    Args:
        keep_dropout_factor: How much.
        layers: Which; all Dropout layers where none is named.

    Raises:
        ConfigurationError: a negative factor; at the start, no Dropout layer.
    """

    message: ClassVar[str] = "Callback.CallbackPerturbDropout"

    keep_dropout_factor: float = 0.0
    layers: str = ""
    _before = ()  # layers of a plain module with the p that they had

    def __post_init__(self) -> None:
        at_least(self, 0, "keep_dropout_factor")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        chosen = words(self.layers)
        kept = {name: keep for name, keep in _kept(run).items() if keep > 0 and (not chosen or name in chosen)}
        if not kept or len(kept) < len(chosen):
            raise ConfigurationError(f"PerturbDropout: no Dropout layer '{self.layers}' to be changed")
        for name, before in kept.items():
            generator = run.control.generator("PerturbDropout", name)
            drawn = 1 - _log_normal(1 - before, self.keep_dropout_factor, generator)
            keep = min(max(drawn, 0.5), 1.0)
            self._keep(run, name, keep)
            say(f"PerturbDropout: '{name}' keeps {keep:g}, not {before:g}")

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        for layer, p in self._before:
            layer.p = p
        self._before = ()

    def _keep(self, run: RunView, name: str, keep: float) -> None:
        """Let a layer keep another share from now on."""
        module: Any = run.module
        plan = plan_of(module)
        if plan is None:
            layer = module.get_submodule(name)
            self._before = (*self._before, (layer, layer.p))
            layer.p = 1 - keep
            return
        planned = next(planned for planned in plan.layers if planned.name == name)
        changed = copy.copy(planned.layer)
        changed.keep_prob = keep
        module.exchange(replace(planned, layer=changed))


def _kept(run: RunView) -> dict[str, float]:
    """The share that each Dropout layer keeps, by name."""
    plan = plan_of(run.module)
    if plan is not None:
        return {layer.name: layer.layer.keep_prob for layer in plan.layers if hasattr(layer.layer, "keep_prob")}
    found: dict[str, Any] = dict(run.module.named_modules())
    base = dropout_class()
    return {name: 1 - part.p for name, part in found.items() if isinstance(part, base)}


@described_openly
class PerturbWeights(Callback):
    """Adds scale · N(0, 1) to each entry of one parameter with probability `perturb_probability`; such an entry is
    then kept in [lower, upper].

    Runs:  before_step, every `batch_interval` steps but the first.
    Reads: the weights. Changes them.
    Costs: random numbers for each entry.

    Raises:
        ConfigurationError: no weights, a number that is negative, no room between the bounds; at the start, unknown
            weights.
    """

    message: ClassVar[str] = "Callback.CallbackPerturbWeights"

    upper: float = 0.0
    lower: float = 0.0
    scale: float = 0.0
    perturb_probability: float = 0.0
    output_name: str = ""
    batch_interval: int = 1

    def __post_init__(self) -> None:
        require(self, "output_name")
        at_least(self, 0, "scale", "perturb_probability")
        at_least(self, 1, "batch_interval")
        if not self.lower < self.upper:
            raise ConfigurationError(f"PerturbWeights: lower={self.lower:g} must be below upper={self.upper:g}")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        if self.output_name not in run.control.weights:
            raise ConfigurationError(f"PerturbWeights: there are no weights '{self.output_name}'")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        import torch

        done = step.step - 1
        if not done or done % self.batch_interval:
            return
        weights = step.run.control.weights[self.output_name].detach()
        generator = step.run.control.generator("PerturbWeights", self.output_name, done)
        hit = torch.rand(weights.shape, generator=generator) < self.perturb_probability
        noise = self.scale * torch.randn(weights.shape, generator=generator)
        moved = (weights + torch.where(hit, noise, 0.0).to(weights)).clamp(self.lower, self.upper)
        weights.copy_(torch.where(hit.to(weights.device), moved, weights))
