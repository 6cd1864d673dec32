"""`descend.launcher.run` on this machine: two ranks by torchrun, their output, their files and their exit code."""

import json
import sys

import pytest
from system_needs import needs_linux

import descend
from descend.errors import ConfigurationError
from descend.experiment.launcher import detected


def start(folder, **settings):
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    scores = descend.FullyConnected(images, num_neurons=10, has_bias=True, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores), labels, name="loss")
    model = descend.Model(
        1,
        layers=descend.traverse_layer_graph([images, labels]),
        objective_function=descend.ObjectiveFunction([loss]),
    )
    trainer = descend.Trainer(mini_batch_size=100, random_seed=3)
    given = {"scheduler": "local", "environment": {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": 1}, **settings}
    return descend.launcher.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.05), folder, **given)


@pytest.mark.slow
def test_two_ranks_on_this_machine(tmp_path, capfd):
    assert start(tmp_path / "job", procs_per_node=2) == 0
    out = (tmp_path / "job" / "out.log").read_text()
    assert "finished 1 of 1 epochs" in out
    assert "finished 1 of 1 epochs" in capfd.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "job" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["mode"] == "train" for row in rows) == 1
    assert (tmp_path / "job" / "err.log").exists()
    with pytest.raises(ConfigurationError, match=r"batch\.sh exists already"):
        start(tmp_path / "job")


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_ranks(tmp_path):
    assert start(tmp_path / "job", procs_per_node=2, setup_only=True) == 0
    assert not (tmp_path / "job" / "run").exists()
    (tmp_path / "job" / "run").write_text("in the way")
    assert start(tmp_path / "job", procs_per_node=2, overwrite_script=True) == 2
    assert "is a file" in (tmp_path / "job" / "err.log").read_text()


def test_a_run_whose_saving_takes_longer_than_the_signal_gives_is_refused(tmp_path):
    (tmp_path / "job" / "run").mkdir(parents=True)
    (tmp_path / "job" / "run" / "run.json").write_text(json.dumps({"end": {"save_seconds": 61.0}}))
    with pytest.raises(ConfigurationError, match="took 61 seconds, and the job gets a signal 120 seconds before"):
        start(tmp_path / "job", setup_only=True)
    (tmp_path / "job" / "run" / "run.json").write_text(json.dumps({"end": {"save_seconds": 59.0}}))
    assert start(tmp_path / "job", setup_only=True) == 0


def test_a_dry_run_finds_a_directory_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    from descend.__main__ import main

    def call(folder):
        (tmp_path / "script.py").touch()
        words = ["launch", "--ranks", "2", "--dry-run", str(tmp_path / "script.py"), "--run-dir", str(folder)]
        monkeypatch.setattr(sys, "argv", ["descend", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, "".join(capsys.readouterr())

    code, said = call(tmp_path / "new")
    assert (code, "--nproc-per-node=2" in said) == (0, True)
    (tmp_path / "file").touch()
    code, said = call(tmp_path / "file" / "run")
    assert (code, "cannot be written" in said) == (2, True)


def test_blocks_of_ranks_reach_the_command(tmp_path):
    assert start(tmp_path / "job", procs_per_node=4, procs_per_trainer=2, setup_only=True) == 0
    assert "--procs-per-trainer=2" in (tmp_path / "job" / "batch.sh").read_text()


def test_arguments_for_the_starter_are_a_list(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"launcher_args must be a list of strings such as \['--mem=0', '-x'\], got "
    ):
        start(tmp_path / "job", launcher_args="--mem=0 -x", setup_only=True)


@needs_linux
def test_a_folder_that_cannot_be_made_is_refused():
    with pytest.raises(ConfigurationError, match=r"work_dir /proc/descend cannot be (created|written)"):
        start("/proc/descend", setup_only=True)


def test_an_installed_client_is_no_allocation():
    assert detected({"PATH": "/usr/bin"}) == "local"
    assert detected({"SLURM_JOB_ID": "7"}) == "slurm"
    assert detected({"LSB_JOBID": "7"}) == "lsf"
    assert detected({"FLUX_URI": "x", "FLUX_ENCLOSING_ID": "y"}) == "flux"
