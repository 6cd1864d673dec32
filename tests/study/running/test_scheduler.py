"""Whole studies on the digits: the same records alone, together, killed, and by several processes."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks.start import begin_alone
from study_tasks import mlp, trial
from torch import nn

from descend.errors import ConfigurationError, DescendError, Stopped, StorageError
from descend.study.comparing import read_directory
from descend.study.design import Arm, Needs, Study, log
from descend.study.progress import status_of
from descend.study.running import executor_choice as choose
from descend.study.running import processes, scheduler, stack
from descend.study.running import trial as trial_module
from descend.study.running import trial_store as leases
from descend.study.running import vmapped as together
from descend.study.running.plan import pending, total_trials
from descend.study.running.scheduler import RecordKeeper, conduct, run_in_processes
from descend.study.running.trial import Record, TrialCheckpoints, TrialSetup
from descend.study.running.trial_store import Memory, StudyDirectory
from descend.study.task import StudyTask

WORKLOAD = f"{Path(__file__).parents[2] / 'study_tasks.py'}:mlp"


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch):
    """As many as a study needs to be divided at all, whatever this host has."""
    for room in (choose, processes):
        monkeypatch.setattr(room, "cores", lambda: 2)


def study(**fields):
    arms = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-3, 1e-1)})}
    sizes = {"trials": 4, "searches": 2, "shortlist": 2, "shortlist_seeds": 2, "confirmation_seeds": 3}
    given = {"workload": WORKLOAD, "steps": (20,), "evaluations": 2, "arms": arms, **sizes, **fields}
    return Study(batch_sizes=(32,), **given)


WORK = """
import sys
from descend.study.running.scheduler import work
work(*sys.argv[1:])
"""


def scores(records):
    return {name: (record.status, record.scores) for name, record in sorted(records.items())}


def test_alone_and_together_agree():
    """Winners may differ only where rounding decides; here none does."""
    small = study(searches=1)
    alone = conduct(small, Memory(), executor="one")
    together = conduct(small, Memory(), executor="together")
    assert len(alone) == total_trials(small)
    assert alone.keys() == together.keys()
    for name, record in alone.items():
        assert together[name].status == record.status
        assert together[name].scores["train"]["loss"] == pytest.approx(record.scores["train"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_to_the_same_records(tmp_path):
    whole = conduct(study(), Memory(), executor="one")
    StudyDirectory(tmp_path, study())
    for _ in range(3):
        process = begin_alone(WORK, tmp_path / "script", str(tmp_path), "one")
        before = len(StudyDirectory(tmp_path).records())
        deadline = time.monotonic() + 60
        while len(StudyDirectory(tmp_path).records()) < before + 3 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        old = time.time() - 1000
        for lease in (tmp_path / "leases").iterdir():
            os.utime(lease, (old, old))
    with StudyDirectory(tmp_path, study()) as directory:
        records = conduct(study(), directory, executor="one")
    assert scores(records) == scores(whole)


@pytest.mark.slow
def test_processes_share_a_study(tmp_path):
    StudyDirectory(tmp_path, study())
    run_in_processes(tmp_path, 2, "one")
    records = StudyDirectory(tmp_path).records()
    assert scores(records) == scores(conduct(study(), Memory(), executor="one"))
    lines = sum(len(file.read_text().splitlines()) for file in (tmp_path / "records").iterdir())
    assert lines == len(records)
    assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.slow(seconds=15)
def test_processes_that_are_killed_anywhere_lose_nothing_and_run_nothing_twice(tmp_path, monkeypatch):
    """Two machines by their names share the directory; one process after the other is killed at moments by chance."""
    longer = study(steps=(300,))  # so that there is something to kill whenever it is looked for
    whole = conduct(longer, Memory(), executor="one")
    monkeypatch.setattr(leases, "LEASE_SECONDS", 2.0)
    code = """
import socket, sys
socket.gethostname = lambda: sys.argv[2]
from descend.study.running import scheduler as conduct, trial_store as leases
leases.LEASE_SECONDS, leases._HEARTBEAT_SECONDS = 2.0, 0.2
conduct.work(sys.argv[1], "one")
"""
    StudyDirectory(tmp_path, longer)
    chance = random.Random(0)

    def start(host):
        return begin_alone(code, tmp_path / "script", str(tmp_path), host)

    def killed(process):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    running = {host: start(host) for host in ("first", "second")}
    deadline, kills = time.monotonic() + 600, 0
    while len(StudyDirectory(tmp_path).records()) < len(whole):
        assert time.monotonic() < deadline
        assert all(process.poll() in (None, 0) for process in running.values())
        time.sleep(chance.uniform(0.05, 0.5))
        if kills < 6 and len(StudyDirectory(tmp_path).records()) > 2 * kills:
            host = chance.choice(list(running))
            killed(running[host])
            running[host], kills = start(host), kills + 1
    for process in running.values():
        assert process.wait(60) == 0
    assert kills
    assert scores(StudyDirectory(tmp_path).records()) == scores(whole)
    lines = [line for file in (tmp_path / "records").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(whole)


@pytest.mark.slow
def test_a_signal_ends_a_study_with_its_claims_given_back(tmp_path):
    long = study(steps=(2000,))
    StudyDirectory(tmp_path, long)
    for executor in ("together", "one"):
        process = begin_alone(WORK, tmp_path / "script", str(tmp_path), executor)
        deadline = time.monotonic() + 60
        while not list((tmp_path / "leases").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)
        process.terminate()
        assert process.wait(60) == 75
        assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("undivided", "divided"), [("one", "processes"), ("together", "stacks")])
def test_processes_give_what_one_gives(undivided, divided, monkeypatch):
    """To the last bit, over steps that are traced as well; groups of every size are divided."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(stack, "_WORTH_A_TRACE", 4)
    longer = study(steps=(8,), searches=1)
    try:
        alone, apart = (conduct(longer, Memory(), executor=way) for way in (undivided, divided))
    finally:
        torch.set_num_threads(threads)
    assert scores(alone) == scores(apart)


def test_a_process_that_a_trial_kills_is_an_error_of_that_trial():
    class Deadly(nn.Linear):
        def forward(self, x):
            os.kill(os.getpid(), signal.SIGKILL)

    deadly = StudyTask(lambda: Deadly(64, 10), nn.CrossEntropyLoss(), mlp().train).prepared()
    with pytest.raises(DescendError, match="its process was killed"):
        conduct(study(), Memory(), executor="processes", task=deadly)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raises", "kills"])
def test_what_one_trial_does_to_its_process_is_not_done_to_the_stacks_beside_it(fault):
    """A stack that falls is halved until the trial that fells it is alone, in a process of its own."""
    (wild,) = [one.id for one in pending(study(searches=1), {}) if one.arm == "sgd" and one.index == 2]

    def run(task, trials, evaluations, kinds):
        def work():
            if wild in [one.id for one in trials]:
                if fault == "kills":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("mine")
            return (one.line().encode() for one in together.run_vmapped(task, trials, evaluations))

        lines = list(processes.forked([work]))
        if len(lines) < len(trials):
            raise DescendError("killed")
        return iter([Record.read(line.decode()) for line in lines])

    small = study(searches=1, shortlist=1, confirmation_seeds=1)
    falling = choose.Executor("stacks", run, 64, "to fall")
    assert scores(conduct(small, Memory(), executor=falling)).keys() == scores(conduct(small, Memory())).keys()


@pytest.mark.slow
@pytest.mark.parametrize(("forks", "count"), [(False, None), (True, 1)], ids=["several processes", "one processor"])
def test_how_the_work_is_divided_changes_no_bit(monkeypatch, forks, count):
    """A process among several does not divide its stacks again, and a machine of one processor has none to divide."""
    small = study(searches=1, shortlist=1, confirmation_seeds=1)
    known = conduct(small, Memory(), executor="together")
    monkeypatch.setattr(choose, "_LEAST_STACKED", 0)
    if count:
        monkeypatch.setattr(processes, "cores", lambda: count)
    assert scores(conduct(small, Memory(), forks=forks)) == scores(known)


def test_a_stack_without_memory_is_halved(monkeypatch):
    widths = []

    class Small(together.Stack):
        def __init__(self, task, trials, looks):
            widths.append(len(trials))
            if len(trials) > 2:
                raise torch.OutOfMemoryError("too many at once")
            super().__init__(task, trials, looks)

    small = study(searches=1, shortlist=1, confirmation_seeds=1)
    known = conduct(small, Memory(), executor="together")
    monkeypatch.setattr(together, "Stack", Small)
    assert scores(conduct(small, Memory(), executor="together")) == scores(known)
    assert max(widths) > 2


def test_a_study_goes_on_as_it_began_whatever_is_left(tmp_path):
    """One trial that is left runs as it would have run among the others, with the same bits."""
    small = study(searches=1, shortlist=1, confirmation_seeds=1)
    known = conduct(small, Memory())
    (last,) = [one for one in pending(small, {}) if one.arm == "sgd"][-1:]
    with StudyDirectory(tmp_path, small) as directory:
        some = [record for name, record in known.items() if name != last.id and record.trial.phase == "search"]
        directory.claim([record.trial for record in some], len(some))
        directory.record(*some)
        (tmp_path / "executors").mkdir()  # which an earlier version wrote
        (tmp_path / "executors" / "0a1b").write_text('{"kind": "sgd/b32", "executor": "one"}')
        assert scores(conduct(small, directory)) == scores(known)


def test_a_directory_with_records_of_other_settings_is_not_gone_on_with(tmp_path):
    small = study(arms={"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)})}, sampler="grid", searches=1, shortlist=1)
    with StudyDirectory(tmp_path, small) as directory:
        conduct(small, directory, executor="one")
    more = Study(**{**dict(small), "trials": 5})
    with (
        StudyDirectory(tmp_path, more) as directory,
        pytest.raises(ConfigurationError, match=r"search/001 ran with lr"),
    ):
        conduct(more, directory, executor="one")


def test_an_error_is_repeated_once_and_then_reported():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    tried = []
    broken = StudyTask(lambda: Broken(64, 10), nn.CrossEntropyLoss(), mlp().train).prepared()
    with pytest.raises(DescendError, match="ValueError: mine"):
        conduct(study(), Memory(), executor="one", task=broken, said=lambda records, record: tried.append(record))
    assert len(tried) == 2


def test_what_cannot_run_together_is_refused_only_when_asked_for():
    arms = {"torch": Arm("torch.optim:SGD", {"lr": log(1e-2, 1.0)})}
    small = study(arms=arms, searches=1, confirmation_seeds=1)
    assert len(conduct(small, Memory())) == total_trials(small)
    with pytest.raises(ConfigurationError, match="cannot run together"):
        conduct(small, Memory(), executor="together")
    with pytest.raises(ConfigurationError, match="did you mean 'together'"):
        conduct(small, Memory(), executor="togther")


def test_a_process_leaves_when_others_hold_all_that_is_left(tmp_path):
    with StudyDirectory(tmp_path, study()) as holder, StudyDirectory(tmp_path) as helper:
        holder.claim(pending(study(), {}), 100)
        with pytest.raises(Stopped, match=r"other processes hold the 16 trials that can run now, for 0 seconds"):
            conduct(study(), helper, executor="one", idle_seconds=0)


def test_too_little_of_a_machine_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(trial_module, "_gpus", lambda: 0)
    for executor in ("auto", "one", "processes"):
        with pytest.raises(ConfigurationError, match="1 GPUs and this machine has none that torch can use"):
            conduct(study(needs={"device": "cuda"}), Memory(), executor=executor, said=None)


def test_processes_have_gpus_of_their_own(monkeypatch):
    monkeypatch.setattr(trial_module, "_gpus", lambda: 5)
    monkeypatch.setattr(scheduler, "cores", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert scheduler._shared_gpus(Needs(gpus=2), 2) == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,3,5,4,1")
    assert scheduler._shared_gpus(Needs(gpus=1, ranks=2), 2) == ["7,3", "5,4"]
    assert scheduler._shared_gpus(Needs(cores=4), 3) == [None, None, None]
    with pytest.raises(ConfigurationError, match=r"of 1 processor, 2 GPUs each, .*: say --processes 2"):
        scheduler._shared_gpus(Needs(gpus=2), 3)


def test_a_process_helps_with_another_arm_in_that_arms_own_way(tmp_path):
    """Another process holds all trials of the arm that runs together; the other arm's optimizer cannot."""
    arms = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "torch": Arm("torch.optim:SGD", {"lr": log(1e-2, 1.0)})}
    small = study(arms=arms, searches=1, confirmation_seeds=1)

    class Enough(Exception):
        pass

    def said(records, record):
        assert record.trial.arm == "torch"
        assert record.status == "done"
        if record.trial.phase == "confirmation":
            raise Enough

    with StudyDirectory(tmp_path, small) as holder, StudyDirectory(tmp_path) as helper:
        holder.claim([one for one in pending(small, {}) if one.arm == "sgd"], 100)
        with pytest.raises(Enough):
            conduct(small, helper, said=said)


def test_a_class_and_an_argument_of_the_workload_can_be_searched():
    arms = {"mine": Arm(torch.optim.SGD, {"lr": log(1e-2, 1.0), "workload.width": log(4, 9)}, {})}
    described = study(
        workload=lambda width: mlp(width=int(width)), arms=arms, trials=2, searches=1, confirmation_seeds=1
    )
    records = conduct(described, Memory())
    widths = {record.trial.configuration["workload.width"] for record in records.values()}
    assert len(widths) == 2
    assert all(record.status == "done" for record in records.values())


@pytest.mark.slow
def test_an_error_in_a_process_is_reported_with_its_exit_code(tmp_path):
    StudyDirectory(tmp_path, study())
    (tmp_path / "records" / "other.jsonl").write_text("{}\n")
    with pytest.raises(StorageError, match=r"(?s)other\.jsonl:1: not a record.*2 of 2 processes .* \[5, 5\]") as error:
        run_in_processes(tmp_path, 2, "one")
    assert len(error.value.problems) == 2  # what both say stands once


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    StudyDirectory(tmp_path, study(steps=(200_000,)))  # longer than anybody waits
    code = f"""
import sys; sys.path[:0] = [{str(Path.cwd())!r}]
from descend.study.running.scheduler import run_in_processes
if __name__ == "__main__":
    run_in_processes({str(tmp_path)!r}, 2, "one")
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
    while not list((tmp_path / "leases").iterdir()):
        assert parent.poll() is None
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.stderr is not None
    parent.stderr.read()  # to its end, which comes when the last of its children is gone
    parent.wait()
    assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.parametrize("executor", ["one", "together", "processes"])
def test_a_signal_between_the_claim_of_a_trial_and_its_first_step_stops_it(executor):
    class Signalled(Memory):
        def claim(self, trials, at_most):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().claim(trials, at_most)

    ledger = Signalled()
    with pytest.raises(Stopped, match="SIGTERM"):
        conduct(study(steps=(200_000,)), ledger, executor=executor)
    assert ledger.records() == {}


def test_records_of_other_settings_are_not_shown_either(tmp_path):
    StudyDirectory(tmp_path, study())
    first = pending(study(), {})[0]
    other = replace(first, configuration={**first.configuration, "lr": 0.5})
    (tmp_path / "records" / "a.jsonl").write_text(Record(other, "diverged", failed_at=1).line() + "\n")
    for look in (read_directory, status_of):
        with pytest.raises(ConfigurationError, match=r"ran with lr 0\.5 and not"):
            look(tmp_path)


def test_a_record_without_the_metric_is_reported(tmp_path):
    StudyDirectory(tmp_path, study(trials=1, shortlist=1))
    scores = {"validation": {"loss": [1.0]}}
    records = [Record(one, "done", (0,), scores) for one in pending(study(trials=1, shortlist=1), {})]
    (tmp_path / "records" / "a.jsonl").write_text("".join(one.line() + "\n" for one in records))
    with pytest.raises(StorageError, match="has no 'accuracy' on validation samples"):
        read_directory(tmp_path)


def silent(records, record):
    pass


def test_errors_are_not_settled_and_the_second_one_ends_the_study():
    keeper = RecordKeeper(Memory(), TrialSetup(), silent)
    keeper.keep([Record(trial(1), "diverged"), Record(trial(2), "error", message="mine")])
    assert [record.status for record in keeper.settled().values()] == ["diverged"]
    keeper.keep([Record(trial(2), "out of memory", message="too large")])
    with pytest.raises(DescendError) as error:
        keeper.settled()
    assert list(error.value.problems) == [f"{trial(2).id}: out of memory: too large"]


def test_errors_of_other_processes_are_tried_here_as_often():
    ledger = Memory()
    ledger.record(Record(trial(1), "error"))
    keeper = RecordKeeper(ledger, TrialSetup(), silent)
    keeper.keep([Record(trial(1), "error")])
    assert keeper.settled() == {}


def test_each_record_is_said_with_those_before_it():
    said = []
    keeper = RecordKeeper(
        Memory(), TrialSetup(), lambda records, record: said.append((len(records), record.trial.index))
    )
    keeper.settled()
    keeper.keep([Record(trial(1), "diverged"), Record(trial(2), "diverged")])
    assert said == [(0, 1), (1, 2)]


def test_checkpoints_are_kept_for_trials_that_run_again(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    for index in (1, 2):
        saved.run_dir(trial(index)).mkdir()
    keeper = RecordKeeper(Memory(), TrialSetup(checkpoints=saved), silent)
    keeper.keep([Record(trial(1), "error"), Record(trial(2), "diverged")])
    assert list(tmp_path.iterdir()) == [saved.run_dir(trial(1))]
