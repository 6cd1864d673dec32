"""Dropout whose masks do not depend on micro-batches and ranks.

Within the context of `ReproducibleDropout`, the mask of a sample is a function of (seed, step, name of the layer,
number of its call in the forward pass, position of the sample in the mini-batch): the same for any micro-batch size and
any number of ranks, and where activation checkpointing repeats a call in the backward pass. It covers the modules of
torch listed in `_LAYERS`. Random numbers drawn by functions, such as torch.nn.functional.dropout or the dropout inside
nn.LSTM and nn.MultiheadAttention, still depend on (seed, step) and on how the mini-batch is split.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from descend.runtime import seed_of
from descend.train.patches import ReplacedForward

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["RANDOM_LAYERS", "ReproducibleDropout", "advanced", "marks_drawn", "philox_words", "unsupported_dropout"]

_WORD = 2**32
_PER_COUNT = 8  # 32-bit words that Philox generates per value of its counter
_COMPILED = "_orig_mod."  # what torch.compile puts before the names of what it wraps
_ALPHA = 1.7580993408473766  # minus the limit of SELU at minus infinity, Klambauer et al. 2017, section 2


def unsupported_dropout(module: nn.Module) -> list[str]:
    """Names of the modules whose dropout is a function inside them, which is not patched."""
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    return [name for name, part in module.named_modules() if isinstance(part, kinds) and part.dropout > 0]


class ReproducibleDropout:
    """Context manager that replaces `forward` of the random layers of a module.

    Args:
        module: The module; within the context its random layers have another `forward`.
        seed: Seed of the run.

    Attributes:
        has_layers: Whether the module has random layers.
        calls: By name of a layer, the numbers of its calls in this forward pass, by what tells a repeated call.
    """

    def __init__(self, module: nn.Module, seed: int) -> None:
        named = ((name.replace(_COMPILED, ""), layer) for name, layer in module.named_modules())
        self._layers = [(name, layer) for name, layer in named if type(layer) in _LAYERS]
        self.has_layers = bool(self._layers)
        self._seed = seed
        self._step = self._count = self._position = 0
        self.calls: dict[str, dict[int, int]] = {}

    def begin(self, step: int, count: int, position: int) -> None:
        """Set the samples of the next forward pass: `count` of them, from `position` in the mini-batch on."""
        self._step, self._count, self._position = step, count, position
        self.calls.clear()

    def __enter__(self) -> Self:
        for name, layer in self._layers:
            layer.forward = ReplacedForward(layer, self._replacement(name, layer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, layer in self._layers:
            del layer.forward  # which leaves the method of its class

    def _replacement(self, name: str, layer: Any) -> Callable[[Tensor], Tensor]:
        original, apply = layer.forward, _LAYERS[type(layer)]

        def forward(input: Tensor) -> Tensor:  # noqa: A002  # torch's name for it
            if not layer.training or not self._count or not input.ndim or len(input) % self._count:
                return original(input)
            call = self.number_of_call(name)
            first = self._position * (len(input) // self._count)
            result = apply(layer, input, self.words(name, call, first, len(input), input.device))
            return original(input) if result is None else result

        return forward

    def number_of_call(self, name: str) -> int:
        """The number of a call in the forward pass, from 1; one that is repeated in the backward pass keeps its own.

        Whatever repeats a part of a forward pass, such as torch.utils.checkpoint, restores torch's generator for it. So
        a number drawn from that is new in a new call, and in a repeated one that of the first time.
        """
        calls = self.calls.setdefault(name, {})
        return calls.setdefault(_mark(), len(calls) + 1)

    def words(self, name: str, call: int, first: int, rows: int, device: torch.device) -> Callable[[int], Tensor]:
        """A function of the words needed per row, which draws them for one call of a layer; see `philox_words`."""
        return partial(philox_words, self._seed, self._step, name, call, first, rows, device)


_drawn = 0


def _mark(generator: torch.Generator | None = None) -> int:
    global _drawn  # torch's generator is one for the process, too
    _drawn += generator is None
    return int(torch.randint(2**63 - 1, (), device="cpu", generator=generator).numpy())  # which no device waits for


def marks_drawn() -> int:
    """How many numbers this process has drawn from torch's generator to know calls again."""
    return _drawn


def advanced(state: Tensor, marks: int) -> Tensor:
    """The state of torch's generator after so many of these numbers."""
    generator = torch.Generator()
    generator.set_state(state)
    for _ in range(marks):
        _mark(generator)
    return generator.get_state()


def philox_words(
    seed: int, step: int, name: str, call: int, first: int, rows: int, device: torch.device, width: int
) -> Tensor:
    """Integers (rows, width), uniform in [0, 2³²).

    Args:
        seed: Seed of the run.
        step: Number of the update.
        name: Name of the layer.
        call: Number of the call within a forward pass, from 1.
        first: Index in the whole mini-batch of row 0.
        rows: Rows of the layer's input.
        device: Device of the result.
        width: Integers per row.
    """
    return _words(seed_of(seed, "mask", name, step, call), first, rows, device, width)


def _words(key: int, first: int, rows: int, device: torch.device, width: int) -> Tensor:
    """Integers (rows, width), uniform in [0, 2³²); row i is a function of (key, first + i) alone."""
    return _on_cpu(key, first, rows, width) if device.type == "cpu" else _on_device(key, first, rows, width, device)


def _on_cpu(key: int, first: int, rows: int, width: int) -> Tensor:
    """Philox 4x64-10 (Salmon et al. 2011), whose counter can start anywhere."""
    counts = -(-width // _PER_COUNT)
    raw = np.random.Philox(key=key, counter=[first * counts, 0, 0, 0]).random_raw(rows * counts * _PER_COUNT // 2)
    words = raw.view(np.uint32).reshape(rows, counts * _PER_COUNT)[:, :width]
    return torch.from_numpy(words)


def _on_device(key: int, first: int, rows: int, width: int, device: torch.device) -> Tensor:
    """SplitMix64 of the element's index, in a few kernels; see `descend.data.order`."""
    x = torch.arange(first * width, (first + rows) * width, dtype=torch.int64, device=device) + 1
    x = x * _signed(0x9E3779B97F4A7C15) + _signed(key)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(x, 32).reshape(rows, width)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _kept(words: Any, width: int, p: float) -> Tensor:
    """Booleans (rows, width), each False with probability p."""
    drawn = words(width)
    if drawn.dtype == torch.uint32:  # which NumPy can compare, and torch on a CPU cannot
        return torch.from_numpy(drawn.numpy() >= np.uint32(min(round(p * _WORD), _WORD - 1)))
    return drawn >= round(p * _WORD)


def _mask(layer: Any, x: Tensor, words: Any, features: bool) -> Tensor | None:
    """True where x is kept, in a shape that broadcasts to x; None if the layer draws nothing or x has no batch."""
    if not 0 < layer.p < 1:
        return None
    if not features:
        return _kept(words, math.prod(x.shape[1:]), layer.p).reshape(x.shape)
    return _kept(words, x.shape[1], layer.p).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)) if x.ndim > 2 else None


def _dropout(features_of: int | None) -> Any:
    def apply(layer: Any, x: Tensor, words: Any) -> Tensor | None:
        if features_of is not None and x.ndim != features_of:
            return None
        mask = _mask(layer, x, words, features_of is not None)
        return None if mask is None else x * mask.to(x.dtype).mul_(1 / (1 - layer.p))

    return apply


def _alpha_dropout(features: bool) -> Any:
    """Dropout that keeps mean 0 and variance 1: Klambauer et al. 2017, section 3, "New Dropout Technique"."""

    def apply(layer: Any, x: Tensor, words: Any) -> Tensor | None:
        mask = _mask(layer, x, words, features)
        if mask is None:
            return None
        scale = (1 - layer.p) ** -0.5 * (1 + layer.p * _ALPHA**2) ** -0.5
        return scale * (torch.where(mask, x, -_ALPHA) + _ALPHA * layer.p)

    return apply


def _rrelu(layer: Any, x: Tensor, words: Any) -> Tensor:
    """Slopes of negative inputs are uniform in [lower, upper): Xu et al. 2015."""
    drawn = words(math.prod(x.shape[1:])).to(torch.float64).reshape(x.shape) / _WORD
    slope = (layer.lower + (layer.upper - layer.lower) * drawn).to(x.dtype)
    return torch.where(x >= 0, x, x * slope)


_LAYERS: dict[type[nn.Module], Any] = {
    nn.Dropout: _dropout(None),
    nn.Dropout1d: _dropout(3),
    nn.Dropout2d: _dropout(4),
    nn.Dropout3d: _dropout(5),
    nn.AlphaDropout: _alpha_dropout(features=False),
    nn.FeatureAlphaDropout: _alpha_dropout(features=True),
    nn.RReLU: _rrelu,
}

RANDOM_LAYERS = tuple(_LAYERS)
