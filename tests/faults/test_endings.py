"""Signals, clocks, and what a run leaves behind in its process."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from faults.doors import X, Y, fault, fit, in_a_process, net
from torch.utils.data import Dataset

import descend
from descend.errors import Stopped
from descend.runtime import verify

# ---- signals


class Send(descend.Callback):
    """Sends a signal to this process at a moment of step 3."""

    def __init__(self, number, hook, times=1):
        self.number, self.times, self.sent = number, times, False
        setattr(self, hook, self.send)

    def send(self, view):
        if view.step >= 3 and not self.sent:
            self.sent = True
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


def sends(number, hook):
    """A callback class with this hook, as hooks are looked up in the class."""
    return type("Send", (descend.Callback,), {hook: Send.send, "number": number, "times": 1, "sent": False})()


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
MOMENTS = ["before_step", "after_backward", "after_step", "before_evaluation", "after_evaluation_step", "after_epoch"]


# What is done about a signal does not depend on its number, so each number meets one moment and SIGTERM all of them.
PAIRS = [(signal.SIGTERM, moment) for moment in MOMENTS]
PAIRS += [(signal.SIGINT, "after_step"), (signal.SIGUSR1, "after_backward")]


@pytest.mark.parametrize(("number", "moment"), PAIRS)
def test_a_signal(tmp_path, number, moment):
    """At any moment: the step is finished, everything is saved, exit 75, handlers are restored, the same bits."""
    before = {n: signal.getsignal(n) for n in SIGNALS}
    settings = {"valid": (X[:9], Y[:9]), "stop": descend.Steps(9)}
    said = fault(
        lambda: fit(callbacks=[sends(number, moment)], run_dir=tmp_path, **settings), 75, "everything is saved in"
    )
    assert ("Ctrl-C" if number == signal.SIGINT else number.name) in said
    assert {n: signal.getsignal(n) for n in SIGNALS} == before
    whole, parts = fit(**settings), fit(run_dir=tmp_path, resume=True, **settings)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())
    rows = [
        [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
        for result in (whole, parts)
    ]
    assert rows[0] == rows[1]


def test_a_signal_without_a_directory():
    fault(lambda: fit(callbacks=[sends(signal.SIGTERM, "after_step")]), 75, "nothing is saved")


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    class Twice(descend.Callback):
        def after_step(self, step):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # a shell has it ignored by what it starts in the background
    with pytest.raises(KeyboardInterrupt):
        fit(callbacks=[Twice()], run_dir=tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    assert signal.getsignal(signal.SIGINT) is before


class Slow(Dataset):
    """Its third read takes for ever, and before that sends a signal from another process."""

    def __init__(self, parent):
        self.parent, self.reads = parent, 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        self.reads += 1
        if self.reads == 25:
            subprocess.Popen([sys.executable, "-c", f"import os; os.kill({self.parent}, {int(signal.SIGTERM)})"])
            time.sleep(600)
        return X[i], int(Y[i])


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_signal_while_a_sample_is_waited_for(tmp_path, workers):
    """No step is under way, so the run need not wait for the sample."""
    began = time.monotonic()
    with pytest.raises(Stopped, match=r"SIGTERM after step 2.*step-2"):
        fit(data=Slow(os.getpid()), workers=workers, run_dir=tmp_path)
    assert time.monotonic() - began < 60
    verify(tmp_path / "checkpoints/step-2")


# ---- clocks


def test_only_the_monotonic_clock_counts(tmp_path, monkeypatch):
    """The wall clock jumps by a day, forward and back: limits in seconds do not see it, and restarts go on counting."""
    clock = {"wall": 1.7e9, "monotonic": 0.0}
    monkeypatch.setattr(time, "time", lambda: clock["wall"])
    monkeypatch.setattr(time, "monotonic", lambda: clock["monotonic"])

    class Jump(descend.Callback):
        def after_step(self, step):
            clock["monotonic"] += 1.0
            clock["wall"] += 86400.0 if step.step % 2 else -86400.0

    result = fit(callbacks=[Jump()], stop=descend.Seconds(7.5) | descend.Steps(99))
    assert (result.steps, result.reason) == (8, "trained for 8.0 of 7.5 seconds")
    fit(callbacks=[Jump()], stop=descend.Steps(5), run_dir=tmp_path)
    clock["monotonic"] = 1e6  # another boot
    parts = fit(callbacks=[Jump()], stop=descend.Seconds(7.5) | descend.Steps(99), run_dir=tmp_path, resume=True)
    assert parts.steps == 8
    again = fit(callbacks=[Jump()], stop=descend.SecondsPerRun(3.5) | descend.Steps(99))
    assert again.steps == 3


def test_a_save_within_a_step_counts_the_time_of_that_step(tmp_path, monkeypatch):
    """Each step takes a second before it is saved; a run that crashes continues with all of them."""
    clock = {"now": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])

    class Slow(descend.Callback):
        def __init__(self, crash_at):
            self.crash_at = crash_at

        def after_step(self, step):
            clock["now"] += 1.0
            if step.step == self.crash_at:
                raise ZeroDivisionError

    save = descend.Checkpoint(every_steps=1)
    with pytest.raises(ZeroDivisionError):
        fit(callbacks=[Slow(4), save], run_dir=tmp_path)
    limit = descend.Seconds(7.5) | descend.Steps(99)
    parts = fit(callbacks=[Slow(0), save], stop=limit, run_dir=tmp_path, resume=True)
    assert (parts.steps, parts.reason) == (8, "trained for 8.0 of 7.5 seconds")
    assert [row["seconds"] for row in parts.history] == [4.0, 4.0]


def test_a_limit_for_the_process_leaves_time_to_save(tmp_path, monkeypatch):
    """Twice the longest save and one step, and the evaluations that follow."""
    clock = {"now": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    fsync = os.fsync

    def slowly(descriptor):
        fsync(descriptor)
        clock["now"] += 1.0

    monkeypatch.setattr(os, "fsync", slowly)

    class Tick(descend.Callback):
        def after_step(self, step):
            clock["now"] += 1.0

    stop = descend.SecondsPerRun(100.0) | descend.Steps(999)
    result = fit(callbacks=[Tick(), descend.Checkpoint(every_steps=20)], stop=stop, run_dir=tmp_path)
    spent = clock["now"]
    assert result.steps > 20
    assert 75 < spent <= 100


# ---- surroundings

SURROUNDINGS = """
import logging, os, random, signal, sys, threading, warnings
import numpy, torch

def surroundings():
    return {
        "torch": torch.get_rng_state().tolist(), "numpy": str(numpy.random.get_state()), "python": random.getstate(),
        "dtype": torch.get_default_dtype(), "device": torch.get_default_device(), "threads": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(), "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(), "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals() if n not in (9, 19)},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()), "root": list(logging.root.handlers),
        "level": logging.root.level, "environment": dict(os.environ), "folder": os.getcwd(), "files": os.listdir(),
        "filters": list(warnings.filters), "show": warnings.showwarning, "hook": sys.excepthook,
        "stdout": sys.stdout, "alive": [t.name for t in threading.enumerate()], "path": list(sys.path),
        "recursion": sys.getrecursionlimit(), "dynamo": torch._C._get_tracing_state(),
    }

def same(before, when):
    after = surroundings()
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, (when, changed, [(before[n], after[n]) for n in changed])
"""


@pytest.mark.slow
def test_import_and_runs_leave_the_process_as_it_was(tmp_path):
    """Seeds, types, thread counts, handlers, loggers, environment, files: the same after the import, after a run that
    ends, after one that fails and after one that is stopped, by either door."""
    (tmp_path / "work").mkdir()
    text = SURROUNDINGS + (
        """
import functools, tempfile
torch.manual_seed(3); numpy.random.seed(4); random.seed(5); torch.set_num_threads(1)
warnings.simplefilter("ignore")
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch imports more with its first optimizer
before = surroundings()
import descend
same(before, "import")
for name in dir(descend):
    getattr(descend, name)
same(before, "all names")
X, Y = torch.randn(20, 4, generator=torch.Generator()), torch.zeros(20, dtype=torch.int64)

class Fail(descend.Callback):
    def after_step(self, step):
        raise ValueError("on purpose")

class Stop(descend.Callback):
    def after_step(self, step):
        os.kill(os.getpid(), signal.SIGTERM)

class Print(descend.Callback):
    def after_epoch(self, epoch):
        torch.rand(3); numpy.random.rand(3); random.random()

def fit(*callbacks, optimizer=functools.partial(torch.optim.SGD, lr=0.1), **settings):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2))
    torch.set_rng_state(state)
    with tempfile.TemporaryDirectory() as folder:
        try:
            descend.fit(module, "cross_entropy", (X, Y), optimizer=optimizer, batch_size=5, stop=descend.Epochs(2),
                run_dir=folder + "/run", callbacks=[*callbacks, descend.Checkpoint(every_steps=2, asynchronous=True)],
                valid=(X, Y), **settings)
        except (descend.errors.DescendError, ValueError) as error:
            print(type(error).__name__)

state = torch.get_rng_state()
fit(); same(before, "a run")
fit(Fail()); same(before, "a run that fails")
fit(Stop()); same(before, "a run that is stopped")
fit(optimizer=functools.partial(descend.optim.Adam, lr=float("nan"))); same(before, "a run that is refused")
fit(optimizer=functools.partial(descend.optim.LAMB, lr=0.1)); same(before, "a run with our optimizer")
experiment = descend.zoo.demo_experiment("digits")
for epochs in (1, -1):
    experiment.trainer.training_algo = None
    experiment.model.epochs = epochs
    with tempfile.TemporaryDirectory() as folder:
        try:
            parts = experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer
            descend.run(*parts, folder + "/r")
        except descend.errors.DescendError as error:
            print(type(error).__name__)
    same(before, f"a text, {epochs}")
print("the same")
"""
    )
    (tmp_path / "work" / "script.py").write_text(text)
    ended = in_a_process(text, tmp_path / "work")
    assert ended.returncode == 0, ended.stderr
    assert "the same" in ended.stdout, ended.stdout + ended.stderr
    assert "ValueError" in ended.stdout
    assert "Stopped" in ended.stdout


def test_help_version_and_check_need_no_torch(tmp_path):
    """They answer before torch could be imported."""
    from descend.experiment import experiment_text
    from descend.zoo import demo_experiment

    (tmp_path / "a.prototext").write_text(experiment_text(demo_experiment("digits")))
    text = """
import sys
from descend.__main__ import main
for words in (["--help"], ["--version"], ["run", "--help"], ["resume", "--help"], ["run", "a.prototext", "--check"]):
    sys.argv = ["descend", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    assert "torch" not in sys.modules, words
"""
    ended = in_a_process(text, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_history_is_not_lost_with_the_terminal(tmp_path):
    """log.txt ends with how the run ended, and run.json with the exit code."""
    with pytest.raises(Stopped):
        fit(net(), callbacks=[sends(signal.SIGTERM, "after_step")], run_dir=tmp_path)
    end = json.loads((tmp_path / "run.json").read_text())["end"]
    assert end["exit_code"] == 75
    assert "SIGTERM after step 3" in (tmp_path / "log.txt").read_text()
