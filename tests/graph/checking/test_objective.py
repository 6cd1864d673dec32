"""The objective and the metrics of a plan: which nodes are read, and which weights are regularized."""

import pytest

import descend.graph as g
from descend.graph.checking.nodes import NodeGraph, planned_metrics, planned_objective
from descend.graph.checking.problems import ProblemList
from descend.graph.checking.weight_table import WeightTable
from tests.graph.checked import problems, scalar
from tests.graph.models import FIELDS


def graph_of(model, collected):
    graph = NodeGraph(model.layers, collected)
    graph.add_layers(model.layers)
    graph.add_readers(model)
    return graph


def test_terms_and_metrics_read_their_evaluations():
    x = g.Input(name="x")
    model = g.Model(
        1, objective_function=[g.LayerTerm(x, 0.5), g.L2WeightRegularization(scale=3)], metrics=g.Metric(x, "m", "%")
    )
    collected = ProblemList()
    graph = graph_of(model, collected)
    assert planned_objective(model.objective_function, graph, WeightTable(collected), collected) == (
        g.PlannedObjective((g.PlannedTerm("x", 0.5, "x_eval"),), (g.PlannedL2((), 3.0),))
    )
    assert planned_metrics(model, graph) == (g.PlannedMetric("m", "x", "%", "x_eval2"),)
    assert not collected


def test_a_model_without_an_objective_has_an_empty_one():
    collected = ProblemList()
    graph = graph_of(g.Model(1, g.Input()), collected)
    assert planned_objective(None, graph, WeightTable(collected), collected) == g.PlannedObjective((), ())


def test_metrics_that_read_no_layer_have_no_node():
    model = g.Model(1, g.Input(), metrics=g.PythonMetric("m", "module"))
    assert planned_metrics(model, graph_of(model, ProblemList())) == ()


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        (
            g.LayerTerm("x", float("nan"), where="f:1:1"),
            "f:1:1: an objective term has scale_factor nan; expected a finite",
        ),
        (
            g.LayerTerm("x", 0.0),
            "the objective term LayerTerm('x', scale=0.0) has scale_factor 0, as one that is not set has: "
            "write scale_factor: 1, or take the term out",
        ),
        (
            g.L2WeightRegularization((), float("-inf")),
            "an objective term has scale_factor -inf; expected a finite number",
        ),
        (
            g.L2WeightRegularization((), 0.0),
            "the objective term L2WeightRegularization([], scale=0.0) has scale_factor 0",
        ),
    ],
    ids=repr,
)
def test_scales_of_every_kind_of_term_are_checked(term, problem):
    collected = ProblemList()
    graph = graph_of(g.Model(1, g.Input(name="x")), collected)
    planned_objective(g.ObjectiveFunction(term), graph, WeightTable(collected), collected)
    (found,) = collected.found
    assert found.startswith(problem)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0])
def test_scales_that_make_no_objective(scale):
    loss = scalar(g.Input(data_field="samples"))
    assert "scale_factor" in problems(g.Model(1, objective_function=g.LayerTerm(loss, scale)))[0]


def test_frozen_weights_are_not_trained_and_not_regularized():
    x = g.Input(data_field="labels")
    a = g.FullyConnected(x, num_neurons=3, name="a", freeze=True)
    b = g.FullyConnected(a, num_neurons=3, name="b", weights=g.Weights(optimizer=g.NoOptimizer(), name="w"))
    c = g.FullyConnected(b, num_neurons=3, name="c")
    plan = g.check(g.Model(1, objective_function=[scalar(c), g.L2WeightRegularization(scale=0.1)]), FIELDS)
    assert {name: one.trainable for name, one in plan.weights.items()} == {
        "a_linearity_weights": False,
        "w": False,
        "c_linearity_weights": True,
    }
    assert plan.objective.l2 == (g.PlannedL2(("c_linearity_weights",), 0.1),)


def regularized(**fields):
    x = g.Convolution(g.Input(data_field="samples"), num_dims=2, out_channels=2, kernel_size=3, name="conv")
    x = g.LayerNorm(g.BatchNormalization(x, name="bn"), scale=True, bias=True, name="ln")
    x = g.FullyConnected(g.ChannelwiseScaleBias(x, name="csb"), num_neurons=3, has_bias=True, name="fc")
    h = g.Reshape(x, dims=[1, 3])
    x = g.GRU(h, g.Constant(value=0, num_neurons=[2]), hidden_size=2, name="gru")
    return g.Model(1, objective_function=[scalar(x), g.L2WeightRegularization(scale=0.1, **fields)])


MATRICES = {"conv_kernel", "csb_weights", "fc_linearity_weights", "gru_ih_matrix_l0", "gru_hh_matrix_l0"}


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (["bias", "norm"], MATRICES),
        (["dims<=1", "ln_*"], MATRICES),
        ("bias", MATRICES | {"bn_scale", "ln_scale"}),
        (["norm", "dims < 2"], MATRICES),
        (["dims>=2", "bias"], {"bn_scale"}),
        (["*fc*", "gru*", "bn*", "ln*"], {"conv_kernel", "conv_bias", "csb_weights"}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),  # a set has no order to be named by
)
def test_regularization_leaves_out_what_its_rules_say(exclude, left):
    model = regularized(exclude=exclude)
    assert set(g.check(model, FIELDS).objective.l2[0].weights) == left
    assert g.from_text(g.to_text(model)) == model


def test_a_rule_that_leaves_out_nothing_is_refused():
    model = regularized(exclude=["bais", "bias", "dims>9"])
    assert problems(model) == [
        "the regularization leaves out 'bais', which none of its weights is; did you mean 'bias'?",
        "the regularization leaves out 'dims>9', which none of its weights is",
    ]
    w = g.Weights(name="w")
    fc = g.FullyConnected(g.Input(data_field="labels"), num_neurons=3, has_bias=True, weights=w)
    listed = g.L2WeightRegularization([w], exclude="bias")
    assert (
        "leaves out 'bias', which none of its weights is"
        in problems(g.Model(1, objective_function=[scalar(fc), listed]))[0]
    )


def test_regularizing_weights_that_no_layer_uses():
    loss = scalar(g.Input(data_field="labels"))
    stray = g.Weights(name="stray")
    found = problems(g.Model(1, objective_function=[loss, g.L2WeightRegularization(stray)]))
    assert found == ["the regularization names weights 'stray' that no layer uses"]
