"""The check finds every problem in one pass and plans every tensor."""

import random

import pytest

import descend.graph as g
from descend.graph import text
from tests.graph.checked import of_text, problems, scalar
from tests.graph.models import FIELDS, lenet


def test_lenet_is_planned_to_the_last_tensor():
    plan = g.check(lenet(), FIELDS)
    shapes = {layer.name: layer.output_shapes for layer in plan.layers}
    assert shapes == {
        "images": ((1, 28, 28),),
        "labels": ((10,),),
        "labels_split": ((10,), (10,)),
        "conv1": ((6, 24, 24),),
        "relu1": ((6, 24, 24),),
        "pool1": ((6, 12, 12),),
        "fc": ((10,),),
        "prediction": ((10,),),
        "prediction_split": ((10,), (10,)),
        "loss": ((1,),),
        "loss_eval": ((1,),),
        "accuracy": ((1,),),
        "accuracy_eval": ((1,),),
    }
    weights = {
        name: (one.shape, one.fan_in, one.fan_out, type(one.initializer).__name__) for name, one in plan.weights.items()
    }
    assert weights == {
        "conv1_kernel": ((6, 1, 5, 5), 25, 150, "HeNormalInitializer"),
        "conv1_bias": ((6,), 0, 0, "ConstantInitializer"),
        "fc_linearity_weights": ((10, 864), 864, 10, "HeNormalInitializer"),
        "fc_bias_weights": ((10,), 0, 0, "ConstantInitializer"),
    }
    assert plan.objective == g.PlannedObjective((g.PlannedTerm("loss", 1.0, "loss_eval"),), ())
    assert plan.metrics == (g.PlannedMetric("accuracy", "accuracy", "%", "accuracy_eval"),)


def test_every_parent_stands_before_its_children_and_names_its_output():
    plan = g.check(lenet(), FIELDS)
    seen = {}
    for layer in plan.layers:
        for parent, output, shape in zip(
            layer.parents, layer.parent_outputs, layer.input_shapes, strict=bool(layer.parents)
        ):
            assert seen[parent].output_shapes[output] == shape
        seen[layer.name] = layer
    by_name = {layer.name: layer for layer in plan.layers}
    assert by_name["loss"].parents == ("prediction_split", "labels_split")
    assert by_name["loss"].parent_outputs == (0, 0)
    assert by_name["accuracy"].parent_outputs == (1, 1)


def test_all_problems_come_together_with_their_places():
    source = """name: "m"
layer { name: "x" input { data_field: "sample" } }
layer { name: "y" input { data_field: "labels" } }
layer { name: "c" parents: "x" parents: "y" convolution { num_dims: 2 } }
layer { name: "d" parents: "yy" relu {} }
layer { name: "y" parents: "y" fully_connected { } }
layer { name: "f" parents: "y" fully_connected { num_neurons: 3 } weights: "w1" weights: "w2" }
layer { name: "l" parents: "f" parents: "y" cross_entropy { } }
layer { name: "g" parents: "f" unpooling {} }
objective_function { layer_term { layer: "ll" scale_factor: 1 } layer_term { layer: "f" scale_factor: 1 } }
metric { layer_metric { layer: "l" name: "acc" } }
metric { layer_metric { layer: "l" name: "acc" } }
weights { name: "w1" optimizer { adam { learn_rate: -1 beta1: 1 } } }
weights { name: "w3" }
"""
    assert of_text(source) == [
        "f.prototext:6:1: 2 layers are named 'y' (Input at f.prototext:3:1, FullyConnected at f.prototext:6:1); "
        "each needs a name of its own",
        "f.prototext:12:1: 2 metrics are named 'acc' (Metric at f.prototext:11:1, Metric at f.prototext:12:1); "
        "each needs a name of its own",
        "f.prototext:5:1: layer 'd' (Relu) names a parent 'yy' that does not exist; did you mean 'y'?",
        "f.prototext:10:22: an objective term names a layer 'll' that does not exist; did you mean 'l'?",
        "f.prototext:2:1: layer 'x' (Input) reads a field 'sample' that no reader offers; did you mean 'samples'? "
        "the fields are samples, labels",
        "f.prototext:4:1: layer 'c' (Convolution) needs 1 parent and has 2: 'x', 'y'",
        "f.prototext:6:1: layer 'y' (FullyConnected) has num_neurons 0; it must be at least 1",
        "f.prototext:7:1: layer 'f' (FullyConnected) is given 2 weights and takes 1: 'linearity_weights'",
        "f.prototext:10:65: an objective term needs one number a sample, and 'f' gives 3: "
        "put a loss such as CrossEntropy or a Reduction behind it",
        "f.prototext:8:1: layer 'l' (CrossEntropy) needs parents of one shape; 'f' gives 3 and 'y' gives 10: "
        "the layers before must give equally many entries, such as num_neurons equal to the number of classes",
        "f.prototext:9:1: layer 'g': kind Unpooling is broken in LBANN, so no result could be right; "
        "use Upsample or Deconvolution",
        "f.prototext:7:1: layer 'f' (FullyConnected) names weights 'w2' that do not exist",
        "f.prototext:13:22: weights 'w1': Adam: learn_rate must be a finite number >= 0, got -1.0",
        "f.prototext:13:22: weights 'w1': Adam: beta1 must be a number >= 0 and < 1, got 1.0",
        "f.prototext:14:1: weights 'w3' are used by no layer; give them to one, or take them out",
    ]


def test_a_cycle_is_named_once_in_the_direction_of_the_data():
    source = """
        layer { name: "x" input { data_field: "samples" } }
        layer { name: "enc" parents: "x" parents: "dec" sum {} }
        layer { name: "mix" parents: "enc" relu {} }
        layer { name: "dec" parents: "mix" relu {} }
        layer { name: "behind" parents: "dec" relu {} }
        layer { name: "self" parents: "self" relu {} }
        objective_function { layer_term { layer: "behind" scale_factor: 1 } }
    """
    assert of_text(source) == [
        "f.prototext:3:9: the layers form a cycle: enc -> mix -> dec -> enc; remove one of these parents",
        "f.prototext:7:9: the layers form a cycle: self -> self; remove one of these parents",
    ]


def test_a_model_without_an_objective_or_layers():
    assert "has no objective" in problems(g.Model(1, g.Input(data_field="samples")))[0]
    assert g.check(g.Model(0, g.Input(data_field="samples")), FIELDS).objective.terms == ()  # it can be evaluated
    assert "has no layers" in problems(g.Model(1))[0]
    assert "has -1 epochs" in problems(g.Model(-1, objective_function=scalar(g.Input(data_field="samples"))))[0]


def test_devices_and_layouts_are_checked():
    x = g.Input(data_field="labels", device="TPU", data_layout="parallel", name="x")
    assert problems(g.Model(1, objective_function=scalar(x)))[:2] == [
        "layer 'x' (Input) has device 'TPU'; expected CPU or GPU",
        "layer 'x' (Input) has data_layout 'parallel'; expected data_parallel or model_parallel",
    ]
    for device, layout in (("cpu", "data_parallel"), ("GPU", "model_parallel")):
        x.device, x.data_layout = device, layout
        g.check(g.Model(1, objective_function=scalar(x)), FIELDS)


def test_fields_of_the_model_that_nothing_reads_are_noted():
    source = """
        data_layout: "data_parallel"
        layer { name: "x" input { data_field: "labels" } }
        layer { name: "l" parents: "x x" mean_squared_error {} }
        objective_function { layer_term { layer: "l" scale_factor: 1 } }
    """
    notes = g.check(g.from_text(source), FIELDS).notes
    assert "data_layout of model 'model0' is part of the format and read by nothing" in notes


@pytest.mark.slow
def test_a_chain_of_ten_thousand_layers_does_not_exhaust_the_stack():
    x = g.Input(data_field="labels")
    for _ in range(10_000):
        x = g.Relu(x)
    model = g.Model(1, objective_function=scalar(x))
    assert len(g.check(model, FIELDS).layers) == 10_004
    assert g.from_text(g.to_text(model)) == model


@pytest.mark.slow
def test_a_hundred_thousand_layers_in_any_order_of_the_text():
    names = [f"layer{i}" for i in range(100_000)]
    blocks = [f'layer {{ name: "{names[i]}" parents: "{names[i - 1]}" relu {{}} }}' for i in range(1, len(names))]
    random.Random(0).shuffle(blocks)
    source = "\n".join(
        [
            *blocks,
            'layer { name: "layer0" input { data_field: "labels" } }',
            f'layer {{ name: "loss" parents: "{names[-1]}" parents: "layer0" mean_squared_error {{}} }}',
            'objective_function { layer_term { layer: "loss" scale_factor: 1 } }',
        ]
    )
    plan = g.check(g.from_text(source), FIELDS)
    assert [layer.name for layer in plan.layers if not layer.inserted] == [*names, "loss"]


def test_parsing_alone_names_the_whole_experiment():
    parsed = text.parse(f"model {{ {g.to_text(lenet())} }}")
    assert parsed.message.model.layer[2].name == "conv1"


@pytest.mark.slow
def test_very_many_problems_are_counted_and_take_no_longer_than_they_must():
    """With 20,000 wrong names among 20,000, looking for the nearest of each would take an hour."""
    source = "\n".join(f'layer {{ name: "layer{i}" parents: "lair{i}" relu {{}} }}' for i in range(20_000))
    found = of_text(source)
    assert len(found) == 101
    assert (
        found[0]
        == "f.prototext:1:1: layer 'layer0' (Relu) names a parent 'lair0' that does not exist; did you mean 'layer0'?"
    )
    assert found[-1] == "and 19900 more problems"
