"""Curvature of the objective: its largest Hessian eigenvalue, by Lanczos iterations, and how stable a step is.

No Hessian is formed: an iteration is one product of it with a vector, which costs about two gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from descend.callbacks.name_fields import at_least
from descend.errors import ConfigurationError, Unsupported
from descend.train import Callback, Mode
from descend.train.param_groups import current_learning_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor

    from descend.train import RunView, StepView

    HessianProduct = Callable[[Sequence[Tensor]], Sequence[Tensor]]

__all__ = ["Extremes", "Sharpness", "lanczos", "stability_limit"]


class Extremes(NamedTuple):
    """The ends of a spectrum as an iteration found them.

    Attributes:
        largest: The largest eigenvalue; never above the true one but for rounding.
        smallest: The smallest one; never below the true one.
        error: Some eigenvalue lies within this distance of `largest`.
        iterations: Products that were taken.
    """

    largest: float
    smallest: float
    error: float
    iterations: int


def lanczos(
    product: HessianProduct,
    start: Sequence[Tensor],
    iterations: int,
    tolerance: float = 1e-3,
) -> Extremes:
    """Extreme eigenvalues of a symmetric operator by Lanczos' method with full reorthogonalization.

        β₁ q₁ = start,    αⱼ = qⱼ · A qⱼ,    βⱼ₊₁ qⱼ₊₁ = A qⱼ − αⱼ qⱼ − βⱼ qⱼ₋₁

    The eigenvalues θ of the tridiagonal matrix of α and β approach those of A from within, and |βⱼ₊₁ s| bounds the
    distance of θ to one of A, s being the last entry of its eigenvector.

    Args:
        product: A v, for tensors shaped like those of `start`.
        start: Where the iteration begins, not zero; a random vector meets every eigenvector.
        iterations: At most so many products.
        tolerance: It ends when the bound is at most so many times |largest|.

    Returns:
        The extremes; NaN where a product is not finite.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, 10.1 and 10.3.
    """
    import torch

    flat = _flat(start)
    basis = [flat / flat.norm()]
    alphas: list[float] = []
    betas: list[float] = []
    found = Extremes(math.nan, math.nan, math.inf, 0)
    for count in range(1, min(iterations, flat.numel()) + 1):
        w = _flat(product(_shaped(basis[-1], start)))
        alphas.append(float(w @ basis[-1]))
        for _ in range(2):  # once more, since rounding leaves a part of what it removes
            for q in basis:
                w = w - (w @ q) * q
        beta = float(w.norm())
        if not math.isfinite(alphas[-1] + beta):
            return Extremes(math.nan, math.nan, math.inf, count)
        band = torch.tensor(betas, dtype=torch.float64)
        matrix = torch.diag(torch.tensor(alphas, dtype=torch.float64)) + torch.diag(band, 1) + torch.diag(band, -1)
        values, vectors = torch.linalg.eigh(matrix)
        error = abs(beta * float(vectors[-1, -1]))
        found = Extremes(float(values[-1]), float(values[0]), error, count)
        if error <= tolerance * abs(found.largest):
            break
        betas.append(beta)
        basis.append(w / beta)
    return found


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _shaped(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([t.numel() for t in like])
    return [part.reshape(t.shape) for part, t in zip(parts, like, strict=True)]


def stability_limit(rule: str, constants: Mapping[str, Any]) -> float:
    """The product of learning rate and (preconditioned) curvature above which a step on a quadratic grows.

    Args:
        rule: "sgd", "nag", "adam" or "adamw".
        constants: Of the rule: momentum, nesterov, beta1.

    Raises:
        Unsupported: no such limit is known of the rule.

    Source: heavy ball 2 (1 + μ) and Nesterov 2 (1 + μ) / (1 + 2 μ), e.g. Cohen et al. 2021,
        https://arxiv.org/abs/2103.00065, appendix B; Adam 2 (1 + β₁) / (1 − β₁) for the Hessian between two factors
        (√v̂ + ε)^−½, Cohen et al. 2022, https://arxiv.org/abs/2207.14484, section 3.
    """
    name = rule.lower()
    if name in ("sgd", "nag"):
        mu = float(constants.get("momentum", 0.0))
        if constants.get("dampening"):
            raise Unsupported(f"{rule} with dampening: no stability limit is known of it here")
        nesterov = name == "nag" or bool(constants.get("nesterov"))
        return 2 * (1 + mu) / ((1 + 2 * mu) if nesterov else 1)
    if name in ("adam", "adamw"):
        beta1 = float(constants.get("beta1", 0.9))
        return 2 * (1 + beta1) / (1 - beta1)
    raise Unsupported(f"{rule}: no stability limit is known of it; there are limits of SGD, NAG, Adam and AdamW")


@dataclass
class Sharpness(Callback):
    """Records the largest eigenvalue of the Hessian of the objective as `sharpness`, and how near a step is to growing.

    Beside it stand `sharpness_error`, a bound, `hessian_smallest`, the other end of the spectrum, and `stability`: the
    learning rate times the curvature over its limit, see `stability_limit`. Above 1 a step along the sharpest direction
    overshoots by more than it came; a warm-up is long enough where `stability` stays about 1 or below. For Adam the
    curvature is that of the Hessian between two factors (√v̂ + ε)^−½, recorded as `preconditioned_sharpness`. Weights
    with learning rates of their own are scaled by them; `stability` is left out for rules of which no limit is known.

    Runs:  before_run, after_step.
    Reads: weights, state of the optimizer, the objective of one mini-batch with its penalties; decay by the optimizer
        is no part of it. Changes nothing.
    Costs: up to `iterations` times two gradients of a mini-batch, twice that with Adam, and as many copies of the
        weights, every `every_steps` steps.

    Args:
        every_steps: Look every so many updates, and before the first.
        iterations: Products with the Hessian, at most.
        tolerance: Of the bound relative to the eigenvalue, at which the iteration ends.
        samples: "first" looks at the first mini-batch of the data throughout, "newest" at that of the step.
        at: Look after these updates instead of `every_steps`.

    Raises:
        ConfigurationError: a number is out of range; from a hook, there are no training data.
        Unsupported: from a hook, where FSDP2 shards the module, or an operation has no second derivative.

    Source: Gilmer et al. 2021, https://arxiv.org/abs/2110.04369 (curvature and warm-up).
    """

    records: ClassVar[tuple[str, ...]] = (
        "sharpness",
        "sharpness_error",
        "hessian_smallest",
        "preconditioned_sharpness",
        "stability",
    )

    every_steps: int = 100
    iterations: int = 30
    tolerance: float = 1e-2
    samples: str = "first"
    at: tuple[int, ...] = ()
    found: list[tuple[int, dict[str, float]]] = field(
        default_factory=list[tuple[int, dict[str, float]]], init=False, repr=False
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps", "iterations")
        if self.samples not in ("first", "newest"):
            raise ConfigurationError(f"Sharpness: samples must be 'first' or 'newest', got {self.samples!r}")
        if not 0 < self.tolerance < 1:
            raise ConfigurationError(f"Sharpness: tolerance must be above 0 and below 1, got {self.tolerance!r}")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        from descend.runtime.dtensor import is_sharded

        if any(is_sharded(p) for p in run.module.parameters()):
            raise Unsupported("Sharpness takes second derivatives, and FSDP2 shards the module: remove the callback")
        self.found = []

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        if run.step == 0 and (not self.at or 0 in self.at):
            self._look(run, 0)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step in self.at if self.at else step.step % self.every_steps == 0:
            self._look(step.run, step.step)

    def _look(self, run: RunView, step: int) -> None:
        import torch

        control = run.control
        batch = None if self.samples == "first" else control.probe.last_batch(Mode.TRAIN)
        if batch is None:
            batch = control.probe.first_batch(Mode.TRAIN)
        if batch is None:
            raise ConfigurationError("Sharpness needs training data, and the run has none")
        draw = control.generator("sharpness", step)
        trained = control.trained
        start = [torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p) for p in trained.values()]
        with control.probe.hessian(batch) as product:
            ends = lanczos(product, start, self.iterations, self.tolerance)
            values = {"sharpness": ends.largest, "sharpness_error": ends.error, "hessian_smallest": ends.smallest}
            values |= self._stability(run, product, start)
        self.found.append((step, values))
        if step:
            control.record(values, step)

    def _stability(self, run: RunView, product: HessianProduct, start: list[Any]) -> dict[str, float]:
        """How near a step is to growing; nothing where no limit is known of a rule."""
        rates = current_learning_rates(run.optimizer)
        try:
            scales = [_scale(run.optimizer, p, rates[id(p)]) for p in run.control.trained.values()]
        except Unsupported:
            return {}
        known = [scale for scale in scales if scale is not None]
        limits, rate = {scale.limit for scale in known}, max((scale.rate for scale in known), default=0.0)
        if len(known) < len(scales) or len(limits) != 1 or rate <= 0:
            return {}
        root = [(scale.factor * (scale.rate / rate)) ** 0.5 for scale in known]

        def scaled(vector: Sequence[Tensor]) -> list[Tensor]:
            inner = [r * v for r, v in zip(root, vector, strict=True)]
            return [r * h for r, h in zip(root, product(inner), strict=True)]

        ends = lanczos(scaled, start, self.iterations, self.tolerance)
        values = {"stability": rate * ends.largest / limits.pop()}
        return {"preconditioned_sharpness": ends.largest, **values} if known[0].preconditioned else values


class _Scale(NamedTuple):
    """What a rule multiplies the gradient of a tensor by.

    Attributes:
        rate: Learning rate.
        limit: See `stability_limit`.
        factor: 1, or 1 / (√v̂ + ε), shaped like the tensor.
        preconditioned: Whether it is the latter.
    """

    rate: float
    limit: float
    factor: Any
    preconditioned: bool


def _scale(optimizer: torch.optim.Optimizer, p: Tensor, rate: float) -> _Scale | None:
    """That of a tensor; None before the first update of a rule that scales by what it has seen.

    Raises:
        Unsupported: no limit is known of its rule.
    """
    import torch

    group = next(one for one in optimizer.param_groups if any(p is own for own in one["params"]))
    rule = type(group["rule"]).__name__ if "rule" in group else type(optimizer).__name__
    constants = group if "beta1" in group or "betas" not in group else {**group, "beta1": group["betas"][0]}
    limit = stability_limit(rule, constants)
    if rule.lower() in ("sgd", "nag"):
        return _Scale(rate, limit, torch.ones((), dtype=p.dtype, device=p.device), False)
    if group.get("amsgrad") or group.get("eps_at", "outside") != "outside":
        raise Unsupported(f"{rule} with amsgrad, or another place of ε: no stability limit is known of it here")
    state: Mapping[str, Any] = optimizer.state.get(p, {})
    v = state.get("v", state.get("exp_avg_sq"))
    if v is None or not float(state["step"]):
        return None
    beta2 = float(constants.get("beta2", constants.get("betas", (0.9, 0.999))[1]))
    corrected = v / (1 - beta2 ** float(state["step"])) if constants.get("bias_correction", True) else v
    return _Scale(rate, limit, 1 / (corrected.to(p).sqrt() + float(group["eps"])), True)
