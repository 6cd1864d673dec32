"""The learning-rate range test: a short run whose rate grows from step to step, to see where training is fast.

    found = descend.find_learning_rate(
        model, "cross_entropy", (x, y), optimizer=functools.partial(torch.optim.AdamW), batch_size=64
    )
    print(found)                    # rates and losses, and where the loss falls fastest
    found.save("rates.svg")         # a picture; a notebook shows it by itself

It says where a search may begin, no more: the rates of a whole run differ from those of its first hundred steps.

Source: Smith 2017, https://arxiv.org/abs/1506.01186
"""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.arguments import check_integer, check_number, check_path, require
from descend.arguments.strict_keywords import strict_keywords
from descend.errors import ConfigurationError
from descend.experiment.fit import device_of, fit
from descend.pages.chart import Axis, Chart, Line, vega_lite
from descend.pages.draw import draw, is_installed
from descend.runtime import write_beside
from descend.runtime.dtensor import is_sharded
from descend.runtime.seeds import forked_rng
from descend.train import Callback, Steps
from descend.train.param_groups import set_option

if TYPE_CHECKING:
    import os
    from collections.abc import Generator

    from descend.train import RunView, StepView

__all__ = ["LearningRateRange", "find_learning_rate"]

_OWN = (
    "stop",
    "callbacks",
    "run_dir",
    "resume",
    "valid",
    "test",
    "on_nonfinite",
    "reset_optimizer",
    "weights_only",
    "verbose",
)
_MOST_STEPS = 1_000_000  # whose rates and losses are kept
_SETTLED = 5  # steps before a loss counts as diverged or as the smallest


@dataclass(frozen=True)
class LearningRateRange:
    """What came of a range test.

    Attributes:
        rates: Learning rate of each step.
        losses: Objective on the mini-batch of each step, before its update.
        smoothed: The same, as an exponential moving average.
        diverged: Whether the test ended because the loss had grown, and not after all steps.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    diverged: bool

    @property
    def steepest(self) -> float | None:
        """The rate at which the smoothed loss falls fastest by the logarithm of the rate; None where it never falls."""
        logs = [math.log(rate) for rate in self.rates]
        slopes = [
            (self.smoothed[i + 1] - self.smoothed[i - 1]) / (logs[i + 1] - logs[i - 1]) for i in range(1, len(logs) - 1)
        ]
        slope = min(slopes, default=0.0)
        return self.rates[slopes.index(slope) + 1] if slope < 0 else None

    @property
    def lowest(self) -> float:
        """The rate at the smallest smoothed loss; a tenth of it is a common choice for a whole run."""
        return self.rates[self.smoothed.index(min(self.smoothed))]

    def svg(self) -> str:
        """The picture, an SVG document: the loss over the rate, with the two rates marked.

        Raises:
            Unsupported: vl-convert, which draws it, is not installed.
        """
        points = tuple(zip(self.rates, self.smoothed, strict=True))
        lines = [
            Line("each step", tuple(zip(self.rates, self.losses, strict=True)), joined=False, colour=-1),
            Line("smoothed", points, marked=False, colour=0),
        ]
        for name, rate in (("falls fastest", self.steepest), ("smallest", self.lowest)):
            if rate is not None:
                at = (rate, self.smoothed[self.rates.index(rate)])
                lines.append(Line(f"{name}, {rate:.2g}", (at,), colour=len(lines) - 1))
        (drawn,) = draw([vega_lite(Chart(tuple(lines), Axis("learning rate", log=True), Axis("objective")))])
        return drawn

    def _repr_svg_(self) -> str | None:
        return self.svg() if is_installed() else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture into a file.

        Raises:
            ConfigurationError: `path` is not a name of a file.
            StorageError: it cannot be written.
            Unsupported: see `svg`.
        """
        require(check_path("path", path), where="save")
        write_beside(Path(path), self.svg())

    def __repr__(self) -> str:
        fastest = "falls at no rate" if self.steepest is None else f"falls fastest at {self.steepest:.3g}"
        end = f"; it had grown too far at {self.rates[-1]:.3g}" if self.diverged else ""
        return (
            f"LearningRateRange: {len(self.rates)} steps from {self.rates[0]:.3g} to {self.rates[-1]:.3g}: the loss "
            f"{fastest} and is smallest at {self.lowest:.3g}{end}"
        )


@strict_keywords(fit)
def find_learning_rate(
    module: torch.nn.Module,
    loss: Any,
    data: Any,
    *,
    optimizer: Any,
    batch_size: int | None,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
    divergence: float = 4.0,
    **options: Any,
) -> LearningRateRange:
    """Train for some steps at growing learning rates, and put everything back as it was.

    The rate of step i, from 0, is lowest · (highest / lowest)^(i / (steps − 1)); of several parameter groups the
    largest rate is meant, and the others keep their ratio to it. Afterwards weights, buffers, gradients, the modes of
    all layers and the random states of torch, NumPy and Python are as before.

    Args:
        module: As for `fit`.
        loss: As for `fit`.
        data: As for `fit`; where it has too few mini-batches it is gone through several times.
        optimizer: As for `fit`; its learning rate plays no part. A schedule is refused.
        batch_size: As for `fit`, and as in the run that the rate is for.
        lowest: Rate of the first step, above 0.
        highest: Rate of the last step, above `lowest`.
        steps: At least 3, and at most a million.
        smoothing: β of the moving average of the loss, in [0, 1); its bias at the beginning is corrected.
        divergence: Stop once the smoothed loss is not finite, or above the first one and at a greater distance from
            the smallest than `divergence` times that of the first; above 0.
        options: Further arguments of `fit`, such as `precision`, `micro_batch_size`, `clip_global_norm` and `seed`.

    Raises:
        ConfigurationError: a setting is wrong, or one of `fit` that has no meaning here.
        Other errors of `fit`; everything is put back then, too.
    """
    require(
        check_number("lowest", lowest, above=0),
        check_number("highest", highest, above=0),
        check_integer("steps", steps, 3, _MOST_STEPS),
        check_number("smoothing", smoothing, at_least=0, below=1),
        check_number("divergence", divergence, above=0),
        [f"{name} has no meaning in a range test; leave it out" for name in options if name in _OWN],
        where="find_learning_rate",
    )
    if highest <= lowest:
        raise ConfigurationError(f"find_learning_rate: highest must be above lowest={lowest!r}, got {highest!r}")
    rates = [lowest * (highest / lowest) ** (i / (steps - 1)) for i in range(steps)]
    growing = _GrowingRate(rates, smoothing, divergence)
    with _put_back(module):
        fit(
            module,
            loss,
            data,
            optimizer=optimizer,
            batch_size=batch_size,
            stop=Steps(steps),
            callbacks=[growing],
            on_nonfinite="allow",
            verbose=False,
            **options,
        )
    made = len(growing.smoothed)
    return LearningRateRange(tuple(rates[:made]), tuple(growing.losses), tuple(growing.smoothed), growing.diverged)


class _GrowingRate(Callback):
    """Sets the rate of each step and keeps its loss; ends the run where that has grown too far.

    Runs:  after_setup, before_step, after_step.
    Reads: the objective. Changes learning rates.
    Costs: a wait for the device each step.
    """

    def __init__(self, rates: list[float], smoothing: float, divergence: float) -> None:
        self._rates, self._smoothing, self._divergence = rates, smoothing, divergence
        self.losses, self.smoothed, self.diverged = list[float](), list[float](), False
        self._mean = 0.0

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        groups = run.optimizer.param_groups
        if any(group.get("schedule") or callable(group.get("lr")) for group in groups):
            raise ConfigurationError(
                "find_learning_rate: the learning rate of the optimizer is a schedule; pass the optimizer with a number"
            )
        if any("lr" not in group for group in groups):
            raise ConfigurationError(
                f"find_learning_rate: {type(run.optimizer).__name__} has no option 'lr' that could be set"
            )
        given = [float(group["lr"]) for group in groups]
        largest = max(given)
        self._parts = [rate / largest if largest > 0 else 1.0 for rate in given]

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        for group, part in zip(step.optimizer.param_groups, self._parts, strict=True):
            set_option(step.optimizer, group["params"], "lr", self._rates[step.step - 1] * part)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        loss, kept = step.loss, self._smoothing
        self._mean = kept * self._mean + (1 - kept) * loss
        smoothed = self._mean / (1 - kept**step.step)
        finite = math.isfinite(smoothed)
        if finite:
            self.losses.append(loss)
            self.smoothed.append(smoothed)
        first, smallest = self.smoothed[0] if self.smoothed else smoothed, min(self.smoothed, default=smoothed)
        room = self._divergence * max(first - smallest, abs(first) * 0.1)
        if not finite or (step.step > _SETTLED and smoothed > max(first, smallest + room)):
            self.diverged = True
            step.run.control.stop(
                f"the loss had grown to {smoothed:.4g} at a learning rate of {self._rate_of(step):.3g}"
            )

    def _rate_of(self, step: StepView) -> float:
        return self._rates[step.step - 1]


@contextmanager
def _put_back(module: Any) -> Generator[None]:
    """After this block a module and the random states are as before, also after an error."""
    if not isinstance(module, torch.nn.Module):  # `fit` says what is wrong, or takes a model that has one inside
        module = getattr(module, "module", None)
    held = module if isinstance(module, torch.nn.Module) else torch.nn.Module()
    weights = [(p, p.data, p.detach().clone(), p.grad) for p in held.parameters()]
    buffers = [
        (owner, name, buffer, buffer.detach().clone())
        for owner in held.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    modes = [(part, part.training) for part in held.modules()]
    numpy_state, python_state = np.random.get_state(), random.getstate()  # the user's own
    try:
        with forked_rng(device_of(held)):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        with torch.no_grad():
            for p, memory, values, gradient in weights:
                if not is_sharded(p) and p.data_ptr() != memory.data_ptr():
                    p.data = memory  # the optimizer had moved it
                p.copy_(values)
                p.grad = gradient
            for owner, name, buffer, values in buffers:
                buffer.copy_(values)
                setattr(owner, name, buffer)
        for part, training in modes:
            part.training = training
