"""Recurrent networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.graph import GRU, Constant
from descend.lower.onnx.reader import Fixed, Moved, Node, Reader, Refused, Tensor, Value, reads
from descend.lower.onnx.readings.steps import cut, text

if TYPE_CHECKING:
    from descend.graph import Weights


@reads("GRU")
def gru(r: Reader, node: Node) -> Value | tuple[Value, ...]:
    """A GRU of one layer, whose gates ONNX has in the order z, r, n."""
    x, size, first = node.given(0), node.get("hidden_size", 0), node.get("layout", 0)
    plain = text(node.get("direction", "forward")) == "forward" and node.get("linear_before_reset", 0) == 1
    if not plain or "activations" in node.attributes or "clip" in node.attributes or node.given(4) is not None:
        raise Refused("goes another way than forward, or has other gates or lengths than torch's GRU")
    if first and isinstance(x, Tensor) and len(x.shape) == 2 and not x.joined:
        sequence = x
    elif not first and isinstance(x, Moved) and len(x.groups) == 3 and x.groups[1] == (None,):
        sequence = Tensor(x.layer, tuple(one for (one,) in (x.groups[0], x.groups[2]) if one is not None))
    else:
        raise Refused("takes a sequence for each sample: (length, samples, size), or with layout 1 the samples first")
    y = r.layer(GRU, node, sequence, _start(r, node, size), weights=_gates(r, node, size), hidden_size=size)
    length = y.shape[0]
    last = cut(r, f"{node.name}/last", y, 0, length - 1, length) if node.outputs > 1 else y
    if first:
        steps = r.reshaped(y, (length, 1, size), f"{node.name}/steps")
        return (steps, last) if node.outputs > 1 else steps
    steps = Moved(r.reshaped(y, (length, 1, size), f"{node.name}/steps").layer, ((length,), (1,), (None,), (size,)))
    return (steps, Moved(last.layer, ((1,), (None,), (size,)))) if node.outputs > 1 else steps


def _start(r: Reader, node: Node, size: int) -> Tensor:
    """The first hidden state, (1, size) for each sample; zeros where none is given."""
    given = node.given(5)
    if given is None or (isinstance(given, Fixed) and not given.array.any()):
        return r.layer(Constant, f"{node.name}/start", value=0.0, num_neurons=(1, size))
    if isinstance(given, Moved) and given.groups == ((1,), (None,), (size,)):
        return Tensor(given.layer, (1, size))
    if isinstance(given, Tensor) and node.get("layout", 0) and given.shape == (1, size):
        return given
    raise Refused("has a first state that is not (1, samples, hidden_size)")


def _gates(r: Reader, node: Node, size: int) -> list[Weights]:
    """Matrices and biases with the gates in the order r, z, n."""
    z, reset, n = (np.arange(i * size, (i + 1) * size) for i in range(3))
    rows = np.concatenate([reset, z, n])
    bias = node.given(3)
    both = node.fixed(3).array[0] if bias is not None else np.zeros(6 * size, np.float32)
    arrays = (
        (node.fixed(1), node.fixed(1).array[0][rows], "ih_matrix"),
        (node.fixed(2), node.fixed(2).array[0][rows], "hh_matrix"),
        (bias, both[: 3 * size][rows], "ih_bias"),
        (bias, both[3 * size :][rows], "hh_bias"),
    )
    return [
        r.weights(
            Fixed(array, f"{one.name if isinstance(one, Fixed) and one.name else node.name}_{what}"),
            node.name,
            column_major=what.endswith("matrix"),
        )
        for one, array, what in arrays
    ]
