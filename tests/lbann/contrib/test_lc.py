"""Questions about a computing centre, answered for this machine."""

import importlib

import pytest

from descend.errors import ConfigurationError
from descend.lbann.contrib.lc import paths, systems


def test_the_machine_is_described(monkeypatch, tmp_path):
    assert systems.cores_per_node() >= 1
    assert systems.procs_per_node() >= 1
    assert systems.system()
    assert not systems.is_lc_system()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: B'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (systems.gpus_per_node(), systems.procs_per_node(), systems.has_gpu()) == (2, 2, True)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert (systems.gpus_per_node(), systems.has_gpu()) == (0, False)


def test_the_scheduler_is_that_of_an_allocation(monkeypatch):
    for name in ("SLURM_JOB_ID", "LSB_JOBID", "FLUX_URI"):
        monkeypatch.delenv(name, raising=False)
    assert systems.scheduler() == "local"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert systems.scheduler() == "slurm"


@pytest.mark.parametrize("centre", ["nersc", "olcf", "riken"])
def test_other_centres_answer_alike(centre):
    found = importlib.import_module(f"descend.lbann.contrib.{centre}.systems")
    assert not getattr(found, f"is_{centre}_system")()
    assert found.procs_per_node() == systems.procs_per_node()


def test_data_sets_are_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("LBANN_DATA_DIR", raising=False)
    monkeypatch.delenv("LBANN_MNIST_DIR", raising=False)
    with pytest.raises(ConfigurationError, match="set LBANN_MNIST_DIR to its folder, or LBANN_DATA_DIR"):
        paths.mnist_dir()
    with pytest.raises(ConfigurationError, match="set LBANN_DATA_DIR"):
        paths.parallel_file_system_path()
    monkeypatch.setenv("LBANN_DATA_DIR", "/data")
    assert (paths.mnist_dir(), paths.cifar10_dir()) == ("/data/mnist", "/data/cifar10")
    assert paths.imagenet_dir(data_set="val") == "/data/imagenet/val"
    assert paths.imagenet_labels(data_set="train") == "/data/imagenet/labels/train.txt"
    assert paths.parallel_file_system_path() == "/data"
    monkeypatch.setenv("LBANN_MNIST_DIR", "/other")
    assert paths.mnist_dir() == "/other"
    with pytest.raises(ConfigurationError, match="no part 'trian'"):
        paths.imagenet_dir(data_set="trian")
