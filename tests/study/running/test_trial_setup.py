"""What a trial needs against what a machine has, and which studies other processes cannot open."""

from pathlib import Path

import pytest
from study_tasks import mlp, trial

from descend.errors import ConfigurationError
from descend.study.design import Arm, Needs, Study, log
from descend.study.running import trial_setup
from descend.study.running.trial_setup import TrialCheckpoints, TrialSetup, trials_on_this_machine


def study(**fields):
    given = {"workload": "t.py:t", "arms": {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}, **fields}
    return Study(batch_sizes=32, steps=100, trials=8, **given)


@pytest.fixture
def machine(monkeypatch):
    """One with 4 GiB and 2 GPUs."""
    monkeypatch.setattr(trial_setup, "memory_bytes", lambda: 4 * 2**30)
    monkeypatch.setattr(trial_setup, "_gpus", lambda: 2)


@pytest.mark.usefixtures("machine")
def test_as_many_trials_as_there_is_room_for_and_one_where_processors_are_too_few():
    assert trials_on_this_machine(Needs(cores=2), 8) == 4
    assert trials_on_this_machine(Needs(cores=2, memory_gib=1.5), 8) == 2
    assert trials_on_this_machine(Needs(cores=2, gpus=2), 8) == 1
    assert trials_on_this_machine(Needs(cores=16), 8) == 1


@pytest.mark.usefixtures("machine")
def test_too_little_of_what_cannot_be_shared_is_refused_at_once():
    with pytest.raises(ConfigurationError) as error:
        trials_on_this_machine(Needs(gpus=2, memory_gib=3, ranks=2), 8)
    gpus, memory = error.value.problems
    assert gpus.startswith("a trial needs 4 GPUs and this machine has 2: run the study where there are as many")
    assert memory.startswith("a trial needs 6 GiB of memory and this machine has 4 GiB: lower memory_gib")


def test_the_memory_of_this_machine_is_that_of_the_system():
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert trial_setup.memory_bytes() == pytest.approx(int(total.split()[1]) * 1024, rel=0.01)


def test_checkpoints_need_a_directory(tmp_path, monkeypatch):
    assert TrialSetup.of(study(), tmp_path).checkpoints is None
    with pytest.raises(ConfigurationError, match="saves trials in the directory of the study"):
        TrialSetup.of(study(checkpoint_every=5), None)
    monkeypatch.chdir(tmp_path)
    setup = TrialSetup.of(study(checkpoint_every=5), Path("runs"))
    assert setup.checkpoints == TrialCheckpoints(tmp_path / "runs" / "trials", 5)


def test_each_trial_has_a_run_directory_within_the_folder_whatever_its_arm_is_called(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    names = {saved.run_dir(trial(index, arm=arm)) for arm in ("a", "../a", "a b") for index in (1, 2)}
    assert len(names) == 6
    assert {name.parent for name in names} == {tmp_path}


def test_only_the_run_directory_of_the_trial_is_removed(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    for index in (1, 2):
        saved.run_dir(trial(index)).mkdir()
    saved.discard(trial(1))
    saved.discard(trial(1))
    assert list(tmp_path.iterdir()) == [saved.run_dir(trial(2))]


def test_ranks_need_names():
    unnamed = study(workload=mlp(), needs=Needs(ranks=2))
    with pytest.raises(ConfigurationError, match=r"trials on 2 ranks open the workload in processes of their own"):
        TrialSetup.of(unnamed, None)
