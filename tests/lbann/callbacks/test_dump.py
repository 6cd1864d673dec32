"""Files are parsed by numpy and compared with what is computed apart from them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from callback_runs import follow, graph_run, graph_work, samples
from run_builder import execute
from torch import nn
from toys import Regression, data

import descend
from descend.callbacks import DumpErrorSignals, DumpGradients, DumpMBIndices, DumpOutputs, DumpWeights
from descend.errors import ConfigurationError
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
    execute(work, tmp_path / "run")
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


def net():
    """A classifier in float64 whose second layer writes to its input."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).double()


X = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, -100, -100, 1, -100, 2, 0, -100])


@pytest.mark.parametrize("micro_batch_size", [None, 3, 4])
def test_error_signals_are_gradients_of_the_mean_over_what_is_counted(tmp_path, micro_batch_size):
    """Of 10 labels 6 count; a layer that works in place changes neither the signal nor the output of the one before."""
    module, expected = net(), {}
    x = X
    for name, layer in module.named_children():
        x = expected[name] = nn.functional.relu(x) if name == "1" else layer(x)
        x.retain_grad()
    nn.functional.cross_entropy(x, Y).backward()
    descend.fit(
        net(),
        "cross_entropy",
        (X, Y),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
        micro_batch_size=micro_batch_size,
        stop=descend.Steps(1),
        shuffle=False,
        clip_global_norm=0.01,
        run_dir=tmp_path / "run",
        callbacks=[DumpErrorSignals(basename="e-"), DumpOutputs(directory="o", format="npy")],
    )
    for name, output in expected.items():
        signal = np.loadtxt(tmp_path / "run" / f"e-model0-epoch0-step0-{name}-ErrorSignal0.txt")
        np.testing.assert_allclose(signal, output.grad, rtol=1e-12, atol=1e-16)
        (file,) = (tmp_path / "run" / "o").rglob(f"*_{name}_output0.npy")
        np.testing.assert_allclose(np.load(file), output.detach(), rtol=1e-14)


@pytest.mark.parametrize(("precision", "bound"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_files_of_a_run_in_half_precision(tmp_path, precision, bound):
    """Loss scale and type of the outputs are gone from the files."""
    logits = net().float()(X.float()).detach().requires_grad_()
    nn.functional.cross_entropy(logits, Y).backward()
    descend.fit(
        net().float(),
        "cross_entropy",
        (X.float(), Y),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
        stop=descend.Steps(1),
        shuffle=False,
        precision=precision,
        run_dir=tmp_path / "run",
        callbacks=[DumpErrorSignals(basename="e-"), DumpOutputs(layers="2", directory="o")],
    )
    signal = np.loadtxt(tmp_path / "run" / "e-model0-epoch0-step0-2-ErrorSignal0.txt")
    np.testing.assert_allclose(signal, logits.grad, atol=bound * float(logits.grad.abs().max()))
    (file,) = (tmp_path / "run" / "o").rglob("*_2_output0.csv")
    np.testing.assert_allclose(np.loadtxt(file, delimiter=","), logits.detach(), atol=5 * bound)


def test_error_signals_of_a_step_that_was_made_again_are_those_of_the_second_attempt(tmp_path):
    """The first attempt takes the whole mini-batch and runs out of memory on the way."""

    class Small(nn.Linear):
        def forward(self, x):
            if len(x) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x)

    module = nn.Sequential(nn.Linear(4, 6), Small(6, 3)).double()
    descend.fit(
        module,
        "cross_entropy",
        (X, Y),
        optimizer=partial(torch.optim.SGD, lr=0.0),
        batch_size=10,
        stop=descend.Steps(1),
        shuffle=False,
        run_dir=tmp_path / "run",
        callbacks=[DumpErrorSignals(basename="e-")],
    )
    hidden = nn.functional.linear(X, module[0].weight, module[0].bias)
    logits = nn.functional.linear(hidden, module[1].weight, module[1].bias)
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(logits, Y), hidden)
    signal = np.loadtxt(tmp_path / "run" / "e-model0-epoch0-step0-0-ErrorSignal0.txt")
    np.testing.assert_allclose(signal, expected, rtol=1e-12, atol=1e-16)
