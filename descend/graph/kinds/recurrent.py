"""Layers that walk along a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import GraphError
from descend.graph.layer import Layer, WeightSlot, shown
from descend.graph.weights import UniformInitializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = ["GRU"]


class GRU(Layer):
    """Gated recurrent units in `num_layers` layers (1 unless set), each working on what the one below gives.

        r = σ(W_r x + b_r + U_r h + c_r)        z = σ(W_z x + b_z + U_z h + c_z)
        n = tanh(W_n x + b_n + r ∘ (U_n h + c_n))        h ← (1 − z) ∘ n + z ∘ h

    Shapes: parents are the sequence (length, input size) and the first hidden states (num_layers, hidden_size); y
    (length, hidden_size), the top layer at every step. Four weights a layer l, from U(±1/√hidden_size), each with its
    rows in the order r, z, n: ih_matrix_l (3 hidden, input) is W, hh_matrix_l (3 hidden, hidden) is U, ih_bias_l is b
    and hh_bias_l is c, both (3 hidden,). Listed values fill the matrices column by column.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078, with the reset gate behind the product, as PyTorch has it.
    """

    message: ClassVar[str] = "Layer.GRU"
    defaults: ClassVar[Mapping[str, Any]] = {"num_layers": 1}
    num_parents: ClassVar[int | None] = 2

    hidden_size: int = 0
    num_layers: int | None = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(length, hidden_size)."""
        sequence, hidden = inputs
        layers: int = self.setting("num_layers")
        if self.hidden_size < 1 or layers < 1:
            raise GraphError(f"has hidden_size {self.hidden_size} and num_layers {layers}; both must be at least 1")
        if len(sequence.shape) != 2:
            raise GraphError(f"needs a sequence (length, input size), and {sequence}")
        if hidden.shape not in ((layers, self.hidden_size), (self.hidden_size,) if layers == 1 else ()):
            raise GraphError(f"needs first hidden states of {shown((layers, self.hidden_size))}, and {hidden}")
        return (sequence.shape[0], self.hidden_size)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Two matrices and two biases a layer, from the lowest layer up."""
        h = self.hidden_size
        start = UniformInitializer(-(h**-0.5), h**-0.5)
        slots: list[WeightSlot] = []
        for layer in range(self.setting("num_layers")):
            size = h if layer else inputs[0].shape[1]
            slots += [
                WeightSlot(f"ih_matrix_l{layer}", (3 * h, size), start, size, 3 * h, column_major=True),
                WeightSlot(f"hh_matrix_l{layer}", (3 * h, h), start, h, 3 * h, column_major=True),
                WeightSlot(f"ih_bias_l{layer}", (3 * h,), start),
                WeightSlot(f"hh_bias_l{layer}", (3 * h,), start),
            ]
        return tuple(slots)

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """For each step one for each entry of the matrices."""
        length, size = inputs[0]
        above = (self.setting("num_layers") - 1) * 2 * self.hidden_size
        return length * 3 * self.hidden_size * (size + self.hidden_size + above)
