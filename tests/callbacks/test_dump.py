"""Files are parsed by numpy and compared with what is computed apart from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from callback_runs import follow, graph_run, graph_work, samples
from toys import Regression, data

from descend.callbacks import DumpErrorSignals, DumpGradients, DumpMBIndices, DumpOutputs, DumpWeights
from descend.errors import ConfigurationError
from descend.experiment.conduct import conduct
from descend.train import Callback


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Keep(Callback):
    """Keeps weights at the end of each epoch, and gradients of each step."""

    def __init__(self):
        self.weights, self.gradients = [], []

    def after_backward(self, step):
        self.gradients.append({name: g.clone() for name, g in step.gradients.items()})

    def after_epoch(self, epoch):
        self.weights.append({name: w.detach().clone() for name, w in epoch.run.control.weights.items()})


def test_weights_before_training_and_every_so_many_epochs(tmp_path):
    keep = Keep()
    graph_run(tmp_path, keep, DumpWeights(directory="w", epoch_interval=2), epochs=4)
    folders = sorted(path.name for path in (tmp_path / "run" / "w" / "trainer0").iterdir())
    assert folders == [
        "sgd.shared.epoch_end.epoch.2.step.6",
        "sgd.shared.epoch_end.epoch.4.step.12",
        "sgd.shared.training_begin.epoch.0.step.0",
    ]
    for folder, weights in zip(folders[:2], keep.weights[1::2], strict=True):
        place = tmp_path / "run" / "w" / "trainer0" / folder / "model0"
        assert names(place) == sorted(f"{name}.txt" for name in weights)
        for name, expected in weights.items():
            written = np.loadtxt(place / f"{name}.txt", dtype=np.float32, ndmin=2)
            matrix = expected.numpy() if expected.ndim == 2 else expected.numpy()[:, None]
            np.testing.assert_array_equal(written, matrix)


def test_binary_weights(tmp_path):
    keep = Keep()
    graph_run(tmp_path, keep, DumpWeights(directory="w", format="binary"), epochs=1)
    (path,) = (tmp_path / "run" / "w").rglob("*epoch_end*/model0/fc1_linearity_weights.bin")
    content = path.read_bytes()
    assert tuple(np.frombuffer(content[:8], "<i4")) == (5, 16)
    written = np.frombuffer(content[8:], "<f4").reshape(16, 5).T
    np.testing.assert_array_equal(written, keep.weights[0]["fc1_linearity_weights"].numpy())


def test_gradients(tmp_path):
    keep = Keep()
    follow(keep, DumpGradients(basename="g/", interval=2), epochs=1, directory=tmp_path)
    assert names(tmp_path / "g") == [
        f"model0-epoch0-step{step}-{name}-Gradient.txt" for step in (0, 2) for name in ("bias", "weight")
    ]
    written = np.loadtxt(tmp_path / "g" / "model0-epoch0-step2-weight-Gradient.txt", ndmin=2)
    np.testing.assert_array_equal(written, keep.gradients[2]["weight"].numpy())


@pytest.mark.parametrize("micro", [None, 3])
def test_error_signals_do_not_depend_on_micro_batches(tmp_path, micro):
    """The gradient of the mean loss by the softmax's inputs is (p - y) / n."""
    outputs = DumpOutputs(layers="prob labels", execution_modes="train", directory="o", format="npy")
    work = replace(graph_work(DumpErrorSignals(basename="e/"), outputs, epochs=1), micro_batch_size=micro)
    conduct(work, tmp_path / "run")
    for step, size in enumerate((8, 8, 4)):
        folder = tmp_path / "run" / "o" / "trainer0" / "model0"
        p, y = (np.load(folder / f"sgd.training.epoch.0.step.{step}_{name}_output0.npy") for name in ("prob", "labels"))
        assert p.shape == y.shape == (size, 3)
        written = np.loadtxt(tmp_path / "run" / "e" / f"model0-epoch0-step{step}-fc2-ErrorSignal0.txt")
        np.testing.assert_allclose(written, (p - y) / size, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("form", ["csv", "tsv", "npy", "npz"])
def test_outputs_of_every_mode(tmp_path, form):
    graph_run(tmp_path, DumpOutputs(layers="labels relu", directory="o", format=form), epochs=1)
    folder = tmp_path / "run" / "o" / "trainer0" / "model0"
    modes = {"training": 3, "validation": 2, "testing": 2}
    stems = [f"sgd.{mode}.epoch.{int(mode != 'training')}.step.{i}_{layer}_output0.{form}"
             for mode, count in modes.items() for i in range(count) for layer in ("labels", "relu")]  # fmt: skip
    assert names(folder) == sorted(stems)

    def read(layer):
        files = [folder / f"sgd.testing.epoch.1.step.{i}_{layer}_output0.{form}" for i in range(2)]
        if form == "npz":
            return np.concatenate([np.load(file)["data"] for file in files])
        if form == "npy":
            return np.concatenate([np.load(file) for file in files])
        return np.concatenate([np.loadtxt(file, delimiter="," if form == "csv" else "\t") for file in files])

    np.testing.assert_array_equal(read("labels"), samples(10, seed=2)["labels"])
    assert read("relu").shape == (10, 5)
    assert (read("relu") >= 0).all()


def test_outputs_are_those_of_the_forward_pass_and_not_of_the_updated_weights(tmp_path):
    task, keep = Regression(), Keep()
    task.module = torch.nn.Sequential(task.module)

    class Before(Callback):
        def before_step(self, step):
            fields = torch.from_numpy(step.batch.fields["x"])
            self.expected = torch.nn.functional.linear(fields, *step.module.parameters()).detach()

    before = Before()
    follow(
        before, keep, DumpOutputs(layers="0", format="npy", batch_interval=2), task=task, epochs=1, directory=tmp_path
    )
    folder = tmp_path / "trainer0" / "model0"
    assert names(folder) == [f"sgd.training.epoch.0.step.{i}_0_output0.npy" for i in (0, 2)]
    np.testing.assert_array_equal(np.load(folder / "sgd.training.epoch.0.step.2_0_output0.npy"), before.expected)


def test_sample_indices(tmp_path):
    batches = data(batch_size=4, shuffle=True)
    follow(DumpMBIndices(basename="i-"), batches=batches, validation=data(batch_size=10), epochs=1, directory=tmp_path)
    expected = {f"i-model0-training-epoch0-step{b.step}-MB_Sample_Indices.txt": b.ids for b in batches.epoch(0)}
    expected["i-model0-validation-epoch1-step0-MB_Sample_Indices.txt"] = np.arange(10)
    assert set(names(tmp_path)) == set(expected)
    for name, ids in expected.items():
        np.testing.assert_array_equal(np.loadtxt(tmp_path / name, dtype=int, ndmin=1), ids)


def test_an_unknown_layer_or_format_is_refused():
    with pytest.raises(ConfigurationError, match="'xml'"):
        DumpOutputs(format="xml")
    with pytest.raises(ConfigurationError, match="no layer 'fc9'"):
        follow(DumpOutputs(layers="fc9"))
