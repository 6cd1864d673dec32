"""Layers of operators: shapes, inputs of each operator of a chain, formats, and the kinds of one operator."""

import pytest

import descend.graph as g
from descend.errors import ConfigurationError, GraphError
from descend.graph.kinds import operator_layers
from tests.graph.kinds.given import incoming, kind, refusal, shape_of

ONE = [name for name in operator_layers.__all__ if name != "OperatorLayer"]


def test_every_operator_but_one_is_a_layer_of_its_own():
    """LogSoftmax is a kind of layer in the format itself, which has the name."""
    assert {name for name in g.ops.__all__ if name != "Operator"} - set(ONE) == {"LogSoftmax"}


@pytest.mark.parametrize("name", ONE)
def test_a_layer_of_one_operator_holds_it_and_takes_as_many_parents(name):
    layer = getattr(g, name)()
    (op,) = layer.ops
    assert type(op) is getattr(g.ops, name)
    assert layer.message == "Layer.OperatorLayer"
    assert type(layer).__name__ == name
    inputs = ((2, 3),) * op.count_inputs()
    assert shape_of(layer, *inputs) == (2, 3)
    takes = f"that takes {op.count_inputs()} input"
    assert takes in refusal(layer, *inputs, (2, 3))


def test_layers_of_one_operator_have_the_arguments_of_the_front_end():
    assert g.Clamp().ops == (g.ops.Clamp(min=0, max=1),)
    assert g.Clamp(min=-1).ops == (g.ops.Clamp(min=-1, max=1),)
    assert g.Clamp(min=-1, max=0).ops == (g.ops.Clamp(min=-1),)  # as a text has it, where 0 is unset
    chosen = g.Select(value=1, if_true=2.5, if_false=0)
    both = {"constant_if_true": True, "value_if_true": 2.5, "constant_if_false": True}
    assert chosen.ops == (g.ops.Select(value=1, **both),)


def test_layers_of_one_operator_take_the_operators_fields_and_a_layers():
    x = g.Input()
    layer = g.Clamp(x, min=-1, max=2, name="clamp", datatype="DOUBLE")
    assert layer.parents == [x]
    assert (layer.name, layer.datatype) == ("clamp", g.DataType.DOUBLE)
    assert layer.ops == (g.ops.Clamp(min=-1, max=2),)
    with pytest.raises(ConfigurationError, match="Clamp has no field 'low'"):
        g.Clamp(x, low=1)
    with pytest.raises(ConfigurationError, match=r"Clamp\.min is 'a'; expected a number"):
        g.Clamp(x, min="a")


def test_a_chain_takes_the_parents_of_its_first_operator():
    chain = g.OperatorLayer(ops=[g.ops.Add(), g.ops.Abs(), g.ops.Sqrt()])
    assert shape_of(chain, (2, 3), (2, 3)) == (2, 3)
    assert chain.num_parents is None


def test_every_problem_of_a_chain_is_named():
    chain = g.OperatorLayer(
        ops=[g.ops.Clamp(max=-1), g.ops.Select(epsilon=-1), g.ops.Abs(output_datatype="COMPLEX_FLOAT"), g.ops.Add()]
    )
    with pytest.raises(GraphError) as caught:
        chain.output_shape(incoming((3,), (3,)))
    assert list(caught.value.problems) == [
        "has an operator Clamp that has min 0.0 and max -1.0; max must be above min (0 and 1 are usual)",
        "has an operator Select that has epsilon -1.0; it must be above 0 (unset means 1e-5)",
        "has an operator Abs that has output_datatype COMPLEX_FLOAT, which is not supported: "
        "expected FLOAT, DOUBLE or FP16",
        "has an operator Clamp that takes 1 input, and 2 parents",
        "has an operator Select that takes 3 inputs, and 1 output of the operator before",
        "has an operator Add that takes 2 inputs, and 1 output of the operator before",
    ]


def test_formats_are_those_of_the_ends_of_the_chain_unless_the_layer_has_one():
    double, half = g.DataType.DOUBLE, g.DataType.FP16
    ops = [g.ops.Abs(input_datatype=double), g.ops.Sqrt(), g.ops.Exp(output_datatype=half)]
    assert g.OperatorLayer(ops=ops).formats() == (double, half)
    assert g.OperatorLayer(ops=ops[1:]).formats() == (None, half)
    assert g.OperatorLayer(ops=ops, datatype="FLOAT").formats() == (g.DataType.FLOAT,) * 2
    assert g.OperatorLayer().formats() == (None, None)


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.OperatorLayer(), [(3,)], "has no ops"),
        (g.Add(), [(3,)], "has an operator Add that takes 2 inputs, and 1 parent"),
        (g.Abs(), [(3,), (3,)], "has an operator Abs that takes 1 input, and 2 parents"),
        (g.OperatorLayer(ops=[g.ops.Abs(), g.ops.Add()]), [(3,)], "and 1 output of the operator before"),
        (g.Add(), [(3, 1), (1, 3)], "needs parents of one shape; 'p0' gives 3 x 1 and 'p1' gives 1 x 3"),
        (g.Select(constant_if_true=True), [(3,), (3,), (3,)], "takes 2 inputs, and 3 parents"),
        (g.Clamp(max=0), [(3,)], "an operator Clamp that has min 0.0 and max 0.0; max must be above min"),
        (g.Select(epsilon=-1), [(3,), (3,), (3,)], "has epsilon -1.0; it must be above 0"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
