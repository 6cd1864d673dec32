"""The weights of a plan: what layers are given and make, what they share, and what a table refuses."""

import pytest

import descend.graph as g
from descend.errors import GraphError
from descend.graph.checking.nodes import LayerNode
from descend.graph.checking.problems import ProblemList
from descend.graph.checking.weight_table import WeightTable
from tests.graph.checked import problems, scalar
from tests.graph.models import FIELDS


def filled(*pairs):
    """The table after layers with inputs of these shapes, the names that each uses, and the problems."""
    problems = ProblemList()
    table, used = WeightTable(problems), []
    for layer, shape in pairs:
        node = LayerNode(layer, [], [])
        node.inputs = None if shape is None else (g.Incoming("x", shape),)
        table.fill(node)
        used.append(node.weights)
    return table, used, problems.found


def test_missing_weights_are_named_by_the_layer_and_the_part():
    own = g.Weights(name="own")
    table, used, found = filled(
        (g.FullyConnected(num_neurons=2, has_bias=True, weights=[own], name="fc"), (3,)),
        (g.BatchNormalization(name="bn"), (2, 5)),
    )
    assert found == []
    assert used == [("own", "fc_bias_weights"), ("bn_scale", "bn_bias", "bn_running_mean", "bn_running_variance")]
    assert list(table.planned) == ["own", "fc_bias_weights", *used[1]]
    assert table.planned["own"].initializer == g.ConstantInitializer()  # not the kind's own
    assert table.biases == {"fc_bias_weights", "bn_bias"}
    assert table.norms == set(used[1])


def test_a_layer_whose_inputs_are_not_known_makes_none():
    table, used, found = filled((g.FullyConnected(num_neurons=2, name="fc"), None))
    assert (table.planned, used, found) == ({}, [()], [])


def test_more_weights_than_a_layer_takes_are_a_problem():
    extra = [g.Weights(name=name) for name in "abc"]
    _, _, found = filled(
        (g.FullyConnected(num_neurons=2, has_bias=True, weights=extra, name="fc"), (3,)),
        (g.Relu(weights=extra[:1], name="relu"), (3,)),
    )
    assert found == [
        "layer 'fc' (FullyConnected) is given 3 weights and takes 2: 'linearity_weights', 'bias_weights'",
        "layer 'relu' (Relu) is given 1 weights and takes 0: none",
    ]


@pytest.mark.parametrize("frozen", [0, 1])
def test_shared_weights_are_trained_if_every_layer_trains_them(frozen):
    own = g.Weights(name="w")
    layers = [
        g.FullyConnected(num_neurons=3, weights=own, name=name, freeze=i == frozen) for i, name in enumerate("ab")
    ]
    table, _, _ = filled(*((layer, (3,)) for layer in layers))
    assert not table.planned["w"].trainable
    assert table.planned["w"].layer == "a"


def test_an_update_rule_of_the_weights_comes_before_that_of_the_kind():
    def table(**fields):
        fields = {"num_embeddings": 5, "embedding_dim": 2, "sparse_sgd": True, "learning_rate": 0.5, **fields}
        return filled((g.DistEmbedding(name="e", **fields), (1,)))[0].planned

    assert table()["e_weights"].optimizer == g.SGD(0.5)
    assert table(weights=g.Weights(name="w", optimizer=g.Adam(0.1)))["w"].optimizer == g.Adam(0.1)


def test_the_format_of_weights_is_their_own_or_the_layers():
    own = g.Weights(name="w", datatype="DOUBLE")
    table, _, _ = filled(
        (g.FullyConnected(num_neurons=2, has_bias=True, weights=own, datatype="FP16", name="fc"), (3,))
    )
    assert table.planned["w"].datatype == g.DataType.DOUBLE
    assert table.planned["fc_bias_weights"].datatype == g.DataType.FP16


def test_borrowed_weights_are_given_as_an_input():
    problems = ProblemList()
    table = WeightTable(problems)
    own = g.Weights(name="w")
    maker = LayerNode(g.FullyConnected(num_neurons=2, weights=own), [], [])
    maker.inputs = (g.Incoming("x", (3,)),)
    table.fill(maker)
    borrower = LayerNode(g.RowwiseWeightsNorms(weights=own, name="norms"), [], [])
    assert table.borrow(borrower) == (g.Incoming("w", (2, 3)),)
    assert borrower.weights == ("w",)
    table.fill(borrower)
    assert list(table.planned) == ["w"]
    assert not problems


def test_the_check_of_a_table_names_every_weight_with_its_place():
    stray = g.Weights(name="stray", where="f:1:1")
    ruled = g.Weights(optimizer=g.SGD(-1.0), name="ruled", where="f:2:1")
    layer = g.FullyConnected(g.Input(name="x"), num_neurons=2, weights=[ruled, "ruledd"], name="fc", where="f:3:1")
    collected = ProblemList()
    WeightTable(collected).check(g.Model(1, layer, weights=[stray, ruled]))
    assert collected.found == [
        "f:3:1: layer 'fc' (FullyConnected) names weights 'ruledd' that do not exist; did you mean 'ruled'?",
        "f:1:1: weights 'stray' are used by no layer; give them to one, or take them out",
        "f:2:1: weights 'ruled': SGD: learn_rate must be a finite number >= 0, got -1.0",
    ]


def test_weights_that_layers_share():
    w = g.Weights(g.GlorotNormalInitializer(), name="w", optimizer=g.SGD(0.5))
    x = g.Input(data_field="labels")
    a = g.FullyConnected(x, num_neurons=10, weights=w, name="a")
    b = g.FullyConnected(a, num_neurons=10, weights=w, name="b")
    plan = g.check(g.Model(1, objective_function=scalar(b)), FIELDS)
    assert list(plan.weights) == ["w"]
    assert plan.weights["w"].layer == "a"
    assert plan.weights["w"].optimizer == g.SGD(0.5)
    assert [layer.weights for layer in plan.layers if layer.weights] == [("w",), ("w",)]
    b.num_neurons = 4
    assert problems(g.Model(1, objective_function=scalar(b)))[0] == (
        "layer 'b' (FullyConnected) needs weights 'w' of 4 x 10 and shares them with layer 'a', "
        "where they are 10 x 10: layers that share weights need one shape"
    )


def test_weights_without_an_initializer_start_at_zero_and_own_ones_as_the_table_says():
    x = g.Input(data_field="labels")
    fc = g.FullyConnected(x, num_neurons=3, has_bias=True, weights=g.Weights(name="w"), name="fc", transpose=True)
    plan = g.check(g.Model(1, objective_function=scalar(fc)), FIELDS)
    assert plan.weights["w"].initializer == g.ConstantInitializer(0.0)
    assert plan.weights["w"].shape == (10, 3)
    assert plan.weights["w"].column_major
    assert plan.weights["fc_bias_weights"].initializer == g.ConstantInitializer(0.0)
    assert not plan.weights["fc_bias_weights"].column_major


def test_weights_that_a_callback_fills_need_no_layer():
    class Fills:
        output_name = "count"

    count = g.Weights(g.ConstantInitializer(7), name="count")
    loss = scalar(g.FullyConnected(g.Input(data_field="labels"), num_neurons=3, name="fc"))
    plan = g.check(g.Model(1, weights=[count], objective_function=loss, callbacks=[Fills()]), FIELDS)
    assert plan.weights["count"].shape == (1,)
    assert not plan.weights["count"].trainable
    assert list(plan.weights) == ["fc_linearity_weights", "count"]
    stray = g.Weights(name="stray")
    assert problems(g.Model(1, weights=[stray], objective_function=loss, callbacks=[Fills()])) == [
        "weights 'stray' are used by no layer; give them to one, or take them out"
    ]


@pytest.mark.parametrize("first", [False, True])
def test_shared_weights_have_the_fans_and_the_order_of_the_layer_that_counts_inputs(first):
    w = g.Weights(g.HeNormalInitializer(), name="w")
    early = g.WeightsLayer(dims=[3, 10], weights=[w], name="early") if first else None
    fc = g.FullyConnected(g.Input(data_field="labels"), num_neurons=3, weights=[w], name="fc")
    penalty = g.L1Norm(early or g.WeightsLayer(dims=[3, 10], weights=[w]))
    planned = g.check(g.Model(1, objective_function=[scalar(fc), penalty]), FIELDS).weights["w"]
    assert (planned.fan_in, planned.fan_out, planned.column_major) == (10, 3, True)


def test_weights_of_a_name_that_a_layer_would_make():
    x = g.Input(data_field="labels")
    a = g.FullyConnected(x, num_neurons=2, name="a", weights=g.Weights(name="b_linearity_weights"))
    b = g.FullyConnected(a, num_neurons=2, name="b")
    assert (
        "would make weights 'b_linearity_weights', a name that layer 'a' uses"
        in problems(g.Model(1, objective_function=scalar(b)))[0]
    )


def test_norms_of_weights_that_no_layer_makes_are_refused():
    alone = g.RowwiseWeightsNorms(weights=[g.Weights(name="w")], name="norms")
    model = g.Model(1, objective_function=g.Reduction(alone))
    with pytest.raises(
        GraphError, match=r"layer 'norms' \(RowwiseWeightsNorms\) reads weights 'w', which no other layer"
    ):
        g.check(model, {"x": (3,)})
    model = g.Model(1, objective_function=g.Reduction(g.RowwiseWeightsNorms(name="norms")))
    with pytest.raises(GraphError, match=r"reads one parameter of another layer and is given 0"):
        g.check(model, {"x": (3,)})


def test_running_values_need_the_format_of_their_layer():
    own = [g.Weights(datatype="DOUBLE", name=f"w{i}") for i in range(4)]
    y = g.BatchNormalization(g.Input(data_field="x"), weights=own, name="bn")
    model = g.Model(1, objective_function=g.L2Norm2(y))
    with pytest.raises(GraphError, match="follows running values in weights 'w2' of another datatype; give both one"):
        g.check(model, {"x": (2,)})
