"""The objective function as a description: its terms, fields of the text, and what it refuses."""

import pytest

import descend.graph as g
from descend.errors import ConfigurationError


def test_objectives_take_layers_terms_and_lists():
    layer = g.Input()
    for objective in (
        layer,
        [layer],
        g.LayerTerm(layer),
        g.ObjectiveFunction(layer),
        g.ObjectiveFunction([g.LayerTerm(layer, 1.0)]),
    ):
        (term,) = g.Model(1, objective_function=objective).objective_function.terms
        assert (term.layer, term.scale) == (layer, 1.0)


def test_terms_keep_their_order_and_are_found_by_kind():
    first, second = g.LayerTerm("a"), g.LayerTerm("b", 2)
    decay = g.L2WeightRegularization(scale=0.1)
    objective = g.ObjectiveFunction([first, decay])
    objective.add_term(second)
    assert objective.terms == [first, decay, second]
    assert objective.layer_terms == [first, second]
    assert objective.l2_terms == [decay]
    assert objective.to_fields() == {"layer_term": [first, second], "l2_weight_regularization": [decay]}


def test_an_unset_scale_is_1_in_python_and_0_in_a_text():
    """A text knows no unset number from 0, so the check refuses it rather than train on nothing."""
    assert g.LayerTerm("a").scale == 1.0
    assert g.L2WeightRegularization().scale == 1.0
    assert g.LayerTerm.from_fields({"layer": "a"}).scale == 0.0
    assert g.L2WeightRegularization.from_fields({}).scale == 0.0


def test_fields_of_the_text_name_layers_and_weights():
    layer, own = g.Input(name="loss"), g.Weights(name="w")
    assert g.LayerTerm(layer, 0.5).to_fields() == {"scale_factor": 0.5, "layer": "loss"}
    decay = g.L2WeightRegularization([own, "v"], 0.5, "bias")
    assert decay.to_fields() == {"scale_factor": 0.5, "weights": ("w", "v"), "exclude": ("bias",)}
    assert repr(decay) == "L2WeightRegularization(['w', 'v'], scale=0.5)"
    assert repr(g.LayerTerm(layer, 0.5)) == "LayerTerm('loss', scale=0.5)"


def test_one_weights_or_name_is_a_list_of_one():
    own = g.Weights(name="w")
    assert g.L2WeightRegularization(own).weights == [own]
    assert g.L2WeightRegularization("w").weights == ["w"]


def test_terms_of_a_text_know_where_they_stood():
    source = """objective_function {
  layer_term { layer: "a" scale_factor: 2 }
  l2_weight_regularization { weights: "w" scale_factor: 0.5 exclude: ["bias", "norm"] }
}"""
    objective = g.from_text(source, "f").objective_function
    (term,), (decay,) = objective.layer_terms, objective.l2_terms
    assert (term.layer, term.scale, term.where) == ("a", 2.0, "f:2:3")
    assert (decay.weights, decay.scale, decay.exclude, decay.where) == (["w"], 0.5, ("bias", "norm"), "f:3:3")
    assert objective.where == "f:1:1"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: g.LayerTerm(3), "LayerTerm.layer is 3; expected a layer"),
        (lambda: g.LayerTerm("a", "b"), "LayerTerm.scale is 'b'; expected a number"),
        (
            lambda: g.LayerTerm("a", scale_factor=1),
            "LayerTerm has no field 'scale_factor'; its fields are layer, scale",
        ),
        (
            lambda: g.L2WeightRegularization(scale=None, exclude=[3]),
            "L2WeightRegularization.scale is None; expected a number",
        ),
        (
            lambda: g.L2WeightRegularization(exclude=[3]),
            "L2WeightRegularization.exclude is [3]; expected a list of: a string",
        ),
        (
            lambda: g.ObjectiveFunction([g.Weights(name="w")]),
            "Weights('w') is not a term of an objective; expected a layer, LayerTerm or L2WeightRegularization",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(make, problem):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert problem in str(caught.value)
