"""Recurrent networks: a GRU is a layer, and the others are written out step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from descend.graph import (
    GRU,
    Add,
    ChannelwiseFullyConnected,
    Concatenation,
    Constant,
    FullyConnected,
    Layer,
    Multiply,
    Relu,
    Sigmoid,
    Tanh,
    Weights,
)
from descend.onnx.graph_importer import GraphImporter, imports
from descend.onnx.importers.steps import cut, picked
from descend.onnx.values import ConstantValue, Node, Permuted, Tensor, UnsupportedNode, Value, text

_MAX_STEPS = 2000  # of a network that is written out: each has some fifteen layers
_ACTIVATIONS = {"GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True)
class _Way:
    """One direction of a recurrent node.

    Attributes:
        node: The node, with a name of its own for each direction.
        place: Which of the node's directions it is.
        sequence: (length, size) for each sample, in the order in which it is read.
        size: How many numbers the hidden state has.
    """

    node: Node
    place: int
    sequence: Tensor
    size: int

    def start(self, r: GraphImporter, place: int) -> Tensor:
        """The first state of an input of the node, (1, size) for each sample; zeros where none is given."""
        given, whole = self.node.given(place), self.node.get("layout", 0)
        if given is None or (isinstance(given, ConstantValue) and not given.array.any()):
            return r.layer(Constant, f"{self.node.name}/start{place}", value=0.0, num_neurons=(1, self.size))
        if isinstance(given, ConstantValue):
            states = np.moveaxis(given.array, 1 - whole, 0)
            if (states != states[0]).any():
                raise UnsupportedNode("has a first state that is another one for each sample")
            given = r.as_tensor(ConstantValue(states[0], given.name), self.node, 2)
        elif isinstance(given, Permuted) and not whole and [len(one) for one in given.groups] == [1, 1, 1]:
            directions, samples, size = (one for (one,) in given.groups)
            if samples is not None or directions is None or size is None:
                raise UnsupportedNode("has a first state that is not (directions, samples, hidden_size)")
            given = Tensor(given.layer, (directions, size))
        if not isinstance(given, Tensor) or given.joined or given.shape[1:] != (self.size,):
            raise UnsupportedNode("has a first state that is not (directions, samples, hidden_size)")
        return cut(r, f"{self.node.name}/start{place}", given, 0, self.place, self.place + 1)

    def array(self, place: int) -> np.ndarray[Any, Any]:
        """An input of weights."""
        return self.node.fixed(place).array[self.place]

    def weights(self, r: GraphImporter, place: int, what: str, array: np.ndarray[Any, Any]) -> Weights:
        """Weights made from an input of the node."""
        given = self.node.given(place)
        name = given.name if isinstance(given, ConstantValue) and given.name else self.node.name
        own = f"{name}_{what}" if self.place == 0 else f"{name}_{what}_reverse"
        return r.weights(ConstantValue(array, own), self.node.name, column_major=what.endswith("matrix"))

    def all_weights(self, r: GraphImporter, order: tuple[int, ...]) -> list[Weights]:
        """Matrices and biases of input and state, with the gates in this order."""
        rows = np.concatenate([np.arange(gate * self.size, (gate + 1) * self.size) for gate in order])
        gates = len(order) * self.size
        both = self.array(3) if self.node.given(3) is not None else np.zeros(2 * gates, np.float32)
        return [
            self.weights(r, 1, "ih_matrix", self.array(1)[rows]),
            self.weights(r, 2, "hh_matrix", self.array(2)[rows]),
            self.weights(r, 3, "ih_bias", both[:gates][rows]),
            self.weights(r, 3, "hh_bias", both[gates:][rows]),
        ]


# What a direction gives: all hidden states (length, size), if they are taken, and the last states.
_Read = Callable[[GraphImporter, _Way], tuple[Tensor, list[Tensor]]]


@imports("GRU", "LSTM", "RNN")
def recurrent(r: GraphImporter, node: Node) -> tuple[Value | None, ...]:
    """One direction or both; a network that goes backwards reads the reversed sequence."""
    direction, size = text(node.get("direction", "forward")), node.get("hidden_size", 0)
    sequence = _sequence(node)
    _check_weights(node, size, 1 + (direction == "bidirectional"), sequence.shape[1])
    read = _refuse_what_is_unusual(node, sequence.shape[0])
    backwards = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
    hidden: list[Tensor] = []
    last: list[list[Tensor]] = []
    for place, back in enumerate(backwards):
        own = replace(node, name=f"{node.name}/backwards") if back else node
        y, ends = read(r, _Way(own, place, _turned(r, own, sequence) if back else sequence, size))
        if node.takes(0):
            y = _turned(r, replace(own, name=f"{own.name}/states"), y) if back else y
            hidden.append(r.reshaped(y, (y.shape[0], 1, size), f"{own.name}/steps"))
        last.append(ends)
    groups = ((len(backwards),), (None,), (size,))
    outputs: list[Value | None] = [None, None, None]
    if node.takes(0):
        y = _whole(r, node, "steps", hidden, axis=1)
        outputs[0] = y if node.get("layout", 0) else Permuted(y.layer, ((y.shape[0],), *groups))
    for place, each in enumerate(zip(*last, strict=True), 1):
        if node.takes(place):
            rows = [r.reshaped(one, (1, size), f"{node.name}/row{place}") for one in each]
            y = _whole(r, node, f"last{place}", rows, axis=0)
            outputs[place] = y if node.get("layout", 0) else Permuted(y.layer, groups)
    return tuple(outputs[: len(node.taken)])


def _whole(r: GraphImporter, node: Node, what: str, parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else r.layer(Concatenation, f"{node.name}/{what}", *parts, axis=axis)


def _turned(r: GraphImporter, node: Node, x: Tensor) -> Tensor:
    return picked(r, replace(node, name=f"{node.name}/turned"), x, 0, range(x.shape[0])[::-1])


def _sequence(node: Node) -> Tensor:
    x, first = node.given(0), node.get("layout", 0)
    if first and isinstance(x, Tensor) and len(x.shape) == 2 and not x.joined:
        return x
    if not first and isinstance(x, Permuted) and len(x.groups) == 3 and x.groups[1] == (None,):
        return Tensor(x.layer, tuple(one for (one,) in (x.groups[0], x.groups[2]) if one is not None))
    raise UnsupportedNode(
        "takes a sequence for each sample: (length, samples, size), or with layout 1 the samples first"
    )


def _check_weights(node: Node, size: int, directions: int, inputs: int) -> None:
    """The shapes of the weights are those of the node's attributes; so what is made of them is no larger than they."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[node.kind] * size
    wanted = [(directions, gates, inputs), (directions, gates, size), (directions, 2 * gates)]
    for place, shape in enumerate(wanted, 1):
        if (place < 3 or node.given(3) is not None) and node.fixed(place).array.shape != shape:
            raise UnsupportedNode(f"has input {place + 1} of shape {node.fixed(place).array.shape}; expected {shape}")


def _refuse_what_is_unusual(node: Node, length: int) -> _Read:
    """What reads a direction of the node."""
    kind, functions = node.kind, [text(one).lower() for one in node.get("activations", [])]
    usual = _ACTIVATIONS[kind]
    relu = kind == "RNN" and set(functions) == {"relu"}
    if functions and not relu and functions not in ([*usual], [*usual, *usual]):
        raise UnsupportedNode(f"has the activations {', '.join(functions)}, and here there are {', '.join(usual)}")
    lengths = node.given(4)
    if lengths is not None and not (isinstance(lengths, ConstantValue) and (lengths.array == length).all()):
        raise UnsupportedNode("ends sequences at lengths of their own")
    if "clip" in node.attributes or node.get("input_forget", 0):
        raise UnsupportedNode("clips its gates, or forgets what it takes in")
    if kind == "GRU":
        if node.get("linear_before_reset", 0) != 1:
            raise UnsupportedNode(
                "resets before the product with the state (linear_before_reset 0), as torch's GRU does not"
            )
        return _gru
    if length > _MAX_STEPS:
        raise UnsupportedNode(f"is written out step by step, has {length} of them, and {_MAX_STEPS} are allowed")
    holes = node.given(7) if kind == "LSTM" else None
    if holes is not None and not (isinstance(holes, ConstantValue) and not holes.array.any()):
        raise UnsupportedNode("has peepholes")
    if kind == "LSTM":
        return _lstm
    return lambda r, way: _rnn(r, way, Relu if relu else Tanh)


def _gru(r: GraphImporter, way: _Way) -> tuple[Tensor, list[Tensor]]:
    """The layer; ONNX has its gates in the order z, r, n."""
    weights = way.all_weights(r, (1, 0, 2))
    y = r.layer(GRU, way.node, way.sequence, way.start(r, 5), weights=weights, hidden_size=way.size)
    length = y.shape[0]
    return y, [cut(r, f"{way.node.name}/last", y, 0, length - 1, length) if way.node.takes(1) else y]


def _lstm(r: GraphImporter, way: _Way) -> tuple[Tensor, list[Tensor]]:
    """c ← σ(f) ∘ c + σ(i) ∘ tanh(g) and h ← σ(o) ∘ tanh(c), with the gates i, o, f, g in this order."""
    size = way.size

    def step(name: str, sums: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = r.layer(Sigmoid, f"{name}/gates", cut(r, f"{name}/three", sums, 0, 0, 3 * size))
        i, o, f = (cut(r, f"{name}/{gate}", gates, 0, k * size, (k + 1) * size) for k, gate in enumerate("iof"))
        new = r.layer(Tanh, f"{name}/g", cut(r, f"{name}/four", sums, 0, 3 * size, 4 * size))
        kept = r.layer(Multiply, f"{name}/kept", f, c)
        c = r.layer(Add, f"{name}/c", kept, r.layer(Multiply, f"{name}/new", i, new))
        return r.layer(Multiply, f"{name}/h", o, r.layer(Tanh, f"{name}/out", c)), c

    return _steps(r, way, step, 4)


def _rnn(r: GraphImporter, way: _Way, activation: type[Layer]) -> tuple[Tensor, list[Tensor]]:
    """h ← activation(W x + R h + b)."""

    def step(name: str, sums: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return r.layer(activation, f"{name}/h", sums), c

    return _steps(r, way, step, 1)


def _steps(
    r: GraphImporter, way: _Way, step: Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]], gates: int
) -> tuple[Tensor, list[Tensor]]:
    """All hidden states, and the last states, of a cell that is written out."""
    name, size = way.node.name, way.size
    of_input, of_state, bias, state_bias = way.all_weights(r, tuple(range(gates)))
    own: dict[str, Any] = {"weights": [of_input, bias], "output_channel_dims": gates * size, "bias": True}
    inputs = r.layer(ChannelwiseFullyConnected, f"{name}/inputs", way.sequence, **own)
    h = r.reshaped(way.start(r, 5), (size,), f"{name}/h")
    c = r.reshaped(way.start(r, 6), (size,), f"{name}/c") if gates == 4 else h
    states: list[Tensor] = []
    for t in range(way.sequence.shape[0]):
        own = {"weights": [of_state, state_bias], "num_neurons": gates * size, "has_bias": True}
        of_h = r.layer(FullyConnected, f"{name}/{t}/state", h, **own)
        of_x = r.reshaped(cut(r, f"{name}/{t}/input", inputs, 0, t, t + 1), (gates * size,), f"{name}/{t}/line")
        h, c = step(f"{name}/{t}", r.layer(Add, f"{name}/{t}/sum", of_x, of_h), c)
        states.append(h)
    ends = [h, c] if gates == 4 else [h]
    if not way.node.takes(0):
        return h, ends
    lines = [r.reshaped(one, (1, size), f"{name}/{t}/row") for t, one in enumerate(states)]
    return _whole(r, way.node, "all", lines, axis=0), ends
