"""What a trial needs: which machines have it, and how a study says it."""

import pytest

from descend.errors import ConfigurationError
from descend.study.design import Arm, Needs, Study, log, make_study, read_study
from descend.study.design.toml import to_toml

GIB = 2**30


def study(**fields):
    arms = {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}
    return Study(workload="t.py:t", batch_sizes=32, steps=100, trials=8, arms=arms, **fields)


@pytest.mark.parametrize(
    ("needs", "machine", "count"),
    [
        (Needs(), (4, 0, 0), 4),
        (Needs(cores=3), (8, 0, 0), 2),
        (Needs(cores=3, ranks=3), (8, 0, 0), 0),
        (Needs(memory_gib=1.5), (64, 4 * GIB, 0), 2),
        (Needs(memory_gib=1.5, ranks=2), (64, 4 * GIB, 0), 1),
        (Needs(gpus=1, ranks=2), (64, 0, 5), 2),
        (Needs(gpus=1), (64, 64 * GIB, 0), 0),
    ],
)
def test_how_many_trials_a_machine_has_room_for(needs, machine, count):
    assert needs.trials_on(*machine) == count


def test_what_is_needed_in_words():
    assert str(Needs()) == "1 processor"
    assert str(Needs(cores=2, memory_gib=1.5, gpus=1, ranks=2)) == "4 processors, 3 GiB of memory, 2 GPUs"


def test_a_study_without_needs_is_described_as_before_there_were_any():
    assert not {"needs", "checkpoint_every"} & study().plain().keys()


def test_needs_come_back_from_the_plain_form_and_from_a_file(tmp_path):
    given = study(needs=Needs(cores=2, device="cuda", memory_gib=0.5), checkpoint_every=50)
    assert make_study(given.plain()) == given
    (tmp_path / "study.toml").write_text(to_toml(given))
    assert read_study(tmp_path / "study.toml") == given


def test_a_gpu_is_one_gpu_for_each_rank():
    assert Needs(device="cuda", ranks=2).all_gpus == 2
    assert Needs(device="cpu").all_gpus == Needs().all_gpus == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"needs": {"cores": 0}}, "needs.cores is 0"),
        ({"needs": {"gpu": 1}}, "there is no 'needs.gpu'; did you mean 'gpus'?"),
        ({"needs": {"memory_gib": 0}}, "needs.memory_gib is 0"),
        ({"needs": {"device": "gpu"}}, "needs.device is 'gpu'"),
        (
            {"needs": {"device": "cuda", "gpus": 2}},
            "device = 'cuda' in [needs] is one GPU for each rank, and gpus is 2",
        ),
        ({"needs": {"device": "cpu", "gpus": 1}}, "device = 'cpu' in [needs] uses no GPU"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, said):
    with pytest.raises(ConfigurationError) as error:
        study(**fields)
    assert len(error.value.problems) == 1
    assert said in error.value.problems[0]
