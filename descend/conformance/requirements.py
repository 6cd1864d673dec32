"""What a step asks for where dense gradients in the weights are not enough for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from descend.conformance.candidate import Candidate, draw

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["requirements_of"]


def _with_closure(optimizer: Any, p: torch.nn.Parameter) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def _with_loss(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.grad = draw(p.shape, 1)
    optimizer.step(lambda: 1.0)


def _with_graph(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.pow(3).sum().backward(create_graph=True)
    optimizer.step()


def _with_rows(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.grad = draw(p.shape, 1).to_sparse(1)
    optimizer.step()


_ATTEMPTS: tuple[tuple[str, Callable[[Any, torch.nn.Parameter], None]], ...] = (
    ("a closure", _with_closure),
    ("a closure", _with_loss),
    ("gradients that can be differentiated once more", _with_graph),
    ("sparse gradients", _with_rows),
)


def requirements_of(subject: Candidate) -> str | None:
    """Which of these lets an optimizer step that raises without them; None where none does."""
    for words, attempt in _ATTEMPTS:
        p = torch.nn.Parameter(draw((4, 3), 0))
        try:
            attempt(subject.over([p]), p)
        except Exception:  # whatever it raises, this is not what it asks for
            continue
        return words
    return None
