"""A grid of hyperparameters."""

import pytest

import descend.lbann as lbann
from descend.errors import ConfigurationError
from descend.lbann.contrib.hyperparameter import grid_search
from descend.lbann.proto import generic_load


def experiment(rate, size):
    return lbann.Trainer(size), lbann.Model(1), lbann.reader_pb2.DataReader(), lbann.SGD(learn_rate=rate)


def test_each_combination_is_an_experiment_of_its_own(tmp_path):
    script = lbann.launcher.make_batch_script(work_dir=tmp_path)
    grid_search(script, experiment, procs_per_trainer=2, lbann_exe="driver", rate=[0.1, 0.2], size=[4, 8])
    found = [generic_load(tmp_path / f"experiment.trainer{i}.prototext") for i in range(4)]
    assert [(one.optimizer.sgd.learn_rate, one.trainer.mini_batch_size) for one in found] == [
        (0.1, 4),
        (0.1, 8),
        (0.2, 4),
        (0.2, 8),
    ]
    assert (tmp_path / "hyperparameters.csv").read_text().splitlines()[:2] == ["trainer,rate,size", "0,0.1,4"]
    flags = "--procs_per_trainer=2 --generate_multi_proto --prototext=experiment.trainer.prototext"
    assert f"driver {flags}" in script.text()


def test_a_grid_without_values_is_refused(tmp_path):
    script = lbann.launcher.make_batch_script(work_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="at least one hyperparameter"):
        grid_search(script, experiment)
    with pytest.raises(ConfigurationError, match="at least one hyperparameter"):
        grid_search(script, experiment, rate=[])
