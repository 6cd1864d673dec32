"""Ten reasons to switch to this package, and ten for which people leave one, each tried from outside.

As `tasks.py` beside this file: each runs in an empty folder of its own, with nothing but what is installed, and raises
where it is not so. `run.py` runs both from a wheel; tests/newcomer/test_reasons.py does so in every run of slow tests,
in an environment whose sockets reach nothing but this machine.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import io
import json
import os
import re
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from tasks import accuracy, blobs, main, net, script, shell, train
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import descend
import descend.optim

if TYPE_CHECKING:
    from collections.abc import Callable

REASONS: list[Callable[[], None]] = []


def reason(function: Callable[[], None]) -> Callable[[], None]:
    """Put a function into the list."""
    REASONS.append(function)
    return function


def bits(folder: str) -> bytes:
    """The weights and the optimizer's state of the newest checkpoint."""
    newest = max(Path(folder, "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    return (newest / "weights.safetensors").read_bytes() + (newest / "training/optimizer.safetensors").read_bytes()


def raised(kind: type[BaseException], call: Callable[[], Any]) -> str:
    """What is said by the error that a call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


torch.set_num_threads(1)  # a forked process would wait for the parent's OpenMP threads, which it does not have


def forked(run: Callable[[], None]) -> int:
    """A process that runs a function and ends with its exit code; this one's imports are there already."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            descend.main(run)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(code)
    return child


def exit_code(child: int, seconds: float = 60.0) -> int:
    """How a process ended; negative for a signal."""
    for _ in range(round(seconds / 0.02)):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("it did not end")


class Slow(descend.Callback):
    """Gives signals the time to hit between any two updates."""

    def after_step(self, step: descend.train.StepView) -> None:
        """Wait."""
        time.sleep(0.01)


def a_run(folder: str, *, slow: bool = True) -> None:
    """Ninety updates that can be stopped anywhere, by a module that draws random numbers."""
    torch.manual_seed(0)
    callbacks = [descend.Checkpoint(every_steps=7), *([Slow()] if slow else [])]
    module = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
    train(module, run_dir=folder, resume=True, callbacks=callbacks, batch_size=20, stop=descend.Steps(90))


def when_begun(folder: str) -> None:
    """Wait until a run has made its first checkpoint."""
    for _ in range(1500):
        if any(Path(folder).glob("checkpoints/step-*")):
            return
        time.sleep(0.02)
    raise AssertionError("the run did not begin")


# ---- ten things for which one would switch on day one


@reason
def kill_it_anywhere() -> None:
    """It continues bit for bit after SIGKILL at any moment."""
    a_run("whole", slow=False)
    for pause in (0.03, 0.11, 0.2, 0.29):
        child = forked(lambda: a_run("killed"))
        when_begun("killed")
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) in (-signal.SIGKILL, 0)
    a_run("killed", slow=False)
    assert bits("killed") == bits("whole")


@reason
def compare_on_my_model() -> None:
    """One command says whether another optimizer helps; an optimizer under two names makes no difference."""
    options: dict[str, Any] = {"batch_size": 50, "steps": 8, "trials": 2, "searches": 2, "seeds": 3}
    data = {"train": blobs(), "validation": blobs(seed=1)}
    result = descend.compare(net, "cross_entropy", data, arms=["SGD", "LAMB"], **options)
    assert "95% interval" in result.verdict
    result.report("report.html")
    assert "<svg" in Path("report.html").read_text() or "pip install" in Path("report.html").read_text()
    same = descend.compare(net, "cross_entropy", data, arms={"one": "SGD", "other": "SGD"}, **options)
    assert same.verdict.startswith("cannot rank")


@reason
def use_an_optimizer_alone() -> None:
    """A torch.optim.Optimizer in a stock loop, without a trainer; torch's tools work with it."""
    x, y = blobs()
    module = net()
    optimizer = descend.optim.LAMB(module.named_parameters(), lr=1e-2)
    assert isinstance(optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)
    scaler = torch.amp.GradScaler("cpu")
    compiled = torch.compile(module, backend="eager")
    for step in range(40):
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(compiled(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step == 20:
            other = descend.optim.LAMB(copy.deepcopy(module).named_parameters(), lr=1e-2)
            other.load_state_dict(copy.deepcopy(optimizer).state_dict())
    assert accuracy(module) > 0.95


@reason
def explain_every_parameter() -> None:
    """A row for each parameter with rule, rate, decay and what decided it, without training."""
    groups = descend.optim.groups.no_decay(net(), weight_decay=0.1)
    rows = descend.optim.explain(descend.optim.AdamW(groups, lr=1e-3)).rows
    decays = {row.name: row.decay for row in rows}
    assert decays == {"0.weight": 0.1, "2.weight": 0.1, "0.bias": 0.0, "2.bias": 0.0}, decays
    assert len(rows) == 4
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    loss = descend.CrossEntropy(descend.zoo.small_lenet(images), labels)
    parts = descend.Trainer(mini_batch_size=64), descend.Model(2, objective_function=loss), descend.zoo.digits()
    descend.save_prototext("net.prototext", *parts, descend.SGD(learn_rate=0.05))
    said = shell("descend", "explain", "net.prototext")
    assert said.count("SGD()") == 8, said


@reason
def parts_are_the_batch() -> None:
    """Accumulation, ignored labels and partial batches give the update of the whole batch, with a loss of my own."""
    x, y = blobs(10)
    x, y = x.double(), torch.where(torch.arange(10) % 3 == 1, -100, y)

    def loss(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        counted = target != -100
        each = functional.cross_entropy(output, target, reduction="none", ignore_index=-100)
        return (each * 2).sum(), counted.sum()

    def after(**options: Any) -> dict[str, Tensor]:
        module = net().double()
        rule = functools.partial(torch.optim.AdamW, lr=1e-2)
        train(module, (x, y), loss=loss, optimizer=rule, batch_size=10, stop=descend.Steps(2), **options)
        return module.state_dict()

    for size in (5, 4, 3, 1):
        torch.testing.assert_close(after(micro_batch_size=size), after(), rtol=1e-12, atol=1e-15)


@reason
def a_dead_rank_ends_the_job() -> None:
    """The others end by themselves soon, with 6, and name the rank that was killed."""
    name = script(
        "import os, signal, torch, descend\n"
        "class Dies(descend.Callback):\n"
        "    def after_step(self, step):\n"
        "        if descend.distributed.rank() == 1 and step.step >= 3:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "def train():\n"
        "    torch.manual_seed(0)\n"
        "    data = torch.randn(200, 8), torch.arange(200) % 3\n"
        "    descend.fit(torch.nn.Linear(8, 3), 'cross_entropy', data, optimizer=descend.SGD(learn_rate=0.1),\n"
        "                batch_size=20, stop=descend.Epochs(50), callbacks=[Dies()], verbose=False)\n"
        "descend.main(train)\n"
    )
    said = shell("descend", "launch", "--ranks", "2", name, expect=6, DESCEND_TIMEOUT_SECONDS="8", OMP_NUM_THREADS="1")
    assert "rank 1" in said, said


@reason
def requeue_on_slurm() -> None:
    """The job's script is sound, and a job that ends with 75 is put into the queue again, once."""
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    loss = descend.CrossEntropy(descend.zoo.small_lenet(images), labels)
    descend.launcher.run(
        descend.Trainer(mini_batch_size=64),
        descend.Model(2, objective_function=loss),
        descend.zoo.digits(),
        descend.SGD(learn_rate=0.05),
        work_dir="job",
        nodes=1,
        procs_per_node=2,
        time_limit=30,
        scheduler="slurm",
        setup_only=True,
    )
    shell("bash", "-n", "job/batch.sh")
    for program, body in {"srun": "exit 75", "scontrol": 'echo "$@" >> "$0.asked"; echo localhost'}.items():
        file = Path("bin", program)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    path = f"{Path('bin').resolve()}{os.pathsep}{os.environ['PATH']}"
    shell("bash", "job/batch.sh", expect=75, PATH=path, SLURM_JOB_ID="17", SLURM_JOB_NODELIST="localhost")
    asked = Path("bin/scontrol.asked").read_text().splitlines()
    assert [line for line in asked if line.startswith("requeue")] == ["requeue 17"], asked


@reason
def a_bad_sample_is_named() -> None:
    """One NaN among 1,000 samples: the run stops, names it, and leaves a checkpoint from before that loads."""
    x, y = blobs(1000)
    x[613, 2] = torch.nan
    said = raised(descend.NumericalError, lambda: train(data=(x, y), run_dir="run", batch_size=20))
    assert "613" in said
    assert "0.weight" in said
    module = net()
    descend.load_weights(module, "run", which="last")
    assert all(torch.isfinite(p).all() for p in module.parameters())


@reason
def bring_what_i_have() -> None:
    """State of torch's Adam goes on; a setting of MXNet is its rule; an LBANN text is read."""
    x, y = blobs()

    def steps(module: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            optimizer.step()

    theirs, ours = net(), net()
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    steps(theirs, adam, 10)
    ours.load_state_dict(theirs.state_dict())
    mine = descend.optim.Adam(ours.named_parameters(), lr=1e-2)
    mine.load_torch_state(copy.deepcopy(adam.state_dict()))
    steps(theirs, adam, 20)
    steps(ours, mine, 20)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)

    p, moment, expected = nn.Parameter(torch.tensor([1.0, -2.0])), torch.zeros(2), torch.tensor([1.0, -2.0])
    sgd = descend.optim.from_library("mxnet-1.9", "sgd", [("p", p)], learning_rate=0.1, momentum=0.9, wd=0.01)
    for step in range(20):
        gradient = torch.tensor([1.0, 0.5]) / (1 + step)
        p.grad = gradient.clone()
        sgd.step()
        moment = 0.9 * moment - 0.1 * (gradient + 0.01 * expected)
        expected = expected + moment
    torch.testing.assert_close(p.detach(), expected, rtol=1e-6, atol=1e-6)

    text = (
        'layer { name: "x" input { data_field: "samples" } } '
        'layer { name: "y" parents: "x" fully_connected { num_neurons: 3 } }'
    )
    assert [one.name for one in descend.graph.from_text(text).layers] == ["x", "y"]


@reason
def everything_is_plain_files() -> None:
    """The numbers of a study from its records, and the history of a run, with nothing but JSON."""
    data = {"train": blobs(), "validation": blobs(seed=1)}
    options: dict[str, Any] = {"batch_size": 50, "steps": 5, "trials": 2, "searches": 2, "seeds": 3}
    result = descend.compare(net, "cross_entropy", data, arms=["SGD", "Adam"], directory="study", **options)
    rows = [json.loads(line) for file in Path("study/records").iterdir() for line in file.read_text().splitlines()]
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        trial = row["trial"]
        if trial["phase"] == "confirmation":
            values = row["scores"]["validation"][result.study.metric]
            found.setdefault((trial["arm"], trial["search"]), []).append(values[-1])
    heads, *table = result.rows
    for row in table:
        cells = dict(zip(heads, row, strict=True))
        values = found[cells["arm"], int(cells["search"]) - 1]
        assert f"{statistics.median(values):.4g}" == cells["median of re-runs"], (cells, values)
    trained = train(run_dir="run")
    kept = [json.loads(line)["objective"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert kept == [row["objective"] for row in trained.history]


# ---- ten things for which one would leave within an hour


@reason
def no_compiler_is_needed() -> None:
    """Training works where no compiler, no MPI and no shell tool is found."""
    name = script(
        "import shutil, torch, descend\n"
        "assert not any(map(shutil.which, ('cc', 'gcc', 'g++', 'c++', 'clang', 'mpirun', 'nvcc')))\n"
        "m = torch.nn.Linear(4, 2)\n"
        "optimizer = descend.optim.AdamW(m.named_parameters(), lr=1e-2)\n"
        "for _ in range(3):\n"
        "    m(torch.randn(8, 4)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    Path("nothing").mkdir()
    shell(sys.executable, name, PATH=str(Path("nothing").resolve()), CXX="", CC="")


@reason
def help_does_not_wait_for_torch() -> None:
    """--help, --version and the list of optimizers import no torch."""
    name = script(
        "import contextlib, sys\n"
        "from descend.__main__ import app\n"
        "for words in (['--help'], ['--version'], ['optimizers'], ['study', '--help']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        app(words, prog_name='descend')\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    assert "Commands" not in shell(sys.executable, name)


@reason
def the_first_examples_work() -> None:
    """Each block of the README, which is the wheel's long description, in an empty folder on a CPU."""
    about = importlib.metadata.metadata("descend")
    text = about.get_payload() or about["Description"]
    blocks = re.findall(r"```python\n(.*?)```", str(text), re.DOTALL)
    assert len(blocks) >= 2
    for code in blocks:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


@reason
def my_module_stays_as_it_is() -> None:
    """A module that returns a tuple and one with tied weights train untouched."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
            self.outer.weight = self.inner.weight
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.outer(functional.relu(self.inner(x)))
            return self.head(hidden), hidden

    def first(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return functional.cross_entropy(output[0], target)

    module = Tied()
    result = train(module, loss=first, stop=descend.Epochs(20))
    assert result.history[-1]["objective"] < 0.3
    assert module.outer.weight is module.inner.weight


@reason
def no_global_state() -> None:
    """Import, a run and a failed run leave defaults, threads, signals, environment, loggers and the folder alone."""
    name = script(
        "import logging, os, random, signal, sys\n"
        "import numpy as np\n"
        "import torch\n"
        "def state():\n"
        "    return (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),\n"
        "            torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist(), random.getstate(),\n"
        "            np.random.get_state()[1].tolist(), {n: signal.getsignal(n) for n in signal.valid_signals()},\n"
        "            dict(os.environ), logging.root.level, list(logging.root.handlers), sorted(os.listdir()),\n"
        "            sys.excepthook, os.getcwd())\n"
        "before = state()\n"
        "import descend\n"
        "assert state() == before, 'importing changed something'\n"
        "x, y = torch.randn(60, 4), torch.arange(60) % 3\n"
        "module = torch.nn.Linear(4, 3)\n"
        "before = state()\n"
        "def run(x):\n"
        "    descend.fit(module, 'cross_entropy', (x, y), optimizer=descend.SGD(learn_rate=0.1), batch_size=20,\n"
        "                stop=descend.Epochs(2), verbose=False)\n"
        "run(x)\n"
        "assert state() == before, 'a run changed something'\n"
        "try:\n"
        "    run(x * torch.nan)\n"
        "except descend.DescendError:\n"
        "    pass\n"
        "assert state() == before, 'a failed run changed something'\n"
    )
    shell(sys.executable, name)


@reason
def a_typo_is_answered() -> None:
    """With its place and the nearest name, in a few lines, by exit code 2."""
    Path("wrong.prototext").write_text('model {\n  layer { name: "x" fully_connected { num_neuron: 3 } }\n}\n')
    said = shell("descend", "run", "wrong.prototext", "--check", expect=2)
    assert "wrong.prototext:2" in said
    assert "num_neurons" in said
    assert len(said.splitlines()) <= 8
    error = raised(descend.DescendError, lambda: train(bath_size=3))
    assert "batch_size" in error
    assert len(error.splitlines()) <= 8


@reason
def a_run_that_cannot_learn_is_refused() -> None:
    """Everything frozen, no batch at all, no samples: an error before the first epoch."""
    frozen = net().requires_grad_(requires_grad=False)
    assert "train" in raised(descend.DescendError, lambda: train(frozen))
    x, y = blobs(30)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50, drop_last=True)
    assert "50" in raised(descend.DescendError, lambda: train(data=loader, batch_size=None))
    raised(descend.DataError, lambda: train(data=(x[:0], y[:0])))


@reason
def control_c_is_heard() -> None:
    """Once: a checkpoint, and exit code 75. Twice: at once. Both can be continued to the same bits."""
    a_run("whole", slow=False)
    for name, times in (("once", 1), ("twice", 2)):
        child = forked(lambda folder=name: a_run(folder))
        when_begun(name)
        for _ in range(times):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGINT)
            time.sleep(0.002)
        assert exit_code(child, 10.0) in ((75,) if times == 1 else (75, 130, -signal.SIGINT))
        a_run(name, slow=False)
        assert bits(name) == bits("whole")


@reason
def no_step_waits_for_a_number() -> None:
    """A step reads no tensor on the host: twenty steps of an epoch read as many as ten."""

    class Reads(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*given, **(named or {}))

    def loss(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
        return functional.cross_entropy(output, target, reduction="sum"), len(target)

    def reads(steps: int) -> int:
        rule = functools.partial(descend.optim.AdamW, lr=1e-2)
        elsewhere = mock.patch.object(torch.Tensor, "is_cpu", property(lambda self: False), create=True)
        with elsewhere, Reads() as seen:  # all tensors say that they are on a device
            train(loss=loss, optimizer=rule, stop=descend.Steps(steps), batch_size=10, on_nonfinite="allow")
        return seen.count

    assert reads(10) == reads(20)


@reason
def arguments_mean_what_they_mean_in_torch() -> None:
    """The same SGD and Adam give torch's trajectory."""
    x, y = blobs()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("Adam", {"lr": 1e-2, "weight_decay": 0.01}),
        ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}),
    ]
    for name, options in cases:
        ends = []
        for optimizers in (torch.optim, descend.optim):
            module = net()
            optimizer = getattr(optimizers, name)(module.parameters(), **options)
            for _ in range(50):
                optimizer.zero_grad()
                functional.cross_entropy(module(x), y).backward()
                optimizer.step()
            ends.append(module.state_dict())
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], REASONS) > 0)
