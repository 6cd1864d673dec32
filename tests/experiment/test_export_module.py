"""Models as plain torch modules: which layers they give, and whose weights they have."""

import pytest
import torch

import descend
from descend.errors import ConfigurationError, StorageError
from descend.graph import check, prediction_outputs

FIELDS = {"samples": (1, 8, 8), "labels": (10,)}


def model(**options):
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    p = descend.zoo.small_lenet(images)
    accuracy = descend.Metric(descend.CategoricalAccuracy(p, labels), name="accuracy")
    loss = descend.CrossEntropy(p, labels, name="loss")
    return descend.Model(1, objective_function=loss, metrics=[accuracy], name="net", **options)


def run(given, path):
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    return descend.run(trainer, given, descend.zoo.digits(), descend.SGD(learn_rate=0.05, momentum=0.9), run_dir=path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    given = model()
    return given, run(given, tmp_path_factory.mktemp("plain") / "run")


def test_after_a_run_it_has_the_trained_weights(trained):
    given, result = trained
    module = given.to_torch()
    assert dict(module.state_dict()).keys() == result.weights.keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, result.weights[name])
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(module.eval()(x).sum(1), torch.ones(5))


def test_weights_come_from_a_result_a_run_or_a_checkpoint(trained):
    _, result = trained
    checkpoint = next((result.run_dir / "checkpoints").glob("step-*"))
    for weights in (result, result.weights, result.run_dir, str(checkpoint)):
        module = model().to_torch(weights, fields=FIELDS)
        assert all(torch.equal(one, result.weights[name]) for name, one in module.state_dict().items())
    with pytest.raises(StorageError, match="is neither a checkpoint nor a run directory"):
        model().to_torch(result.run_dir / "nothing", fields=FIELDS)


def test_weights_of_another_model_are_refused_by_name(trained):
    _, result = trained
    other = descend.FullyConnected(descend.Input(data_field="x"), num_neurons=3, name="fc1")
    with pytest.raises(ConfigurationError) as caught:
        descend.Model(layers=other).to_torch(result, fields={"x": (2,)})
    assert caught.value.problems == (
        "the module's weights 'fc1_linearity_weights' are (3, 2), and those given are (64, 128)",
    )


def test_without_a_run_it_has_first_values_and_asks_for_shapes():
    with pytest.raises(ConfigurationError, match=r"pass fields=\{'samples': \(\.\.\.\), 'labels': \(\.\.\.\)\}"):
        model().to_torch()
    one, two, other = (model().to_torch(fields=FIELDS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.conv1_kernel, two.conv1_kernel)
    assert not torch.equal(one.conv1_kernel, other.conv1_kernel)


def test_other_layers_can_be_outputs():
    given = model()
    pool = next(layer for layer in given.layers if layer.name == "pool2")
    probabilities, features = given.to_torch(fields=FIELDS, outputs=["probabilities", pool])(torch.rand(2, 1, 8, 8))
    assert probabilities.shape == (2, 10)
    assert features.shape == (2, 32, 2, 2)
    (loss,) = given.to_torch(fields=FIELDS, outputs="loss")(torch.rand(1, 1, 8, 8), torch.eye(10)[:1])
    assert loss.shape == (1,)


X, T = (lambda name: descend.Input(data_field=name, name=name)), (lambda: descend.Input(data_field="t", name="t"))


@pytest.mark.parametrize(
    ("objective", "wanted"),
    [
        (lambda y: descend.MeanSquaredError(y, T()), ("y",)),
        (lambda y: descend.Reduction(descend.BinaryCrossEntropy(descend.Sigmoid(y, name="p"), T())), ("p",)),
        (lambda y: [descend.MeanSquaredError(y, T()), descend.L2Norm2(y)], ("y",)),
        (lambda y: descend.Evaluation(descend.MeanAbsoluteError(descend.Tanh(y, name="z"), T())), ("z",)),
        (lambda y: descend.Reduction(y, name="r"), ("r",)),
    ],
)
def test_predictions_are_what_losses_compare(objective, wanted):
    y = descend.FullyConnected(X("x"), num_neurons=3, name="y")
    plan = check(descend.Model(1, objective_function=objective(y)), {"x": (2,), "t": (3,)})
    assert prediction_outputs(plan) == wanted


def test_without_an_objective_predictions_are_outputs_without_a_child():
    y = descend.Relu(X("x"), name="y")
    ends = [descend.Tanh(y, name="a"), descend.Exp(y, name="b")]
    assert prediction_outputs(check(descend.Model(layers=ends), {"x": (2,)})) == ("a", "b")


@pytest.mark.parametrize(
    "options",
    [{"channels_last": True}, pytest.param({"compile": True}, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_options_of_a_model_train_it_alike_and_stand_in_its_text(trained, tmp_path, options):
    given = model(**options)
    result = run(given, tmp_path / "run")
    for name, tensor in trained[1].weights.items():
        torch.testing.assert_close(result.weights[name], tensor, rtol=1e-3, atol=1e-4)
    (option,) = options
    assert f"{option}: true" in (result.run_dir / "experiment.prototext").read_text()
    assert getattr(descend.from_text(descend.to_text(given)), option)
    assert not getattr(model(), option)


def test_it_is_a_module_like_any_other_for_fit_and_infer():
    given = model().to_torch(fields=FIELDS)
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 10

    def loss(probabilities, target):
        return torch.nn.functional.nll_loss(probabilities.log(), target)

    result = descend.fit(
        given,
        loss,
        (x, y),
        optimizer=descend.SGD(learn_rate=0.05, momentum=0.9),
        batch_size=20,
        stop=descend.Epochs(20),
        metrics=["accuracy"],
    )
    assert result.history[-1]["objective"] < result.history[0]["objective"]
    found = descend.infer(given, x, batch_size=16, layers=["conv1"])
    torch.testing.assert_close(found.outputs, given.eval()(x).detach(), rtol=1e-5, atol=1e-6)
    assert found.layers["conv1"].shape == (40, 16, 8, 8)
