import pytest

from descend.errors import ConfigurationError
from descend.launch import SINGLE_PROCESS, RankEnvironment, detect, timeout_seconds
from descend.launch.environment import first_host

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "123"}
SRUN = {
    "SLURM_JOB_ID": "70001",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "tux[07-10],other",
}


def test_nothing_is_said():
    assert detect({}) == SINGLE_PROCESS


def test_torchrun():
    assert detect(TORCHRUN) == RankEnvironment(3, 4, 1, "torchrun", "host", 123)


def test_a_step_of_slurm_meets_on_its_first_host_at_a_port_of_the_job():
    assert detect(SRUN) == RankEnvironment(5, 8, 1, "slurm", "tux07", 20001)
    assert detect({**SRUN, "MASTER_ADDR": "a", "MASTER_PORT": "5"}) == RankEnvironment(5, 8, 1, "slurm", "a", 5)


def test_a_batch_script_of_slurm_is_no_rank():
    assert detect({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"}) == SINGLE_PROCESS


def test_one_rank_is_alone():
    assert detect({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) == SINGLE_PROCESS


def test_other_launchers():
    flux = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1"}
    jsrun = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_RANK": "0"}
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert [detect(some).launcher for some in (flux, jsrun, mpi)] == ["flux", "lsf", "mpi"]
    assert [detect(some).rank for some in (flux, jsrun, mpi)] == [1, 1, 1]


@pytest.mark.parametrize("wrong", [{"RANK": "4"}, {"RANK": "x"}, {"WORLD_SIZE": ""}])
def test_numbers_that_do_not_fit(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        detect({**TORCHRUN, **wrong})


@pytest.mark.parametrize(
    ("nodes", "first"), [("a", "a"), ("a1,b", "a1"), ("n[1-4]", "n1"), ("n[03,05]-ib", "n03-ib"), ("", None)]
)
def test_first_host(nodes, first):
    assert first_host(nodes) == first


def test_timeout():
    assert timeout_seconds({}) == 30
    assert timeout_seconds({"DESCEND_TIMEOUT_SECONDS": "2.5"}) == 2.5
    with pytest.raises(ConfigurationError, match="DESCEND_TIMEOUT_SECONDS"):
        timeout_seconds({"DESCEND_TIMEOUT_SECONDS": "-1"})
