"""`lbann.evaluate` with a stand-in for the driver, which writes what the driver would dump."""

import subprocess
import sys

import numpy as np
import pytest

import descend.lbann as lbann
from descend.errors import ConfigurationError, DescendError
from descend.lbann.proto import generic_load

# Twice the inputs for layer "y" and their sums for "t", in two mini-batches that are out of order on the disk.
DRIVER = """
import pathlib, sys
import numpy as np
data = np.load("data.npy")
folder = pathlib.Path("outputs/trainer0/model0")
folder.mkdir(parents=True, exist_ok=True)
for step, part in ((10, data[3:]), (9, data[:3])):
    np.save(folder / f"sgd.testing.epoch.0.step.{step}_y_output0.npy", 2 * part)
    np.save(folder / f"sgd.testing.epoch.0.step.{step}_t_output0.npy", part.sum(1))
    np.save(folder / f"sgd.testing.epoch.0.step.{step}_not_y_output0.npy", part)
"""
DATA = np.arange(10.0).reshape(5, 2)


@pytest.fixture
def driver(tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    return f"{sys.executable} {tmp_path}/driver.py"


def layers():
    x = lbann.Input(data_field="samples", name="x")
    return x, lbann.Relu(x, name="y"), lbann.Reduction(x, mode="sum", name="t")


def test_outputs_are_joined_in_the_order_of_the_mini_batches(tmp_path, driver):
    x, y, t = layers()
    first, second = lbann.evaluate(x, DATA, lbann_exe=driver, work_dir=tmp_path / "w")
    np.testing.assert_array_equal(first, 2 * DATA)
    np.testing.assert_array_equal(second, DATA.sum(1))
    swapped = lbann.evaluate([x], DATA, outputs=[t, y], lbann_exe=driver, work_dir=tmp_path / "w")
    np.testing.assert_array_equal(swapped[0], DATA.sum(1))
    alone = lbann.evaluate(x, DATA, outputs=y, lbann_exe=driver, work_dir=tmp_path / "w")
    np.testing.assert_array_equal(alone, 2 * DATA)


def test_the_driver_gets_the_model_the_inputs_and_the_callbacks(tmp_path, driver):
    x, y, _ = layers()
    loss = lbann.L2Norm2(y, name="loss")
    model = lbann.Model(7, x, objective_function=loss, metrics=lbann.Metric(loss), callbacks=lbann.CallbackPrint())
    extra = [lbann.CallbackTimer()]
    model(DATA, outputs=y, extra_callbacks=extra, lbann_exe=driver, work_dir=tmp_path / "w")
    found = generic_load(tmp_path / "w" / "experiment.prototext")
    assert [one.WhichOneof("callback_type") for one in found.model.callback] == ["print", "timer", "dump_outputs"]
    assert found.model.callback[2].dump_outputs.layers == "y"
    assert (found.model.num_epochs, found.trainer.mini_batch_size) == (0, 5)
    assert found.model.metric[0].layer_metric.layer == "loss"
    assert [one.role for one in found.data_reader.reader] == ["train", "test"]
    assert found.data_reader.reader[0].python.module == "single_tensor_data_reader"
    assert (model.epochs, len(model.callbacks)) == (7, 1)


def test_training_is_one_step_that_moves_no_weights(tmp_path, driver):
    x, y, _ = layers()
    with pytest.raises(DescendError):  # the stand-in dumps no outputs of training
        lbann.evaluate(x, DATA, outputs=lbann.Identity(y), training=True, lbann_exe=driver, work_dir=tmp_path / "w")
    found = generic_load(tmp_path / "w" / "experiment.prototext")
    step = lbann.training_algorithm_pb2.SGD()
    found.trainer.training_algorithm.parameters.Unpack(step)
    assert step.stopping_criteria.max_batches == 1
    assert found.model.callback[0].dump_outputs.execution_modes == "training"
    assert found.optimizer.WhichOneof("optimizer_type") == "no_optimizer"


def test_failures_are_said(tmp_path, driver):
    x, y, _ = layers()
    with pytest.raises(DescendError, match=r"the driver ended with status 3; its output is in .*err\.log"):
        lbann.evaluate(x, DATA, lbann_exe="exit 3; ", work_dir=tmp_path / "a")
    other = lbann.Identity(y, name="other")
    with pytest.raises(DescendError, match="no output of layer 'other'"):
        lbann.evaluate(x, DATA, outputs=other, lbann_exe=driver, work_dir=tmp_path / "b")
    with pytest.raises(ConfigurationError, match=r"inputs have shape \(0, 2\)"):
        lbann.evaluate(x, DATA[:0])


def test_the_reader_gives_the_rows_of_the_file_in_the_current_folder(tmp_path):
    np.save(tmp_path / "data.npy", DATA.reshape(5, 1, 2))
    code = "from descend.lbann.contrib.single_tensor_data_reader import *\n"
    code += "print(num_samples(), sample_dims(), get_sample(3).tolist(), get_sample(3).dtype)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "5 (1, 2) [6.0, 7.0] float32\n"
