"""Recurrent cells: one time step in each call; all calls share the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.graph import (
    Add,
    Concatenation,
    Constant,
    ConstantSubtract,
    Identity,
    Multiply,
    Sigmoid,
    Slice,
    Tanh,
    Weights,
)
from descend.zoo.modules.dense import ChannelwiseFullyConnectedModule, FullyConnectedModule
from descend.zoo.modules.module import Module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from descend.graph import Layer

__all__ = ["GRU", "ChannelwiseGRU", "LSTMCell"]


def _zeros(module: Module, size: int, part: str) -> Layer:
    return Constant(value=0.0, num_neurons=[size], name=module.label(part))


def _pieces(module: Module, x: Layer, size: int, names: Iterable[str], source: str, axis: int = 0) -> list[Layer]:
    """Equal pieces of size entries along an axis, each behind a layer that takes it."""
    names = list(names)
    points = [i * size for i in range(len(names) + 1)]
    cut = Slice(x, axis=axis, slice_points=points, name=module.label(f"{source}_slice"))
    return [Identity(cut, name=module.label(f"{source}_{name}")) for name in names]


class LSTMCell(Module):
    """Long short-term memory.

        f, i, o = σ(parts of W [x, h])        u = tanh(last part of W [x, h])        (each + its bias)
        c ← f ∘ c + i ∘ u                     h ← o ∘ tanh(c)

    Args:
        size: Size of h and c.
        bias: Whether W has a bias.
        weights: Matrix W (4 size, input + size) with its rows in the order f, i, o, u; and its bias.
        name: `lstmcell<N>` without one.
        data_layout: As in a layer.

    Source: Hochreiter and Schmidhuber 1997; Gers, Schmidhuber and Cummins 2000 for f.
    """

    prefix: ClassVar[str] = "lstmcell"

    def __init__(
        self,
        size: int,
        bias: bool = True,
        weights: Weights | Iterable[Weights] = (),
        name: str | None = None,
        data_layout: str | None = None,
    ) -> None:
        super().__init__(name)
        self.size = size
        self.fc = FullyConnectedModule(4 * size, bias, False, weights, name=f"{self.name}_fc", data_layout=data_layout)

    def forward(self, x: Layer, state: tuple[Layer, Layer] | None = None) -> tuple[Layer, tuple[Layer, Layer]]:
        """One step: x and (h, c) to h and the new (h, c); zeros where no state is given."""
        hidden, cell = state or (_zeros(self, self.size, "zero_output"), _zeros(self, self.size, "zero_cell"))
        mixed = self.fc(Concatenation(x, hidden, name=self.label("input")))
        forget, enter, leave, update = _pieces(self, mixed, self.size, ("f", "i", "o", "u"), "gates")
        kept = Multiply(Sigmoid(forget, name=self.label("forget_gate")), cell, name=self.label("kept"))
        new = Multiply(
            Sigmoid(enter, name=self.label("input_gate")),
            Tanh(update, name=self.label("update")),
            name=self.label("new"),
        )
        cell = Add(kept, new, name=self.label("cell"))
        gate = Sigmoid(leave, name=self.label("output_gate"))
        hidden = Multiply(gate, Tanh(cell, name=self.label("cell_tanh")), name=self.label())
        return hidden, (hidden, cell)


class GRU(Module):
    """Gated recurrent unit, as the layer GRU computes it, step by step.

    Args:
        size: Size of the hidden state.
        bias: Whether both maps have a bias.
        weights: Matrices and biases in the order of the layer GRU: W, its bias, U, its bias (without biases: W, U).
        name: `gru<N>` without one.
        data_layout: As in a layer.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078, with the reset gate behind the product.
    """

    prefix: ClassVar[str] = "gru"

    def __init__(
        self,
        size: int,
        bias: bool = True,
        weights: Weights | Iterable[Weights] = (),
        name: str | None = None,
        data_layout: str | None = None,
    ) -> None:
        super().__init__(name)
        self.size = size
        given = [weights] if isinstance(weights, Weights) else list(weights)
        each = 2 if bias else 1
        self.ih, self.hh = (
            FullyConnectedModule(3 * size, bias, False, own, name=f"{self.name}_{part}_fc", data_layout=data_layout)
            for part, own in (("ih", given[:each]), ("hh", given[each:]))
        )

    def forward(self, x: Layer, state: Layer | None = None) -> tuple[Layer, Layer]:
        """One step: x and h to h, given twice as output and state; zeros where no state is given."""
        hidden = _gru_step(self, x, state or _zeros(self, self.size, "zero_state"), (self.ih, self.hh), self.size, 0)
        return hidden, hidden


def _gru_step(module: Module, x: Layer, hidden: Layer, maps: tuple[Module, Module], size: int, axis: int) -> Layer:
    """The new hidden state from x and the old one; gates lie along `axis`."""
    into = _pieces(module, maps[0](x), size, ("r", "z", "n"), "ih", axis)
    back = _pieces(module, maps[1](hidden), size, ("r", "z", "n"), "hh", axis)
    r, z = (
        Sigmoid(Add(a, b, name=module.label(f"{gate}_sum")), name=module.label(gate))
        for gate, a, b in zip(("reset", "update"), into, back, strict=False)
    )
    reset = Multiply(r, back[2], name=module.label("reset_hidden"))
    n = Tanh(Add(into[2], reset, name=module.label("new_sum")), name=module.label("new"))
    fresh = Multiply(ConstantSubtract(z, constant=1.0, name=module.label("share")), n, name=module.label("fresh"))
    return Add(fresh, Multiply(z, hidden, name=module.label("kept")), name=module.label())


class ChannelwiseGRU(Module):
    """A GRU for each channel, all with the same weights.

    Args:
        num_channels: Number of channels.
        size: Size of the hidden state of each.
        bias: Whether both maps have a bias.
        weights: As in GRU.
        name: `channelwisegru<N>` without one.

    Source: as GRU.
    """

    prefix: ClassVar[str] = "channelwisegru"

    def __init__(
        self,
        num_channels: int,
        size: int,
        bias: bool = True,
        weights: Weights | Iterable[Weights] = (),
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.num_channels, self.size = num_channels, size
        given = [weights] if isinstance(weights, Weights) else list(weights)
        each = 2 if bias else 1
        self.ih, self.hh = (
            ChannelwiseFullyConnectedModule(3 * size, bias, False, own, name=f"{self.name}_{part}_fc")
            for part, own in (("ih", given[:each]), ("hh", given[each:]))
        )

    def forward(self, x: Layer, state: Layer | None = None) -> tuple[Layer, Layer]:
        """One step: x (num_channels, any) and h (num_channels, size) to h, given twice; zeros where no h is given."""
        dims = [self.num_channels, self.size]
        start = state or Constant(value=0.0, num_neurons=dims, name=self.label("zero_state"))
        hidden = _gru_step(self, x, start, (self.ih, self.hh), self.size, 1)
        return hidden, hidden
