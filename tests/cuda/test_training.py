"""Whole runs on a GPU: repeating, resuming, text experiments, studies, memory, checkpoints."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import descend
import descend.optim
from descend.runtime.checkpoint import read_weights
from tests.cuda.runs import fitted, samples, weights

if TYPE_CHECKING:
    from collections.abc import Callable

    Figure = Callable[[str, object], None]


def test_19_a_deterministic_run_repeats_and_continues(tmp_path: Path) -> None:
    """With `deterministic=True` the same bits, also of a run that was stopped and resumed."""
    first, again = (weights(fitted("cuda", deterministic=True)) for _ in range(2))
    assert all(map(torch.equal, first, again))
    fitted("cuda", 9, deterministic=True, run_dir=tmp_path / "run")
    resumed = weights(fitted("cuda", deterministic=True, run_dir=tmp_path / "run", resume=True))
    assert all(map(torch.equal, first, resumed))


def test_23_a_text_experiment(tmp_path: Path, figure: Figure) -> None:
    """`descend run` takes the GPU; what it trains there is what the CPU trains, and the same bits where it is asked."""
    text = (Path(__file__).parents[2] / "examples" / "lenet_digits.prototext").read_text()
    (tmp_path / "lenet.prototext").write_text(text.replace("num_epochs: 20", "num_epochs: 1"))

    def run(name: str, **environment: str) -> dict[str, Tensor]:
        done = subprocess.run(
            [sys.executable, "-m", "descend", "run", "lenet.prototext", "--run-dir", name, "--deterministic"],
            env={**os.environ, **environment}, cwd=tmp_path, text=True, capture_output=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return read_weights(max((tmp_path / name / "checkpoints").glob("step-*")))

    def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
        """All weights together are compared: rounding of one grows over an epoch."""
        first, second = (torch.cat([found[name].flatten().double() for name in one]) for found in (one, other))
        return float((first - second).norm() / first.norm())

    here, there, again = run("here", CUDA_VISIBLE_DEVICES=""), run("there"), run("again")
    assert all(torch.equal(there[name], again[name]) for name in here)
    # Convolutions with TF32 round to ten bits, so the mathematics is compared without.
    exact = run("exact", NVIDIA_TF32_OVERRIDE="0")
    distances = f"{apart(here, there):.1e}, {apart(here, exact):.1e}"
    figure("an epoch of LeNet, distance to the CPU's weights, with TF32 and without", distances)
    assert apart(here, exact) < 0.01


@pytest.mark.parametrize("executor", ["one", "together", "auto"])
def test_24_studies(executor: str, figure: Figure, tmp_path: Path) -> None:
    """Trials on the GPU, one by one and stacked."""
    from descend.study.running.executor_choice import choose
    from descend.study.running.trial import Trial
    from descend.study.task import StudyTask

    x, y = samples()
    x = x.flatten(1)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).cuda()

    task = StudyTask(make, nn.CrossEntropyLoss(), (x, y), (x, y)).prepared()
    settings = {"optimizer": "SGD", "momentum": 0.9, "schedule": "constant"}
    trials = [
        Trial("sgd", 32, 100, 0, "search", i, 0, i, {**settings, "lr": 0.001 * (i + 1)}) for i in range(16)
    ]  # fmt: skip
    begin = time.perf_counter()
    way = choose(task, trials, 1, executor, {})
    chosen = time.perf_counter() - begin
    records = list(way.run(task, trials, 1, {}))
    seconds = time.perf_counter() - begin - chosen
    figure(f"16 trials of 100 steps, executor {executor} ({way.name})", f"{seconds:.2f} s, chosen in {chosen:.2f} s")
    assert [record.status for record in records] == ["done"] * 16


def test_25_memory_of_fit(figure: Figure) -> None:
    """The most memory of the device that a run takes, beside the loop that one writes by hand."""
    x, y = torch.randn(256, 1024), torch.randint(0, 10, (256,))

    def module() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)], nn.Linear(1024, 10)).cuda()

    def loop() -> None:
        net = module()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.cuda()), y.cuda()).backward()
            optimizer.step()

    def ours() -> None:
        sgd, loss = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9), nn.CrossEntropyLoss()
        descend.fit(module(), loss, (x, y), optimizer=sgd, batch_size=256, stop=descend.Steps(8), verbose=False)

    most = []
    for way in (loop, ours):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        way()
        most.append(torch.cuda.max_memory_allocated() - before)
    figure("most memory of fit by that of the loop", f"{most[1] / most[0]:.3f} ({most[0]:,} bytes)")


def test_26_checkpoints_while_training(figure: Figure, tmp_path: Path) -> None:
    """How long a step waits that saves 100 MB in the background, beside one that does not."""
    module = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)]).cuda()
    x = torch.randn(512, 1024)
    times: list[float] = []

    class Clock(descend.Callback):
        def after_step(self, _: Any) -> None:
            times.append(time.perf_counter())

    descend.fit(
        module, "mse", (x, x), optimizer=functools.partial(descend.optim.SGD, lr=1e-4), batch_size=64,
        stop=descend.Steps(40), run_dir=tmp_path / "run", verbose=False,
        callbacks=[Clock(), descend.Checkpoint(every_steps=20, asynchronous=True)],
    )  # fmt: skip
    steps = sorted(1e3 * (b - a) for a, b in itertools.pairwise(times))
    some = ", ".join(f"{step:.1f}" for step in (steps[len(steps) // 2], *steps[-2:]))
    figure("a step with checkpoints of 100 MB, median and longest two", f"{some} ms")
