"""Records activations: outputs of layers during one mini-batch, for callbacks.

A callback requests them before the mini-batch; for a mini-batch without a request nothing is stored and no hook is
set. A lowered graph reports its layers by their names in the graph; any other module is observed with forward hooks,
by the names of `named_modules()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from descend.errors import ConfigurationError, nearest
from descend.runtime import Communicator
from descend.torch_private import is_in_backward
from descend.train.layers import layer_names

__all__ = ["ActivationRecorder", "Listener", "Outputs"]

Outputs = tuple[torch.Tensor, ...]

# Called with a layer's name and its outputs as soon as they are computed; what it returns replaces them.
Listener = Callable[[str, Outputs], Outputs | None]


_NOTHING = contextlib.nullcontext()


class ActivationRecorder:
    """The outputs of layers that callbacks have requested for the current mini-batch.

    Args:
        module: The module in training.
        process: The communicator of the ranks that share its mini-batches.

    Attributes:
        attempts: Forward passes of mini-batches so far; one that runs out of memory is repeated and counts again.
    """

    def __init__(self, module: torch.nn.Module, process: Communicator | None = None) -> None:
        self._module, self._process = module, process or Communicator(device=torch.device("cpu"))
        self._wanted: set[str] = set()
        self._listeners: list[Listener] = []
        self._seen: dict[str, list[Outputs]] = {}
        self._paused = False
        self.attempts = 0

    def layers(self, names: Iterable[str]) -> None:
        """Record the outputs of these layers until the mini-batch is over.

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
        """All outputs of a requested layer, detached, over the whole mini-batch, whatever the micro-batches.

        With several ranks they are gathered in the order of ranks: a collective, which every rank must call.
        """
        parts = self._seen.get(name, [])
        own = [torch.cat([torch.atleast_1d(part) for part in column]) for column in zip(*parts, strict=True)]
        return tuple(own if self._process.world_size == 1 else self._of_all(own))

    def _of_all(self, own: list[torch.Tensor]) -> list[torch.Tensor]:
        """The rows of all ranks; a rank without samples takes shape and dtype from the others."""
        gathered = self._process.all_gather_object([[list(rows.shape[1:]), str(rows.dtype)] for rows in own])
        forms: list[tuple[list[int], str]] = next((forms for forms in gathered if forms), [])
        empty = [self._empty(shape, kind) for shape, kind in forms]
        return [self._process.all_gather_cat(rows) for rows in own or empty]

    def _empty(self, shape: list[int], kind: str) -> torch.Tensor:
        dtype = getattr(torch, kind.removeprefix("torch."))
        return torch.empty(0, *shape, dtype=dtype, device=self._process.device)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Within this block nothing is recorded: padding micro-batches, whose samples do not count, are run."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @property
    def wanted(self) -> bool:
        """Whether anything was requested for the current mini-batch."""
        return bool(self._wanted or self._listeners)

    def attached(self) -> contextlib.AbstractContextManager[None]:
        """Record within this context, if anything was requested; earlier recordings are dropped."""
        self._seen = {}
        self.attempts += 1
        return _reporting(self._module, self._report) if self.wanted else _NOTHING

    def clear(self) -> None:
        """Drop requests and recordings: the mini-batch is over."""
        if self.wanted:
            self._wanted, self._listeners, self._seen = set(), [], {}

    def _report(self, name: str, outputs: Outputs) -> Outputs:
        if self._paused:
            return outputs
        for listener in self._listeners:
            outputs = listener(name, outputs) or outputs
        if name in self._wanted and not is_in_backward():  # where a part of the forward pass is repeated
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
        return None  # a module that returns no tensor is not recorded; its submodules are

    return hook
