"""Whole runs on the bundled digits: what they reach, that they repeat to the last bit, and what they leave behind."""

import dataclasses
import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from system_needs import needs_fashion_mnist

import descend
from descend.data.transforms import Grayscale, RandomResizedCrop, Scale
from descend.experiment import load, save_prototext
from descend.experiment.run import run
from descend.zoo import demo_experiment


def start(experiment, run_dir):
    return run(experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer, run_dir=run_dir)


def short(epochs=1):
    experiment = demo_experiment("digits")
    experiment.trainer = dataclasses.replace(experiment.trainer, training_algo=None)
    experiment.model.epochs = epochs
    return experiment


def unaimed(epochs, **trainer):
    """The demo with a metric and without an objective."""
    experiment = demo_experiment("digits")
    metrics = experiment.model.metrics
    experiment.model = descend.Model(epochs, metrics=metrics)
    experiment.trainer = dataclasses.replace(experiment.trainer, **{"training_algo": None, **trainer})
    return experiment


def test_a_model_without_an_objective_is_evaluated(tmp_path):
    result = start(unaimed(0), tmp_path / "run")
    (row,) = [row for row in result.history if row["mode"] == "test"]
    assert 0 <= row["accuracy"] <= 0.5
    assert row["objective"] == 0
    algorithm = descend.BatchedIterativeOptimizer(epoch_count=1)
    for experiment in (unaimed(1), unaimed(0, training_algo=algorithm)):
        with pytest.raises(descend.errors.ConfigurationError, match="has no objective"):
            start(experiment, tmp_path / "refused")


def test_a_model_that_is_not_trained_needs_no_samples_to_train_on(tmp_path):
    """Neither in so many words, nor where the algorithm's own limits say so; where something trains it does."""
    algorithm = descend.BatchedIterativeOptimizer()
    for number, experiment in enumerate((short(0), unaimed(0), unaimed(0, training_algo=algorithm))):
        readers = [reader for reader in experiment.data_reader.reader if reader.role == "test"]
        experiment.data_reader = dataclasses.replace(experiment.data_reader, reader=tuple(readers))
        result = start(experiment, tmp_path / str(number))
        assert [row["mode"] for row in result.history] == ["test"]
        assert result.steps == 0
        for training in (None, descend.BatchedIterativeOptimizer(num_iterations=1)):
            experiment.model.epochs = 0 if training else 1
            experiment.trainer = dataclasses.replace(experiment.trainer, training_algo=training)
            with pytest.raises(descend.errors.ConfigurationError, match="no reader has the role 'train'"):
                start(experiment, tmp_path / "refused")


def test_a_model_may_be_regularized_alone(tmp_path):
    experiment = short()
    experiment.model.objective_function = descend.ObjectiveFunction(descend.L2WeightRegularization(scale=1.0))
    experiment.trainer = dataclasses.replace(experiment.trainer, mini_batch_size=600)
    result = start(experiment, tmp_path / "run")
    rows = [row for row in result.history if row["mode"] == "train"]
    assert rows[-1]["objective"] > 0


def test_a_callback_fills_weights_that_no_layer_uses(tmp_path):
    experiment = short()
    size = descend.Weights(descend.ConstantInitializer(0), name="size")
    experiment.model.weights.append(size)
    experiment.model.callbacks.append(descend.ComputeModelSize(output_name="size"))
    result = start(experiment, tmp_path / "run")
    counted = sum(w.numel() for name, w in result.weights.items() if name != "size")
    assert load_file(weights_file(tmp_path / "run"))["size"].tolist() == [counted]


def weights_file(run_dir):
    (path,) = run_dir.glob("checkpoints/step-*/weights.safetensors")
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return start(demo_experiment("digits"), tmp_path_factory.mktemp("demo") / "run")


@pytest.mark.slow
def test_the_demo_learns_the_digits(demo):
    (test,) = [row for row in demo.history if row["mode"] == "test"]
    assert test["accuracy"] >= 0.95
    assert test["samples"] == demo.samples["test"] == 296
    assert demo.reason == "finished 20 of 20 epochs"


def test_rows_of_the_history_are_those_of_the_file(demo):
    rows = [json.loads(line) for line in (demo.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == demo.history
    every = {"mode", "epoch", "step", "objective", "accuracy", "samples", "seconds"}
    assert all(every | ({"learning_rate"} if row["mode"] == "train" else set()) == set(row) for row in rows)
    assert [row["epoch"] for row in rows if row["mode"] == "validation"] == list(range(1, 21))


def test_the_final_weights_lie_in_the_run_directory_under_their_names(demo):
    saved = load_file(weights_file(demo.run_dir))
    assert (
        set(saved)
        == set(demo.weights)
        == {
            f"{layer}_{part}"
            for layer, parts in (
                ("conv1", "kernel bias"),
                ("conv2", "kernel bias"),
                ("fc1", "linearity_weights bias_weights"),
            )
            for part in parts.split()
        }
        | {"fc2_linearity_weights", "fc2_bias_weights"}
    )
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, demo.weights[name], rtol=0, atol=0)


def test_the_same_seed_gives_the_same_bits_from_python_twice_and_from_the_text_once(tmp_path):
    first, second = (start(short(), tmp_path / name) for name in ("first", "second"))
    experiment = short()
    parts = {name: getattr(experiment, name) for name in ("trainer", "model", "data_reader", "optimizer")}
    descend.save_prototext(tmp_path / "saved.prototext", **parts)
    third = start(load(tmp_path / "saved.prototext"), tmp_path / "third")
    fourth = start(load(first.run_dir / "experiment.prototext"), tmp_path / "fourth")
    files = [weights_file(result.run_dir).read_bytes() for result in (first, second, third, fourth)]
    assert files.count(files[0]) == 4


def test_another_seed_gives_other_weights(tmp_path):
    experiment = short()
    experiment.trainer = dataclasses.replace(experiment.trainer, random_seed=2)
    ours, theirs = start(short(), tmp_path / "a").weights, start(experiment, tmp_path / "b").weights
    assert not torch.equal(ours["conv1_kernel"], theirs["conv1_kernel"])


def test_a_layer_s_first_weights_do_not_depend_on_other_layers(tmp_path):
    def first_weights(with_more):
        images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
        x = descend.FullyConnected(images, name="before", num_neurons=64) if with_more else images
        x = descend.Softmax(descend.FullyConnected(x, name="last", num_neurons=10))
        model = descend.Model(0, objective_function=descend.CrossEntropy(x, labels))
        experiment = short(epochs=0)
        result = run(experiment.trainer, model, experiment.data_reader, experiment.optimizer, tmp_path / str(with_more))
        return result.weights["last_linearity_weights"]

    torch.testing.assert_close(first_weights(True), first_weights(False), rtol=0, atol=0)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The history of an evaluation in mini-batches of the demo's own size."""
    return start(short(epochs=0), tmp_path_factory.mktemp("evaluated") / "run").history


@pytest.mark.parametrize("batch_size", [7, 300, 5000, pytest.param(1, marks=pytest.mark.slow)])
def test_evaluation_does_not_depend_on_the_size_of_a_mini_batch(tmp_path, evaluated, batch_size):
    experiment = short(epochs=0)
    experiment.trainer = dataclasses.replace(experiment.trainer, mini_batch_size=batch_size)
    result = start(experiment, tmp_path / "run")
    row, expected = result.history[-1], evaluated[-1]
    assert (row["mode"], row["samples"]) == ("test", 296)
    assert row["objective"] == pytest.approx(expected["objective"], rel=1e-6)
    assert row["accuracy"] == expected["accuracy"]


def test_weights_may_have_a_rule_of_their_own_and_be_frozen(tmp_path):
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    frozen = descend.Weights(descend.HeNormalInitializer(), optimizer=descend.NoOptimizer(), name="frozen")
    own = descend.Weights(
        descend.GlorotUniformInitializer(),
        optimizer=descend.Adam(learn_rate=1e-3, beta1=0.9, beta2=0.99, eps=1e-8),
        name="own",
    )
    x = descend.Relu(descend.FullyConnected(images, num_neurons=16, weights=[frozen]))
    x = descend.Softmax(descend.FullyConnected(x, num_neurons=10, weights=[own]))
    model = descend.Model(1, objective_function=descend.CrossEntropy(x, labels))
    experiment = short()
    result = run(experiment.trainer, model, experiment.data_reader, experiment.optimizer, tmp_path / "run")
    model.epochs = 0
    untrained = run(experiment.trainer, model, experiment.data_reader, experiment.optimizer, tmp_path / "untrained")
    torch.testing.assert_close(result.weights["frozen"], untrained.weights["frozen"], rtol=0, atol=0)
    assert not torch.equal(result.weights["own"], untrained.weights["own"])
    state = load_file(weights_file(result.run_dir).parent / "training" / "optimizer.safetensors")
    assert any("own" in name for name in state)
    assert not any("frozen" in name for name in state)


@needs_fashion_mnist
@pytest.mark.slow(seconds=40)
def test_lenet_learns_fashion_mnist(tmp_path):
    """The seeds' LeNet, 5 epochs, batch 64, SGD 0.01 with momentum 0.9: at least 0.87, and every test sample once."""
    result = start(demo_experiment("fashion-mnist"), tmp_path / "run")
    (test,) = [row for row in result.history if row["mode"] == "test"]
    assert test["samples"] == 10_000
    assert test["accuracy"] >= 0.87


def test_a_callback_and_a_criterion_of_one_s_own_run_and_are_named_in_the_text(tmp_path):
    seen: list[int] = []

    class Watcher(descend.Callback):
        def after_step(self, step):
            seen.append(step.step)

    experiment = short()
    experiment.model.callbacks = [Watcher(), descend.Print()]

    class Third(descend.train.Stop):
        def reason(self, at):
            return "made 3 updates" if at.step >= 3 else None

    stop = descend.BatchedIterativeOptimizer("mine", stop=Third())
    experiment.trainer = dataclasses.replace(experiment.trainer, training_algo=stop)
    result = start(experiment, tmp_path / "run")
    assert seen == [1, 2, 3]
    assert result.reason == "made 3 updates"
    text = (tmp_path / "run" / "experiment.prototext").read_text()
    assert text.startswith("# left out, because it has no text form: Watcher\n# left out")
    assert [
        type(callback).__name__ for callback in load(tmp_path / "run" / "experiment.prototext").model.callbacks
    ] == ["Print"]


def worker_pid():
    (process,) = [one for one in multiprocessing.active_children() if one.name == "descend-loader-0"][:1]
    return process.pid


class Killed(descend.Callback):
    """Kills the worker that reads for training, in the second step."""

    def after_step(self, step):
        if step.step == 1:
            os.kill(worker_pid(), signal.SIGKILL)


@pytest.mark.slow(seconds=10)
def test_worker_processes_of_a_description_read_the_same_and_end_with_the_run(tmp_path):
    """Here from its text, whose readers hold samples out and crop at random."""
    experiment = short()
    (folder := tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(60):
        Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(folder / f"{number:02}.png")
    (folder / "list.txt").write_text("".join(f"{number:02}.png {number % 10}\n" for number in range(60)))
    crops = [RandomResizedCrop(8, 8), Grayscale(), Scale(1 / 255)]
    names = {"name": "imagenet", "data_filedir": str(folder), "data_filename": "list.txt", "num_labels": 10}
    train = descend.Reader(role="train", shuffle=True, validation_fraction=0.2, transforms=crops, **names)
    weights = []
    for workers in (0, 1):
        experiment.data_reader = descend.DataReader([train], workers=workers)
        experiment.trainer = dataclasses.replace(experiment.trainer, mini_batch_size=16)
        save_prototext(tmp_path / f"{workers}.prototext", *vars(experiment).values())
        again = load(tmp_path / f"{workers}.prototext")
        assert again.data_reader.workers == workers
        weights.append(start(again, tmp_path / str(workers)).weights)
        assert multiprocessing.active_children() == []
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    again.model.epochs = 3
    again.model.callbacks.append(Killed())
    with pytest.raises(descend.errors.DataError, match=r"loader descend-loader-0 .* was killed by SIGKILL at sample"):
        start(again, tmp_path / "killed")
    assert multiprocessing.active_children() == []
