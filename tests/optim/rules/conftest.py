"""What every rule's test needs: runs of all shapes, a plain loop, and a comparison with an independent reference.

A reference is a function `step(w, g, t, lr, decay) -> w` in NumPy's float64 that keeps its own memory; `reference()`
makes a fresh one. Decay that a rule leaves to the engine is put into the gradient here, on both sides from their own
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

SHAPES = [(), (0,), (1,), (4, 3), (2, 3, 4, 5)]
STEPS = 50

Step = Callable[[Any, Any, int, float, float], Any]


def streams(seed: int = 0) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Weights and gradients: all shapes, a transposed matrix, zero weights; a gradient of zeros among the others."""
    random = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    starts = [draw(shape) for shape in SHAPES] + [draw((3, 4)).T, torch.zeros(4, 3, dtype=torch.float64)]
    runs: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for w in starts:
        grads = [draw(tuple(w.shape)) * (10.0 if t == 20 else 1.0) for t in range(STEPS)]
        grads[7] = torch.zeros_like(w)
        runs.append((w, [g.T.contiguous().T for g in grads] if w.dim() == 2 else grads))
    return runs


def loop(rule: Any, w: torch.Tensor, grads: list[torch.Tensor], rates: list[float], decay: float) -> list[torch.Tensor]:
    """Ten lines of what an engine does; decay goes into the gradient unless the rule applies it."""
    p, s, path = w.clone(), rule.init(w), []
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        number = {"t": float(t), "lr": lr, "decay": decay, "scaled": 1.0}
        known = {name: torch.tensor(value, dtype=torch.float64) for name, value in number.items()}
        g = g if "decay" in rule.needs else g + decay * p
        known |= {"g": g, "p": p, "s": s, "shape": p.shape, "norm": torch.Tensor.norm, "total": torch.sum}
        known |= {"row_mean": lambda x: x.mean(-1, keepdim=True), "column_mean": lambda x: x.mean(-2, keepdim=True)}
        known["size"] = torch.tensor(float(p.numel()), dtype=torch.float64)
        known["noise"] = lambda p=p: torch.ones_like(p)
        new, s = getattr(rule, rule.moves)(**{name: known[name] for name in rule.needs})
        p = new if rule.moves == "update" else p - lr * new
        path.append(p)
    return path


def falling(steps: int, start: float) -> list[float]:
    """A rate that changes, so that what is inside and what is outside a buffer shows."""
    return [start * (1 - 0.5 * t / steps) for t in range(steps)]


@pytest.fixture
def agree() -> Callable[..., None]:
    """Compare a rule with its reference after each of 50 steps, to 1e-12, for every stream and several decays."""

    def compare(
        rule: Any, reference: Callable[[], Step], *, lr: float = 0.05, decays: tuple[float, ...] = (0.0, 0.1)
    ) -> None:
        rates = falling(STEPS, lr)
        for w0, grads in streams():
            for decay in decays:
                step, w = reference(), w0.numpy().copy()
                for t, (p, g, rate) in enumerate(
                    zip(loop(rule, w0, grads, rates, decay), grads, rates, strict=True), 1
                ):
                    seen = g.numpy() if "decay" in rule.needs else g.numpy() + decay * w
                    w = step(w, seen, t, rate, decay)
                    assert p.shape == w0.shape
                    np.testing.assert_allclose(p.numpy(), w, rtol=1e-12, atol=1e-12, err_msg=f"{w0.shape}, step {t}")

    return compare


@pytest.fixture
def as_torch() -> Callable[..., None]:
    """Compare a rule under our optimizer with torch's own, in float64, after each of 50 steps."""

    def compare(rule: Any, theirs: Callable[..., torch.optim.Optimizer], tol: float = 1e-12, **options: Any) -> None:
        from descend.optim.optimizer import Optimizer

        for w0, grads in streams(seed=1):
            if w0.numel() == 0:
                continue
            ours, other = torch.nn.Parameter(w0.clone()), torch.nn.Parameter(w0.clone())
            left, right = Optimizer([ours], rule, runner="plain", **options), theirs([other])
            for t, g in enumerate(grads, 1):
                ours.grad, other.grad = g.clone(), g.clone()
                left.step()
                right.step()
                torch.testing.assert_close(ours, other, rtol=tol, atol=tol, msg=lambda m, t=t: f"step {t}: {m}")

    return compare


@pytest.fixture
def first() -> Callable[..., torch.Tensor]:
    """The weights after one step of a rule."""

    def step(rule: Any, w: torch.Tensor, g: torch.Tensor, *, lr: float = 0.1, decay: float = 0.0) -> torch.Tensor:
        return loop(rule, w, [g], [lr], decay)[0]

    return step


@pytest.fixture
def path() -> Callable[..., list[torch.Tensor]]:
    """The plain loop itself."""
    return loop
