"""One optimizer of another library, timed on request: `python peers.py LIBRARY NAME`, in an environment that has it.

Reads the shapes and the optimizer's options as one line of JSON, then answers each further line with the seconds of one
more step. Before each its library's threads work for a moment, as those of the other contenders did when their turn
comes: woken from sleep, the first operation takes some milliseconds more. It imports nothing of descend;
benchmarks/optimizer_step.py starts it.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Steps = tuple[Callable[[], object], Callable[[], object]]  # one of the optimizer, and a copy that wakes threads

WAKE_SECONDS = 0.05
COPIED = 2**20  # elements, which several threads copy


def pytorch_optimizer_step(name: str, shapes: list[list[int]], options: dict[str, Any]) -> Steps:
    """A step of one of pytorch_optimizer's classes."""
    import pytorch_optimizer
    import torch

    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in weights:
        p.grad = torch.randn_like(p) * 1e-3
    optimizer = getattr(pytorch_optimizer, name)(weights, lr=1e-3, **options)
    if hasattr(optimizer, "train"):  # of the schedule-free rules, which take no step before
        optimizer.train()
    one, two = torch.zeros(COPIED), torch.ones(COPIED)
    return optimizer.step, lambda: one.copy_(two)


def optax_step(name: str, shapes: list[list[int]], options: dict[str, Any]) -> Steps:
    """A jitted step of one of optax's functions, weights and state given up to it."""
    import jax
    import optax

    keys = jax.random.split(jax.random.PRNGKey(0), len(shapes))
    weights = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    gradients = [1e-3 * w for w in weights]
    rule = operator.attrgetter(name)(optax)(1e-3, **options)

    def update(held: tuple[object, object], given: object) -> tuple[object, object]:
        weights, state = held
        moves, state = rule.update(given, state, weights)
        return optax.apply_updates(weights, moves), state

    jitted = jax.jit(update, donate_argnums=0)
    held = (weights, rule.init(weights))

    def step() -> None:
        nonlocal held
        held = jitted(held, gradients)
        jax.block_until_ready(held)

    doubled, one = jax.jit(lambda x: x + x), jax.numpy.ones(COPIED)
    return step, lambda: jax.block_until_ready(doubled(one))


STEPS = {"pytorch_optimizer": pytorch_optimizer_step, "optax": optax_step}


def main() -> None:
    """Serve one optimizer."""
    library, name = sys.argv[1:]
    shapes, options = json.loads(sys.stdin.readline())
    step, wake = STEPS[library](name, shapes, options)
    for _ in sys.stdin:
        end = time.perf_counter() + WAKE_SECONDS
        while time.perf_counter() < end:
            wake()
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
