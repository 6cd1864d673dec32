"""The text for LSF, and its commands."""

from pathlib import Path

import pytest

from descend.launch import Job, lsf


def job(**more):
    return Job(["python", "train.py"], Path("/shared/job"), nodes=2, procs_per_node=4, **more)


def test_an_allocation_has_a_number():
    assert lsf.detect({"LSB_JOBID": "1"})
    assert not lsf.detect({"LSB_QUEUE": "pbatch", "PATH": "/opt/lsf/bin"})


def test_options_of_a_job_stand_in_its_head_and_those_that_are_not_set_do_not():
    full = {"time_limit": 90, "job_name": "a job", "partition": "q", "account": "g", "reservation": "r"}
    text = lsf.script(job(**full))
    for line in ("-J 'a job'", "-nnodes 2", "-W 1:30", "-q q", "-G g", "-U r", "-cwd /shared/job", "-o out.log"):
        assert f"#BSUB {line}\n" in text
    bare = lsf.script(job())
    assert not any(f"#BSUB {option} " in bare for option in ("-W", "-q", "-G", "-U"))


@pytest.mark.parametrize(("limit", "shown"), [(5, "0:05"), (59.2, "1:00"), (60, "1:00"), (125.5, "2:06")])
def test_minutes_are_rounded_up(limit, shown):
    assert f"#BSUB -W {shown}\n" in lsf.script(job(time_limit=limit))


def test_ranks_of_a_node_are_one_resource_set_and_a_saved_job_is_queued_again():
    text = lsf.script(job())
    assert "jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 4 --launch_distribution packed" in text
    assert 'if [ "${status}" -eq 75 ]; then brequeue "${LSB_JOBID}"; fi' in text
    assert text.index("MASTER_ADDR") < text.index("--tasks_per_rs 4") < text.index("brequeue")


def test_a_script_is_submitted_by_a_shell_and_an_allocation_waits_for_it():
    assert lsf.submit("/w/batch.sh") == ["bash", "-c", 'bsub < "$0"', "/w/batch.sh"]
    command = lsf.allocate(job(partition="q"), "/w/batch.sh")
    assert command[:2] == ["bsub", "-Is"]
    assert command[-2:] == ["bash", "/w/batch.sh"]
    assert command[command.index("-q") + 1] == "q"
