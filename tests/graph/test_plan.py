"""A checked graph: which layers outputs need, and what a planned layer is called."""

import itertools

import pytest

import descend.graph as g
from descend.errors import GraphError


def planned(name, *parents, layer=None):
    return g.PlannedLayer(
        layer or g.Identity(name=name), name, parents, (0,) * len(parents), ((2,),) * len(parents), ((2,),), (), False
    )


def plan(*layers):
    return g.Plan("m", layers, {}, g.PlannedObjective((), ()), (), (), ())


# x -> a -> b -> d and x -> c -> d, with e behind c and y apart from all.
DIAMOND = plan(
    planned("x"),
    planned("y"),
    planned("a", "x"),
    planned("b", "a"),
    planned("c", "x"),
    planned("d", "b", "c"),
    planned("e", "c"),
)


@pytest.mark.parametrize(
    ("outputs", "needed"),
    [
        ([], ""),
        (["x"], "x"),
        (["b"], "xab"),
        (["d"], "xabcd"),
        (["e", "y"], "xyce"),
        (["e", "e"], "xce"),
        (["d", "e", "y"], "xyabcde"),
    ],
)
def test_outputs_need_their_ancestors_and_themselves_in_the_order_of_the_plan(outputs, needed):
    assert "".join(layer.name for layer in DIAMOND.needed_for(outputs)) == needed


def test_every_output_that_is_no_layer_is_named_with_the_nearest():
    chain = plan(planned("conv1"), planned("pool", "conv1"))
    with pytest.raises(GraphError) as caught:
        chain.needed_for(iter(["poool", "conv1", "zebra"]))
    assert list(caught.value.problems) == [
        "there is no layer 'poool'; did you mean 'pool'?",
        "there is no layer 'zebra'",
    ]


def test_a_parent_that_is_read_twice_is_needed_once_and_a_long_chain_needs_no_stack():
    names = [f"l{i}" for i in range(5000)]
    chain = plan(planned("l0"), *(planned(name, before, before) for before, name in itertools.pairwise(names)))
    assert [layer.name for layer in chain.needed_for(["l4999"])] == names


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (g.FullyConnected(), "FullyConnected"),
        (g.Add(), "Add"),
        (g.OperatorLayer(ops=[g.ops.Square(), g.ops.Sqrt()]), "Square Sqrt"),
        (g.OperatorLayer(), "OperatorLayer"),
    ],
)
def test_a_layer_of_operators_is_called_by_these(layer, kind):
    assert planned("y", layer=layer).kind == kind


def test_the_output_of_a_layer_with_several_is_the_first():
    cut = g.PlannedLayer(g.Slice(), "cut", ("x",), (0,), ((5,),), ((2,), (3,)), (), False)
    assert cut.output_shape == (2,)
    assert cut.formats is None
