"""Inputs of given shapes for one layer alone, and what it says of those that do not fit."""

import pytest
from hypothesis import strategies as st

import descend.graph as g
from descend.errors import GraphError
from descend.graph import Incoming


def incoming(*shapes):
    """Tensors of these shapes from layers p0, p1, ..."""
    return tuple(Incoming(f"p{index}", shape) for index, shape in enumerate(shapes))


def shape_of(layer, *shapes):
    """The shape of the output for inputs of these shapes."""
    return layer.output_shape(incoming(*shapes))


def slots_of(layer, *shapes):
    """The weights that a layer needs for inputs of these shapes, by suffix."""
    return {slot.suffix: slot for slot in layer.weight_slots(incoming(*shapes))}


def refusal(layer, *shapes, children=1):
    """What the layer says of parents of these shapes, which it refuses."""
    with pytest.raises(GraphError) as caught:
        layer.output_shapes(incoming(*shapes), children)
    return str(caught.value)


def kind(value):
    """The kind of a layer for the name of a test; nothing for other parameters."""
    return type(value).__name__ if isinstance(value, g.Layer) else ""


# Spaces of one to three dimensions, and windows that may or may not fit into them.
windows = st.integers(1, 3).flatmap(
    lambda dims: st.fixed_dictionaries(
        {
            "space": st.lists(st.integers(1, 9), min_size=dims, max_size=dims),
            "size": st.lists(st.integers(1, 3), min_size=dims, max_size=dims),
            "stride": st.lists(st.integers(1, 3), min_size=dims, max_size=dims),
            "padding": st.lists(st.integers(0, 2), min_size=dims, max_size=dims),
            "dilation": st.lists(st.integers(1, 2), min_size=dims, max_size=dims),
        }
    )
)
