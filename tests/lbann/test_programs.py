"""Programs as LBANN's users write them, run by the real driver; each also with an expectation that is wrong.

A caller sees the exit code alone: that the wrong expectation fails shows that the right one was looked at.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import descend.models
import pytest

import descend
import descend.data
import descend.zoo
from descend.data.formats.python_module import imported, module_in_import
from descend.data.transforms import Scale
from descend.errors import DataError

ROOT = Path(__file__).parents[2]
DIGITS = Path(descend.zoo.__file__).parent / "digits"

# A script that is its own data reader, with one layer; the expectation comes from NumPy in float64.
OWN_READER = """
import os, sys
import numpy as np
import lbann
import lbann.contrib.launcher

np.random.seed(3)
data = np.random.normal(size=(17, 5, 3)).astype(np.float32)

def get_sample(index): return data[index].reshape(-1)
def num_samples(): return len(data)
def sample_dims(): return (data[0].size,)

def reader(role):
    message = lbann.reader_pb2.Reader(name="python", role=role, fraction_of_data_to_use=1.0)
    message.python.module = os.path.basename(os.path.realpath(__file__))[:-3]
    message.python.module_dir = os.path.dirname(os.path.realpath(__file__))
    message.python.sample_function = "get_sample"
    message.python.num_samples_function = "num_samples"
    message.python.sample_dims_function = "sample_dims"
    return message

if __name__ == "__main__":
    x = lbann.Reshape(lbann.Input(data_field="samples"), dims=[5, 3])
    # Zero weights, so that gradients go to the input as well.
    zero = lbann.Weights(optimizer=lbann.SGD(), initializer=lbann.ConstantInitializer(value=0.0))
    x = lbann.Sum(x, lbann.WeightsLayer(weights=zero, dims=[5, 3]))
    z = lbann.L2Norm2(lbann.Tanh(x))
    value = np.mean(np.sum(np.tanh(data.astype(np.float64)) ** 2, axis=(1, 2)))
    tolerance = 8 * value * np.finfo(np.float32).eps
    value += float(sys.argv[1])
    callbacks = [
        lbann.CallbackCheckMetric(metric="z", lower_bound=value - tolerance, upper_bound=value + tolerance,
                                  error_on_failure=True, execution_modes="test"),
        lbann.CallbackCheckGradients(error_on_failure=True),
    ]
    model = lbann.Model(0, layers=list(lbann.traverse_layer_graph(x)), objective_function=z,
                        metrics=[lbann.Metric(z, name="z")], callbacks=callbacks)
    readers = lbann.reader_pb2.DataReader()
    readers.reader.extend([reader("train"), reader("test")])
    sys.exit(lbann.contrib.launcher.run(lbann.Trainer(mini_batch_size=5), model, readers, lbann.NoOptimizer(),
                                        work_dir="work", overwrite_script=True))
"""

# A data set of the script's own, which goes to the driver as a signed pickle.
OWN_DATASET = """
import sys
import numpy as np
import lbann
from lbann.util.data import Dataset, Sample, SampleDims, construct_python_dataset_reader

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return Sample(sample=np.array([i, 2 * i]), response=np.array([i * i]))
    def get_sample_dims(self): return SampleDims(sample=(2,), response=1)

if __name__ == "__main__":
    x, y = lbann.Input(data_field="samples"), lbann.Input(data_field="responses")
    z = lbann.L1Norm(y)
    want = 17.5 + float(sys.argv[1])  # the mean of the squares of 0 to 7
    check = lbann.CallbackCheckMetric(metric="z", lower_bound=want - 1e-4, upper_bound=want + 1e-4,
                                      error_on_failure=True, execution_modes="test")
    model = lbann.Model(0, layers=lbann.traverse_layer_graph([x, y]), objective_function=[z, lbann.L1Norm(x)],
                        metrics=lbann.Metric(z, name="z"), callbacks=check)
    readers = lbann.reader_pb2.DataReader()
    readers.reader.extend([construct_python_dataset_reader(Squares(), role=role) for role in ("train", "test")])
    sys.exit(lbann.run(lbann.Trainer(3), model, readers, lbann.SGD(learn_rate=0.1), work_dir="work"))
"""

# LeNet, as LBANN's quick start has it, on MNIST's files.
LENET = """
import sys
import google.protobuf.text_format
import lbann
import lbann.contrib.args, lbann.models

images = lbann.Input(data_field="samples")
labels = lbann.Input(data_field="labels")
large = lbann.Upsample(images, upsample_mode="nearest", num_dims=2, scale_factors_i=4)  # these digits are 8 x 8
preds = lbann.Softmax(lbann.models.LeNet(10)(large))
loss = lbann.CrossEntropy(preds, labels)
acc = lbann.CategoricalAccuracy(preds, labels)
callbacks = [
    lbann.CallbackPrintModelDescription(), lbann.CallbackPrint(), lbann.CallbackTimer(),
    lbann.CallbackCheckMetric(metric="accuracy", lower_bound=80, upper_bound=100, error_on_failure=True,
                              execution_modes="test"),
    lbann.CallbackCheckMetric(metric="accuracy", lower_bound=101, upper_bound=102, execution_modes="test"),
]
model = lbann.Model(2, layers=lbann.traverse_layer_graph([images, labels]), objective_function=loss,
                    metrics=[lbann.Metric(acc, name="accuracy", unit="%")], callbacks=callbacks)
message = lbann.lbann_pb2.LbannPB()
with open("data_reader_mnist.prototext") as f:
    google.protobuf.text_format.Merge(f.read(), message)
sys.exit(lbann.run(lbann.Trainer(64, random_seed=1), model, message.data_reader,
                   lbann.SGD(learn_rate=0.05, momentum=0.9), work_dir="work", job_name="lenet"))
"""

EVALUATION = """
import numpy as np
import lbann

h = lbann.Reshape(lbann.Input(data_field="samples"), dims=[2, 2])
y, t = lbann.Relu(h), lbann.Reduction(h, mode="sum")
data = np.random.default_rng(0).normal(size=(5, 2, 2)).astype(np.float32)
first, second = lbann.evaluate(h, data)
np.testing.assert_array_equal(first.reshape(5, 2, 2), np.maximum(data, 0))
np.testing.assert_allclose(second.ravel(), data.sum((1, 2)), rtol=1e-5)
model = lbann.Model(1, h)
np.testing.assert_allclose(model(data, outputs=t).ravel(), data.sum((1, 2)), rtol=1e-5)
assert model.callbacks == [] and model.epochs == 1
"""


def run_program(folder, code, *arguments):
    """A program in a folder of its own."""
    (folder / "program.py").write_text(code)
    command = [sys.executable, "-m", "descend.lbann", "program.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def mnist(tmp_path):
    """The digits of this package as MNIST's files, and a reader of them as LBANN has one."""
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (tmp_path / kind).write_bytes(gzip.decompress((DIGITS / f"{kind}.gz").read_bytes()))
    readers = "".join(
        f"""
        reader {{ name: "mnist" role: "{role}" shuffle: true data_filedir: "{tmp_path}/"
          data_filename: "images-idx3-ubyte" label_filename: "labels-idx1-ubyte" validation_fraction: {fraction}
          fraction_of_data_to_use: 1.0 transforms {{ scale {{ scale: 0.0625 }} }} }}"""
        for role, fraction in (("train", 0.1), ("test", 0))
    )
    (tmp_path / "data_reader_mnist.prototext").write_text(f"data_reader {{ {readers} }}")


@pytest.mark.slow
@pytest.mark.parametrize(("off", "status"), [("0", 0), ("0.01", 4)])
@pytest.mark.parametrize("code", [OWN_READER, OWN_DATASET], ids=["reader", "dataset"])
def test_expectations_hold_and_wrong_ones_fail(tmp_path, code, off, status):
    done = run_program(tmp_path, code, off)
    assert done.returncode == status, done.stderr
    assert ("CheckMetric: test z is" in done.stderr) == bool(status)


@pytest.mark.slow(seconds=15)
@pytest.mark.usefixtures("mnist")
def test_lenet_of_the_quick_start_learns(tmp_path):
    """The lines on standard output are those that LBANN's tests look for."""
    done = run_program(tmp_path, LENET)
    assert done.returncode == 0, done.stderr
    assert "model0 (instance 0) training epoch 1 objective function : " in done.stdout
    assert "model0 (instance 0) test accuracy : " in done.stdout
    assert "which is not in [101, 102]" in done.stderr  # of the expectation that only warns
    assert (tmp_path / "work" / "out.log").read_text() == done.stdout
    experiment = tmp_path / "work" / "experiment.prototext"
    again = [
        ("descend.lbann.driver", f"--prototext={experiment}"),
        ("descend", "run", str(experiment), "--run-dir", "descend_run"),
    ]
    for module, *arguments in again:
        folder = tmp_path / module
        folder.mkdir()
        command = [sys.executable, "-m", module, *arguments]
        once_more = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert once_more.returncode == 0, once_more.stderr
        assert left_by(folder / "descend_run") == left_by(tmp_path / "work" / "descend_run")
    ours = own_form(tmp_path)
    theirs = left_by(tmp_path / "work" / "descend_run")[0]
    assert [row["accuracy"] for row in ours.history] == [row["accuracy"] for row in theirs]


def own_form(folder):
    """The same network and data by descend's own names."""
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    large = descend.Upsample(images, upsample_mode="nearest", num_dims=2, scale_factors_i=4)
    predictions = descend.Softmax(descend.models.LeNet(10)(large))
    loss = descend.CrossEntropy(predictions, labels)
    accuracy = descend.Metric(descend.CategoricalAccuracy(predictions, labels), name="accuracy", unit="%")
    model = descend.Model(2, [images, labels], objective_function=loss, metrics=[accuracy])
    scale = Scale(scale=0.0625)
    files = {"data_filename": "images-idx3-ubyte", "label_filename": "labels-idx1-ubyte"}
    readers = [
        descend.data.Reader(name="mnist", role=role, shuffle=True, data_filedir=f"{folder}/", transforms=(scale,),
                            validation_fraction=fraction, fraction_of_data_to_use=1.0, **files)
        for role, fraction in (("train", 0.1), ("test", 0.0))
    ]  # fmt: skip
    optimizer = descend.SGD(lr=0.05, momentum=0.9)
    trainer = descend.Trainer(64, random_seed=1)
    return descend.run(trainer, model, descend.data.DataReader(readers), optimizer, run_dir=folder / "own")


def left_by(run_dir):
    """What a run has measured, without times, and the bytes of its last weights and of the optimizer's state."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    measured = [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]
    last = max((run_dir / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    tensors = {str(path.relative_to(last)): path.read_bytes() for path in last.rglob("*.safetensors")}
    assert measured
    assert tensors
    return measured, tensors


@pytest.mark.slow
def test_outputs_of_layers_are_computed_for_given_inputs(tmp_path):
    done = run_program(tmp_path, EVALUATION)
    assert done.returncode == 0, done.stderr


def test_a_reader_s_module_that_starts_a_run_when_it_is_imported_starts_no_driver(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("descend.lbann.launcher.save_prototext", None)  # a driver would be started behind this
    (tmp_path / "reads_and_runs.py").write_text(
        "import descend.lbann as lbann\n"
        "x = lbann.Input(data_field='samples')\n"
        "lbann.run(lbann.Trainer(2), lbann.Model(0, [x]), lbann.reader_pb2.DataReader(), lbann.SGD(), work_dir='w')\n"
    )
    with pytest.raises(DataError, match=r"imports 'reads_and_runs' for its reader.*__name__ == '__main__'"):
        imported("reads_and_runs", str(tmp_path))
    assert module_in_import() is None
