import pytest
from hypothesis import given, settings

import descend.graph as g
from descend import callbacks
from descend.errors import ConfigurationError, TextError
from descend.graph import text
from tests.graph.models import lenet, models


@settings(max_examples=20)  # a model has up to 8 layers, each of any kind with random fields
@given(models())
def test_text_and_binary_are_mirrors(model):
    assert_mirrors(model)


@pytest.mark.slow
@settings(max_examples=300)
@given(models())
def test_text_and_binary_of_many_models_are_mirrors(model):
    assert_mirrors(model)


def assert_mirrors(model):
    written = g.to_text(model)
    back = g.from_text(written)
    assert back == model
    assert g.to_text(back) == written
    binary = text.parse_binary(text.render_binary(model), message="Model")
    assert text.to_value(binary, g.CLASSES) == model


def test_the_text_of_a_model_with_callbacks_is_a_mirror_too():
    model = lenet()
    model.callbacks += [callbacks.Print(), callbacks.StepLearningRate(step=2, amt=0.5)]
    assert [type(one) for one in g.from_text(g.to_text(model)).callbacks] == [
        callbacks.Print,
        callbacks.StepLearningRate,
    ]
    assert g.from_text(g.to_text(model)) == model


def test_models_that_differ_are_not_equal():
    assert lenet() == lenet()
    for change in (
        lambda m: setattr(m, "epochs", 6),
        lambda m: setattr(m.layers[2], "kernel_size", (3,)),
        lambda m: setattr(m.layers[2], "name", "c"),
        lambda m: setattr(m.metrics[0], "unit", ""),
        lambda m: m.layers[5].weights.append(g.Weights(name="w")),
        lambda m: m.layers[1].children.reverse(),
        lambda m: m.objective_function.add_term(m.layers[-1]),
    ):
        other = lenet()
        change(other)
        assert other != lenet()
    assert lenet() != "model"


def test_all_connected_layers_belong_to_a_model_parents_first():
    model = lenet()
    assert [layer.name for layer in model.layers] == [
        "images",
        "labels",
        "conv1",
        "relu1",
        "pool1",
        "fc",
        "prediction",
        "loss",
        "accuracy",
    ]
    again = g.Model(1, layers=model.layers[3])
    assert again.layers == model.layers


def test_weights_come_in_order_of_use_after_those_that_were_given():
    first, second, third = (g.Weights(name=name) for name in "abc")
    x = g.FullyConnected(g.Input(), weights=second)
    y = g.FullyConnected(x, weights=[first, second])
    assert g.Model(1, y, weights=third).weights == [third, second, first]


def test_older_files_name_several_parents_in_one_text():
    source = """
        layer { name: "a" input {} }
        layer { name: "b" input {} }
        layer { name: "c" parents: "a b" weights: "v w" sum {} }
        layer { name: "d" parents: "a" parents: "my layer" sum {} }
        layer { name: "my layer" input {} }
        weights { name: "v" } weights { name: "w" }
    """
    layers = {layer.name: layer for layer in g.from_text(source).layers}
    assert layers["c"].parents == [layers["a"], layers["b"]]
    assert [weights.name for weights in layers["c"].weights] == ["v", "w"]
    assert layers["d"].parents == [layers["a"], layers["my layer"]]


def test_a_link_may_stand_at_either_end():
    up = g.from_text(
        'layer { name: "a" input {} } layer { name: "b" parents: "a" relu {} } layer { name: "c" parents: "a" relu {} }'
    )
    down = g.from_text(
        'layer { name: "a" children: "b c" input {} } layer { name: "b" relu {} } layer { name: "c" relu {} }'
    )
    both = g.from_text(
        'layer { name: "a" children: "b" input {} } layer { name: "b" parents: "a" relu {} } '
        'layer { name: "c" parents: "a" relu {} }'
    )
    assert up == down == both


def test_the_order_of_children_in_a_text_counts():
    source = (
        'layer {{ name: "a" children: "{}" split {{}} }}'
        'layer {{ name: "b" parents: "a" relu {{}} }} layer {{ name: "c" parents: "a" relu {{}} }}'
    )
    first, second = (g.from_text(source.format(order)).layers[0] for order in ("b c", "c b"))
    assert [child.name for child in first.children] == ["b", "c"]
    assert [child.name for child in second.children] == ["c", "b"]


def test_layers_and_weights_without_a_name_are_numbered_by_their_place():
    model = g.from_text("layer { input {} } layer { name: 'x' relu {} } layer { relu {} } weights { }")
    assert [layer.name for layer in model.layers] == ["layer1", "x", "layer3"]
    assert [weights.name for weights in model.weights] == ["weights1"]


def test_layers_know_where_they_stood():
    model = g.from_text(
        "layer { name: 'a' input {} }\nlayer {\n name: 'b' relu {} }\nweights { optimizer {\n sgd {} } }", "f.prototext"
    )
    assert [layer.where for layer in model.layers] == ["f.prototext:1:1", "f.prototext:2:1"]
    assert model.weights[0].where == "f.prototext:4:1"
    assert model.weights[0].optimizer.where == "f.prototext:4:11"


def test_a_layer_without_a_kind_is_refused_with_its_name_and_place():
    with pytest.raises(TextError, match=r"^f:2:1: this Layer 'b' says nothing of its kind"):
        g.from_text("layer { name: 'a' input {} }\nlayer { name: 'b' }", "f")


def test_unknown_keywords_and_wrong_types_are_refused():
    with pytest.raises(ConfigurationError, match="Model has no field 'metric'; did you mean 'metrics'"):
        g.Model(1, metric=[])
    with pytest.raises(ConfigurationError, match=r"Model\.epochs is '3'; expected an integer"):
        g.Model("3")
    with pytest.raises(ConfigurationError, match="'loss' is not a term of an objective"):
        g.Model(1, objective_function=["loss"])
