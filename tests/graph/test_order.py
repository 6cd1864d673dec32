import itertools

from hypothesis import given
from hypothesis import strategies as st

import descend.graph as g
from descend.graph.order import cycles, topological


@st.composite
def graphs(draw):
    layers = [g.Sum(name=str(number)) for number in range(draw(st.integers(1, 9)))]
    for child, parent in draw(st.lists(st.tuples(st.sampled_from(layers), st.sampled_from(layers)), max_size=14)):
        child.add_parent(parent)
    return layers


@given(graphs())
def test_order_and_cycles_of_any_graph(layers):
    ordered, rest = topological(layers)
    place = {layer: index for index, layer in enumerate(ordered)}
    assert len(ordered) + len(rest) == len(layers)
    for layer in ordered:
        assert all(place[parent] < place[layer] for parent in layer.parents)
    found = cycles(rest)
    assert bool(found) == bool(rest)
    for cycle in found:
        assert cycle[0] is cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(up in down.parents for up, down in itertools.pairwise(cycle))
    assert len({layer for cycle in found for layer in cycle}) == sum(len(cycle) - 1 for cycle in found)
