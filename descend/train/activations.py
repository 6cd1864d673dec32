"""What callbacks see of a module's layers while one mini-batch goes through it.

A callback asks before the mini-batch; nothing is kept or called for a mini-batch that nobody asked about. A lowered
graph reports its layers by itself, under their names in the graph; any other module is asked by forward hooks, under
the names of `named_modules()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from descend.errors import ConfigurationError, nearest
from descend.runtime import Communicator
from descend.train.layers import layer_names

__all__ = ["ActivationRecorder", "Listener", "Outputs"]

Outputs = tuple[torch.Tensor, ...]

# Called with a layer's name and its outputs as soon as they are there; what it returns goes on in their place.
Listener = Callable[[str, Outputs], Outputs | None]


_NOTHING = contextlib.nullcontext()


class ActivationRecorder:
    """The wishes of the callbacks for the mini-batch under way, and what came of them.

    Args:
        module: The module in training.
        process: This process among the ranks that share its mini-batches.
    """

    def __init__(self, module: torch.nn.Module, process: Communicator | None = None) -> None:
        self._module, self._process = module, process or Communicator(device=torch.device("cpu"))
        self._wanted: set[str] = set()
        self._listeners: list[Listener] = []
        self._seen: dict[str, list[Outputs]] = {}
        self._away = False
        self.attempts = 0  # a mini-batch that runs out of memory is begun again

    def layers(self, names: Iterable[str]) -> None:
        """Keep the outputs of these layers until the mini-batch is over.

        Raises:
            ConfigurationError: there is no such layer.
        """
        names = set(names)
        known = layer_names(self._module)
        if unknown := sorted(names.difference(known)):
            raise ConfigurationError(
                [f"there is no layer '{name}'{nearest(name, known) or f'; there are {known}'}" for name in unknown]
            )
        self._wanted |= names

    def listen(self, listener: Listener) -> None:
        """Call `listener` after each layer of this mini-batch."""
        self._listeners.append(listener)

    def outputs(self, name: str) -> Outputs:
        """All outputs of a layer that was asked for, detached, over the whole mini-batch, however it was cut.

        Several ranks put together what each has of it, in the order of ranks, so all of them have to ask.
        """
        parts = self._seen.get(name, [])
        own = [torch.cat([torch.atleast_1d(part) for part in column]) for column in zip(*parts, strict=True)]
        return tuple(own if self._process.world_size == 1 else self._of_all(own))

    def _of_all(self, own: list[torch.Tensor]) -> list[torch.Tensor]:
        """The rows of all ranks; one without samples learns from the others what they look like."""
        told = self._process.all_gather_object([[list(rows.shape[1:]), str(rows.dtype)] for rows in own])
        forms: list[tuple[list[int], str]] = next((forms for forms in told if forms), [])
        empty = [self._empty(shape, kind) for shape, kind in forms]
        return [self._process.all_gather_cat(rows) for rows in own or empty]

    def _empty(self, shape: list[int], kind: str) -> torch.Tensor:
        dtype = getattr(torch, kind.removeprefix("torch."))
        return torch.empty(0, *shape, dtype=dtype, device=self._process.device)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Within this block samples go through the module that count nothing."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    @property
    def wanted(self) -> bool:
        """Whether anybody asked about the mini-batch under way."""
        return bool(self._wanted or self._listeners)

    def attached(self) -> contextlib.AbstractContextManager[None]:
        """Report the layers while this lasts, where anybody asked; what was seen before is forgotten."""
        self._seen = {}
        self.attempts += 1
        return _reporting(self._module, self._report) if self.wanted else _NOTHING

    def clear(self) -> None:
        """The mini-batch is over."""
        if self.wanted:
            self._wanted, self._listeners, self._seen = set(), [], {}

    def _report(self, name: str, outputs: Outputs) -> Outputs:
        if self._away:
            return outputs
        for listener in self._listeners:
            outputs = listener(name, outputs) or outputs
        if name in self._wanted:
            self._seen.setdefault(name, []).append(tuple(output.detach().clone() for output in outputs))
        return outputs


@contextlib.contextmanager
def _reporting(module: Any, report: Callable[[str, Outputs], Outputs]) -> Generator[None]:
    if hasattr(module, "on_layer"):
        module.on_layer = report
        try:
            yield
        finally:
            module.on_layer = None
        return
    with contextlib.ExitStack() as hooks:
        for name, part in module.named_modules():
            if name:
                hooks.callback(part.register_forward_hook(_hook(name, report)).remove)
        yield


def _hook(name: str, report: Callable[[str, Outputs], Outputs]) -> Callable[..., Any]:
    def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return report(name, (output,))[0]
        return None  # a module that returns something else reports its parts alone

    return hook
