"""The check finds every problem in one pass and plans every tensor."""

import random
import subprocess
import sys

import numpy as np
import pytest

import descend.graph as g
from descend.errors import GraphError
from descend.graph import text
from tests.graph.models import FIELDS, lenet


def problems(model, fields=FIELDS):
    with pytest.raises(GraphError) as caught:
        g.check(model, fields)
    return list(caught.value.problems)


def of_text(source, fields=FIELDS):
    return problems(g.from_text(source, "f.prototext"), fields)


def scalar(layer):
    """A layer of one number behind any layer, for an objective."""
    return g.MeanSquaredError(layer, layer)


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


def test_what_is_inserted_is_named_as_lbann_names_it_and_noted():
    x = g.Input(data_field="samples", name="x")
    unused = g.Relu(x, name="unused")
    g.Identity(x, name="loss_eval")  # takes the name that would be inserted
    loss = scalar(x)
    loss.name = "loss"
    plan = g.check(g.Model(1, unused, objective_function=loss), FIELDS)
    inserted = {layer.name: type(layer.layer).__name__ for layer in plan.layers if layer.inserted}
    assert inserted == {
        "x_split": "Split",
        "unused_dummy": "Dummy",
        "loss_eval_dummy": "Dummy",
        "loss_eval2": "Evaluation",
    }
    assert plan.notes == (
        "inserted Evaluation 'loss_eval2', to be read",
        "inserted Split 'x_split', behind outputs with several takers",
        "inserted Dummy 'loss_eval_dummy', 'unused_dummy', behind outputs that nobody takes",
    )


def test_evaluations_that_a_file_has_are_used_as_they_are():
    source = """
        layer { name: "x" input { data_field: "samples" } }
        layer { name: "y" parents: "x" parents: "x" mean_squared_error {} }
        layer { name: "e" parents: "y" evaluation {} }
        objective_function { layer_term { layer: "e" scale_factor: 0.5 } }
    """
    plan = g.check(g.from_text(source), FIELDS)
    assert plan.objective.terms == (g.PlannedTerm("e", 0.5, "e"),)
    assert [layer.name for layer in plan.layers] == ["x", "x_split", "y", "e"]


def test_a_layer_that_is_read_twice_has_two_evaluations():
    loss = scalar(g.Input(data_field="samples"))
    loss.name = "loss"
    plan = g.check(g.Model(1, objective_function=loss, metrics=g.Metric(loss)), FIELDS)
    assert (plan.objective.terms[0].evaluation, plan.metrics[0].evaluation) == ("loss_eval", "loss_eval2")


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
        "f.prototext:13:22: weights 'w1': Adam.learn_rate is -1.0; expected a finite number that is at least 0",
        "f.prototext:13:22: weights 'w1': Adam.beta1 is 1.0; expected at least 0 and below 1",
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


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0])
def test_scales_that_make_no_objective(scale):
    loss = scalar(g.Input(data_field="samples"))
    assert "scale_factor" in problems(g.Model(1, objective_function=g.LayerTerm(loss, scale)))[0]


def test_fields_that_no_reader_offers():
    x = g.Input(name="x")
    assert (
        problems(g.Model(1, objective_function=scalar(x)), {})[0]
        == "layer 'x' (Input) has no data_field; the fields are none"
    )


def test_a_problem_is_not_repeated_by_the_layers_behind_it():
    x = g.Input(data_field="samples")
    for neurons in (0, 3, 3, 3, 3):
        x = g.FullyConnected(x, num_neurons=neurons)
    found = problems(g.Model(1, objective_function=scalar(x)))
    assert len(found) == 1


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


def test_regularizing_weights_that_no_layer_uses():
    loss = scalar(g.Input(data_field="labels"))
    stray = g.Weights(name="stray")
    found = problems(g.Model(1, objective_function=[loss, g.L2WeightRegularization(stray)]))
    assert found == ["the regularization names weights 'stray' that no layer uses"]


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (g.ConstantInitializer(float("nan")), "start at nan"),
        (g.ValueInitializer([1.0, 2.0]), "have 20 entries (2 x 10) in layer 'fc', and 2 values"),
        (g.ValueInitializer([1.0], [1.0]), "have both values and values_d"),
        (g.ValueInitializer([float("inf")] * 20), "have a listed value that is not finite"),
        (g.UniformInitializer(1.0, -1.0), "start between 1.0 and -1.0"),
        (g.NormalInitializer(0.0, -1.0), "start as N(0.0, -1.0²)"),
        (g.NumpyInitializer("nowhere.npy"), "start from 'nowhere.npy', which cannot be read as .npy"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_that_cannot_start_so(start, problem):
    fc = g.FullyConnected(g.Input(data_field="labels"), num_neurons=2, name="fc", weights=g.Weights(start, name="w"))
    found = problems(g.Model(1, objective_function=scalar(fc)))
    assert found[0].startswith(f"weights 'w' {problem}")


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((10, 2)), "are 2 x 10 for layer 'fc', and"),
        (np.zeros((2, 10), dtype=np.int64), "which holds int64; expected float32 or float64"),
    ],
)
def test_weights_from_a_file_that_does_not_fit(array, problem, tmp_path):
    np.save(tmp_path / "w.npy", array)
    start = g.NumpyInitializer(str(tmp_path / "w.npy"))
    fc = g.FullyConnected(g.Input(data_field="labels"), num_neurons=2, name="fc", weights=g.Weights(start, name="w"))
    assert problem in problems(g.Model(1, objective_function=scalar(fc)))[0]


def test_weights_of_a_name_that_a_layer_would_make():
    x = g.Input(data_field="labels")
    a = g.FullyConnected(x, num_neurons=2, name="a", weights=g.Weights(name="b_linearity_weights"))
    b = g.FullyConnected(a, num_neurons=2, name="b")
    assert (
        "would make weights 'b_linearity_weights', a name that layer 'a' uses"
        in problems(g.Model(1, objective_function=scalar(b)))[0]
    )


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


def test_a_split_of_a_file_gives_each_child_its_own_output():
    x = g.Split(g.Input(data_field="labels"), name="split")
    loss = g.MeanSquaredError(g.Relu(x, name="a"), g.Relu(x, name="b"))
    plan = g.check(g.Model(1, objective_function=loss), FIELDS)
    by_name = {layer.name: layer for layer in plan.layers}
    assert by_name["split"].output_shapes == ((10,), (10,))
    assert (by_name["a"].parent_outputs, by_name["b"].parent_outputs) == ((0,), (1,))
    assert "split_split" not in by_name


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


def test_reading_and_checking_need_no_torch():
    source = g.to_text(lenet())
    program = (
        "import sys, descend.graph as g\n"
        "model = g.from_text(sys.stdin.read())\n"
        "g.check(model, {'samples': (1, 28, 28), 'labels': (10,)})\n"
        "g.to_text(model)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], input=source, text=True, check=True)


def test_text_is_not_loaded_before_it_is_needed():
    program = "import sys, descend.graph; assert not any(name.startswith('google') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_parsing_alone_names_the_whole_experiment():
    parsed = text.parse(f"model {{ {g.to_text(lenet())} }}")
    assert parsed.message.model.layer[2].name == "conv1"


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


def test_weights_that_no_inputs_are_counted_for_cannot_start_by_their_number():
    bias = g.Weights(g.HeNormalInitializer(), name="b")
    x = g.FullyConnected(g.Input(data_field="x"), num_neurons=2, has_bias=True, weights=[g.Weights(name="w"), bias])
    x.name = "fc"
    with pytest.raises(
        GraphError, match="weights 'b' start as HeNormalInitializer, which counts inputs, and layer 'fc'"
    ):
        g.check(g.Model(1, objective_function=g.L2Norm2(x)), {"x": (3,)})


def test_fields_of_layers_behind_a_mistake_are_looked_at_and_their_inputs_are_not():
    """What depends on the input, as whether 3 groups divide its channels, waits until that is known."""
    source = """
layer { name: 'x' input { data_field: 'samples' } }
layer { name: 'a' parents: 'xx' relu {} }
layer { name: 'b' parents: 'a' dropout { keep_prob: 1.9 } }
layer { name: 'c' parents: 'b' pooling { num_dims: 2 pool_dims_i: 2 pool_strides_i: 1 pool_mode: 'maxx' } }
layer { name: 'd' parents: 'c' convolution { num_dims: 2 out_channels: 9 kernel_size: 3 groups { value: 3 } } }
layer { name: 'e' parents: 'd' slice { axis: 1 slice_points: [0, 5000, 9000] } }
layer { name: 'f' parents: 'e' identity {} }
layer { name: 'g' parents: 'e' concatenation { axis: 3 } }
layer { name: 'h' parents: 'f' parents: 'g' matmul {} }
layer { name: 'i' parents: 'h' fully_connected {} }
layer { name: 'j' parents: 'i' reshape { dims: [-1, -1] } }
"""
    found = [problem for problem in of_text(source) if "objective" not in problem]
    assert [problem.split(" (")[0].split("layer ")[1] for problem in found] == ["'a'", "'b'", "'c'", "'i'", "'j'"]
    assert "keep_prob 1.9" in found[1]
    assert "maxx" in found[2]
    assert "num_neurons" in found[3]


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda x: g.Constant(value=1.0, num_neurons=(10**5, 10**5, 10**5), name="big"), "Constant"),
        (lambda x: g.Tessellate(g.Reshape(x, dims=(1, 4)), dims=(10**15, 4), name="big"), "Tessellate"),
    ],
)
def test_an_output_that_no_memory_holds_is_refused_from_its_numbers_alone(layer, kind):
    model = g.Model(layers=[layer(g.Input(data_field="x", name="x"))])
    with pytest.raises(
        GraphError, match=rf"layer 'big' \({kind}\) gives [\d,]+ numbers for each sample, more than any"
    ):
        g.check(model, {"x": (4,)})
