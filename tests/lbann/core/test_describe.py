"""Layers, models, optimizers and algorithms as scripts make and change them."""

import pytest

import descend
import descend.lbann as lbann
from descend.experiment.text import classes
from descend.graph import text
from descend.lbann.proto import experiment_message


def read_back(part, value):
    """What this package makes of a part of an experiment, as the driver reads it: through the text."""
    written = text.render(experiment_message(**{part: value}))
    parsed = text.parse(written)
    return text.to_value(getattr(parsed.message, part), classes())


def test_layers_are_counted_and_named_as_in_lbann():
    lbann.Layer.global_count = 0
    a, b = lbann.Input(data_field="samples"), lbann.Input(data_field="labels", name="b")
    c = lbann.Sum([a, b], a, parents=[b])
    assert [a.name, b.name, c.name] == ["layer1", "b", "layer2"]
    assert c.parents == [a, b, a, b]
    assert a.children == [c, c]
    d = lbann.Relu()
    assert d(c) is None
    assert (d.parents, c.children) == ([c], [d])


def test_the_order_of_creation_is_the_order_of_outputs():
    x = lbann.Input(data_field="samples", name="x")
    cut = lbann.Slice(x, slice_points=[0, 1, 3], name="cut")
    first, second = lbann.Identity(cut, name="first"), lbann.Identity(cut, name="second")
    assert list(cut.export_proto().children) == ["first", "second"]
    cut.children = [second, first]
    assert list(cut.export_proto().children) == ["second", "first"]


def test_common_fields_of_layers_are_written():
    hint = lbann.Input(data_field="samples", name="hint")
    layer = lbann.Relu(
        hint,
        name="y",
        device="GPU",
        data_layout="model_parallel",
        datatype=lbann.DataType.DOUBLE,
        hint_layer=hint,
        grid_tag=2,
        parallel_strategy={"sample_groups": 2},
        weights=lbann.Weights(name="w"),
    )
    found = layer.export_proto()
    assert (found.device_allocation, found.data_layout, found.datatype) == ("GPU", "model_parallel", 2)
    assert (found.hint_layer, found.grid_tag.value, found.parallel_strategy.sample_groups) == ("hint", 2, 2)
    assert (list(found.parents), list(found.weights)) == (["hint"], ["w"])


def test_operators_with_defaults_of_the_front_end():
    x = lbann.Input(data_field="x")
    packed = lbann.operators_pb2.ClampOperator()
    lbann.Clamp(x).export_proto().operator_layer.ops[0].parameters.Unpack(packed)
    assert (packed.min, packed.max) == (0, 1)
    lbann.ops.Clamp().export_proto().parameters.Unpack(packed)
    assert (packed.min, packed.max) == (0, 1)
    chosen = lbann.operators_pb2.SelectOperator()
    lbann.ops.Select(value=1, if_true=2.5).export_proto().parameters.Unpack(chosen)
    assert (chosen.value, chosen.constant_if_true, chosen.value_if_true) == (1, True, 2.5)
    chain = lbann.OperatorLayer(x, ops=[lbann.ops.Clamp(min=-1), lbann.ops.Sigmoid()])
    assert read_back("model", lbann.Model(1, [chain])).layers[-1].ops == (
        descend.ops.Clamp(min=-1.0, max=1.0),
        descend.ops.Sigmoid(),
    )


def test_constants_of_optimizers_are_zero_unless_given():
    """LBANN fills nothing in; descend.Adam has the published values."""
    assert text.render(lbann.Adam(learn_rate=0.5).export_proto()) == "adam {\n  learn_rate: 0.5\n}\n"
    rule = lbann.SGD(learn_rate=0.1)
    rule.momentum = 0.9
    assert read_back("optimizer", rule) == descend.SGD(learn_rate=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="without beta1, beta2, eps"):
        assert read_back("optimizer", lbann.Adam(learn_rate=0.5)).beta1 == 0.0


def test_weights_have_their_own_optimizer_and_start():
    own = lbann.Weights(optimizer=lbann.NoOptimizer(), initializer=lbann.ConstantInitializer(value=2), name="w")
    model = read_back("model", lbann.Model(1, [lbann.WeightsLayer(weights=own, dims=[3])]))
    assert model.weights[0].optimizer == descend.NoOptimizer()
    assert model.weights[0].initializer == descend.ConstantInitializer(2.0)


def test_a_model_collects_what_scripts_attach_later():
    x = lbann.Input(data_field="samples", name="x")
    y = lbann.FullyConnected(x, num_neurons=2, name="y")
    loss = lbann.L2Norm2(y, name="loss")
    model = lbann.Model(3, layers=lbann.traverse_layer_graph(x), objective_function=loss, name="m")
    y.weights = [lbann.Weights(name="w")]
    extra = lbann.L1Norm(y, name="extra")
    model.metrics.append(lbann.Metric(extra, name="size", unit="%"))
    model.callbacks.append(lbann.CallbackPrint())
    model.objective_function = lbann.ObjectiveFunction([lbann.LayerTerm(loss, scale=0.5)])
    model.objective_function.terms.append(lbann.L2WeightRegularization(weights=y.weights, scale=0.1))
    found = model.export_proto()
    assert [layer.name for layer in found.layer] == ["x", "y", "loss", "extra"]
    assert [one.name for one in found.weights] == ["w"]
    assert found.metric[0].layer_metric.unit == "%"
    assert found.objective_function.layer_term[0].scale_factor == 0.5
    assert list(found.objective_function.l2_weight_regularization[0].weights) == ["w"]
    assert (found.num_epochs, found.name, len(found.callback)) == (3, "m", 1)
    model.objective_function = loss
    assert model.export_proto().objective_function.layer_term[0].layer == "loss"


def test_a_trainer_and_its_callbacks_are_changed_by_scripts():
    trainer = lbann.Trainer(16, random_seed=4, callbacks=lbann.CallbackCheckpoint(checkpoint_epochs=1))
    trainer.callbacks = [lbann.CallbackCheckpoint(checkpoint_dir="d", checkpoint_steps=2)]
    trainer.hydrogen_block_size = 64
    found = trainer.export_proto()
    assert (found.mini_batch_size, found.random_seed, found.hydrogen_block_size) == (16, 4, 64)
    assert [one.checkpoint.checkpoint_dir for one in found.callback] == ["d"]
    with pytest.raises(ValueError, match="no field 'minibatch_size'"):
        lbann.Trainer(16, minibatch_size=3)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"num_iterations": 3}, (3, 0, 0.0)),
        ({"epoch_count": 2}, (0, 2, 0.0)),
        ({"max_seconds": 1.5}, (0, 0, 1.5)),
        ({"num_iterations": 3, "epoch_count": 2, "max_seconds": 1.5}, (3, 2, 1.5)),
        ({}, (0, 0, 0.0)),
    ],
)
def test_all_limits_of_mini_batch_descent_hold(given, limits):
    """In LBANN's message only the last one survives; its documentation says that all hold."""
    found = read_back(
        "trainer", lbann.Trainer(8, training_algo=lbann.BatchedIterativeOptimizer("a", **given))
    ).training_algo
    assert (found.num_iterations, found.epoch_count, found.max_seconds, found.name) == (*limits, "a")


def test_tournaments_are_what_this_package_reads():
    exchange = lbann.RandomPairwiseExchange
    better = exchange.MetricStrategy.HIGHER_IS_BETTER
    local = lbann.BatchedIterativeOptimizer("local", epoch_count=1)
    way = exchange.ExchangeStrategy("sendrecv_weights", weights_names=["w"], exchange_hyperparameters=True)
    algorithm = lbann.LTFB("ltfb", local, exchange({"accuracy": better}, way, lbann.MutationStrategy()), 5)
    found = read_back("trainer", lbann.Trainer(8, training_algo=algorithm)).training_algo
    assert isinstance(found, descend.LTFB)
    assert (found.name, found.metalearning_steps, found.local_algo.epoch_count) == ("ltfb", 5, 1)
    assert found.strategy.metrics == {"accuracy": 1}
    assert found.metalearning.exchange_strategy == descend.ExchangeStrategy("sendrecv_weights", ("w",), True)
    truncation = lbann.LTFB("t", local, lbann.TruncationSelectionExchange({"a": 0}, 2))
    assert read_back("trainer", lbann.Trainer(8, training_algo=truncation)).training_algo.metalearning.truncation_k == 2
    evolution = lbann.LTFB(
        "e", local, lbann.RegularizedEvolution("a", 1, lbann.MutationStrategy("replace_activation"), 3)
    )
    found = read_back("trainer", lbann.Trainer(8, training_algo=evolution)).training_algo.metalearning
    assert (found.metric_name, found.metric_strategy, found.sample_size) == ("a", 1, 3)
    assert found.mutation_strategy == descend.MutationStrategy("replace_activation")


def test_strategies_that_do_not_exist_are_refused_with_those_that_do():
    with pytest.raises(ValueError, match="no strategy 'null_mutations'; did you mean 'null_mutation'"):
        lbann.MutationStrategy("null_mutations")
    with pytest.raises(ValueError, match="checkpoint_dir"):
        lbann.RandomPairwiseExchange.ExchangeStrategy("checkpoint_file")


def test_kfac_has_its_fields():
    inner = lbann.BatchedIterativeOptimizer("sgd", epoch_count=3)
    algorithm = lbann.KFAC("kfac", inner, damping_act="0.1", use_pi=True, update_intervals="1 10")
    assert (algorithm.damping_act, algorithm.damping_err) == ("0.1", None)
    found = read_back("trainer", lbann.Trainer(8, training_algo=algorithm)).training_algo
    assert isinstance(found, descend.KFAC)
    assert (found.name, found.first_order_optimizer.epoch_count, found.use_pi) == ("kfac", 3, True)
    with pytest.raises(ValueError, match="no field 'damping'"):
        lbann.KFAC("kfac", inner, damping="0.1")


def test_images_for_tensorboard_are_chosen_by_a_strategy():
    strategy = lbann.CategoricalAccuracyStrategy("acc", lbann.CategoricalAccuracyStrategy.MatchType.MATCH, 4)
    found = lbann.CallbackSummarizeImages(strategy, "images", 2).export_proto().summarize_images
    chosen = found.selection_strategy.categorical_accuracy
    assert (chosen.accuracy_layer_name, chosen.match_type, chosen.num_images_per_epoch) == ("acc", 1, 4)
    assert (found.image_source_layer_name, found.epoch_interval) == ("images", 2)
    tracked = lbann.CallbackSummarizeImages(lbann.TrackSampleIDsStrategy("in", 3), "images")
    assert tracked.export_proto().summarize_images.selection_strategy.track_sample_ids.num_tracked_images == 3


def test_messages_are_what_objects_are():
    """A part may be an object or its message; the text is the same."""
    layer = lbann.Input(data_field="samples", name="x")
    model = lbann.Model(1, [layer])
    assert text.render(experiment_message(model=model)) == text.render(experiment_message(model=model.export_proto()))
    whole = lbann.lbann_pb2.LbannPB(model=model.export_proto(), trainer=lbann.Trainer(4).export_proto())
    whole.optimizer.CopyFrom(lbann.SGD(learn_rate=0.5).export_proto())
    assert (whole.model.num_epochs, whole.trainer.mini_batch_size, whole.optimizer.sgd.learn_rate) == (1, 4, 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lbann.Relu(), "layers_pb2.Layer"),
        (lambda: lbann.Sigmoid(), "layers_pb2.Layer"),
        (lambda: lbann.ops.Sigmoid(), "operators_pb2.Operator"),
        (lambda: lbann.Weights(), "weights_pb2.Weights"),
        (lambda: lbann.HeNormalInitializer(), "weights_pb2.Initializer"),
        (lambda: lbann.SGD(), "optimizers_pb2.Optimizer"),
        (lambda: lbann.CallbackPrint(), "callbacks_pb2.Callback"),
        (lambda: lbann.Metric(lbann.Relu()), "metrics_pb2.Metric"),
        (lambda: lbann.PythonMetric(module="m", name="n"), "metrics_pb2.Metric"),
        (lambda: lbann.ObjectiveFunction(), "objective_functions_pb2.ObjectiveFunction"),
        (lambda: lbann.Model(1), "model_pb2.Model"),
        (lambda: lbann.Trainer(1), "trainer_pb2.Trainer"),
        (lambda: lbann.BatchedIterativeOptimizer("a"), "training_algorithm_pb2.TrainingAlgorithm"),
    ],
)
def test_what_objects_export_is_of_the_class_that_scripts_know(make, message):
    module, _, name = message.partition(".")
    assert type(make().export_proto()) is getattr(getattr(lbann, module), name)
