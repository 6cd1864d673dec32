"""Forty tasks of a user who has just installed the package, from a version number to a GAN.

Each is written with nothing but what README.md and docs/*.md say; the docstring names the place. A task runs in an
empty folder of its own and raises where something is not as the page says. `run.py` beside this file builds the wheel,
installs it into a fresh environment and runs them all; one of them alone is `python tasks.py NAME ...`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import descend
import descend.optim

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS: list[Callable[[], None]] = []
Pair = tuple[Tensor, Tensor]


def task(function: Callable[[], None]) -> Callable[[], None]:
    """Put a function into the list."""
    TASKS.append(function)
    return function


def blobs(samples: int = 300, seed: int = 0) -> Pair:
    """Three classes of points in eight dimensions, easy to tell apart."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    centers = 2 * torch.eye(3, 8)
    return centers[labels] + 0.5 * torch.randn(samples, 8, generator=draw), labels


def net() -> nn.Sequential:
    """A small classifier, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def train(module: nn.Module | None = None, data: Any = None, **changed: Any) -> descend.Result:
    """The call of `fit` that most tasks change in one place."""
    options: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": functools.partial(torch.optim.AdamW, lr=1e-2),
        "batch_size": 50,
        "stop": descend.Epochs(5),
        "verbose": False,
    }
    loss = (options := {**options, **changed}).pop("loss")
    return descend.fit(module or net(), loss, blobs() if data is None else data, **options)


def accuracy(module: nn.Module, data: Pair | None = None) -> float:
    """Hits over samples, by plain torch."""
    x, y = blobs(seed=1) if data is None else data
    with torch.no_grad():
        return float((module.eval()(x).argmax(1) == y).float().mean())


def shell(*command: str, expect: int = 0, **environment: str) -> str:
    """What a command prints; it must end with the given status."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment}
    )
    said = done.stdout + done.stderr
    assert done.returncode == expect, f"{' '.join(command)} ended with {done.returncode}:\n{said[-3000:]}"
    assert "Traceback" not in said, said[-3000:]
    return said


def script(text: str, name: str = "script.py") -> str:
    """A script of the newcomer's."""
    Path(name).write_text(text)
    return name


# ---- the first minutes: the command line, the graph, a text


@task
def see_what_it_is() -> None:
    """README: What is there, and what it does."""
    assert descend.__version__ in shell("descend", "--version")
    assert "LAMB" in shell("descend", "optimizers")
    assert "weight_decay" in shell("descend", "optimizers", "LAMB")


@task
def run_the_demo() -> None:
    """README: Two commands, and what is in a run directory."""
    said = shell("descend", "demo")
    assert float(said.rpartition("test accuracy:")[2].split()[0]) > 0.95
    (made,) = [path for path in Path().iterdir() if path.is_dir()]
    assert {"experiment.prototext", "run.json", "metrics.jsonl", "log.txt", "checkpoints"} <= {
        path.name for path in made.iterdir()
    }


@task
def train_the_readme_graph() -> None:
    """README: The same in Python; with fewer epochs."""
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    probabilities = descend.zoo.small_lenet(images)
    hits = descend.Metric(descend.CategoricalAccuracy(probabilities, labels), name="accuracy", unit="%")
    loss = descend.CrossEntropy(probabilities, labels)
    model = descend.Model(4, objective_function=loss, metrics=[hits], callbacks=[descend.Print()])
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    rule = descend.SGD(learn_rate=0.05, momentum=0.9)
    result = descend.run(trainer, model, descend.zoo.digits(), rule, run_dir="digits")
    assert result.history[-1]["accuracy"] > 0.85
    descend.save_prototext("again.prototext", trainer, model, descend.zoo.digits(), rule)
    assert "softmax" in shell("descend", "run", "again.prototext", "--check").lower()
    shell("descend", "run", "again.prototext", "--run-dir", "again")
    weights = [Path(name, "checkpoints", "step-76", "weights.safetensors") for name in ("digits", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@task
def look_at_an_experiment() -> None:
    """README: What is there; bridges.md: A table and a picture, Export to ONNX; a mistake in a text."""
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    probabilities = descend.zoo.small_lenet(images)
    model = descend.Model(1, objective_function=descend.CrossEntropy(probabilities, labels))
    rule = descend.SGD(learn_rate=0.05)
    descend.save_prototext("net.prototext", descend.Trainer(mini_batch_size=64), model, descend.zoo.digits(), rule)
    assert "0.05" in shell("descend", "explain", "net.prototext")
    shell("descend", "show", "net.prototext", "--picture", "net.svg")
    assert Path("net.svg").read_text().startswith("<svg")
    shell("descend", "export", "net.prototext", "net.onnx")
    assert len(descend.onnx.load("net.onnx").layers) > 5
    text = Path("net.prototext").read_text()
    Path("wrong.prototext").write_text(text.replace("num_neurons", "num_neuron", 1))
    assert "did you mean 'num_neurons'" in shell("descend", "run", "wrong.prototext", "--check", expect=2)


# ---- `fit`: the module, the data


@task
def train_my_module() -> None:
    """fit.md: the beginning."""
    result = train(loss=nn.CrossEntropyLoss())
    assert accuracy(result.module) > 0.95
    assert len(str(result).splitlines()) < 12  # a notebook shows it


@task
def see_progress() -> None:
    """fit.md: A run prints a line an epoch."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        train(verbose=True)
    lines = [line for line in said.getvalue().splitlines() if line.startswith("epoch ")]
    assert len(lines) == 5
    assert "objective" in lines[0]
    assert "lr 0.01" in lines[0]


@task
def validate_and_test() -> None:
    """data.md: Train, validate, test; fit.md: Metrics."""
    parts = descend.data.split(blobs(), {"train": 0.7, "validate": 0.1, "test": 0.2}, seed=1)
    result = train(data=parts, metrics=["accuracy", "f1"])
    modes = {row["mode"]: row for row in result.history}
    assert modes["test"]["accuracy"] > 0.9
    assert modes["validation"]["f1"] > 0.8


@task
def train_from_csv() -> None:
    """data.md: the table, and normalize."""
    x, y = blobs()
    rows = [",".join([*(f"{value:.6f}" for value in row), "abc"[label]]) for row, label in zip(x, y, strict=True)]
    head = ",".join([*(f"x{i}" for i in range(8)), "kind"])
    Path("points.csv").write_text("\n".join([head, *rows]))
    assert "kind" in shell("descend", "data", "points.csv", "--html", "data.html")
    reader = descend.data.read("points.csv", target="kind")
    parts = descend.data.split(reader, {"train": 0.8, "validate": 0.2}, stratify="kind")
    parts = descend.data.normalize(parts, keep="statistics.json")
    result = train(data=parts, metrics=["accuracy"])
    assert result.history[-1]["accuracy"] > 0.9


@task
def train_from_numpy_files() -> None:
    """data.md: Looking at it."""
    x, y = blobs()
    np.save("x.npy", x.numpy())
    np.save("y.npy", y.numpy())
    assert accuracy(train(data=descend.data.read({"x": "x.npy", "y": "y.npy"}, target="y")).module) > 0.95


@task
def train_from_an_image_folder() -> None:
    """data.md: a folder of images."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(60):
        bright = number % 2
        folder = Path("images", ("dark", "light")[bright])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(128 * bright, 127 + 128 * bright, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    result = train(module, "images", metrics=["accuracy"], stop=descend.Epochs(40))
    assert result.history[-1]["accuracy"] > 0.95


@task
def keep_my_dataloader() -> None:
    """fit.md: Data, a DataLoader with a collate function."""

    def collate(samples: list[Any]) -> Pair:
        return torch.stack([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*blobs()), batch_size=50, shuffle=True, collate_fn=collate
    )
    assert accuracy(train(data=loader, batch_size=None).module) > 0.95


@task
def stream_batches() -> None:
    """fit.md: Data, an IterableDataset and a function that returns an iterable."""

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            x, y = blobs()
            return iter(zip(x.split(50), y.split(50), strict=True))

    assert accuracy(train(data=torch.utils.data.DataLoader(Batches(), batch_size=None), batch_size=None).module) > 0.9
    assert accuracy(train(data=lambda: iter(Batches()), batch_size=None).module) > 0.9


@task
def read_in_other_processes() -> None:
    """fit.md: Data, workers."""
    name = script(
        "import torch, descend\n"
        "class Squares(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, i):\n"
        "        x = torch.rand(1)\n"
        "        return x, x * x\n"
        "def weights(workers):\n"
        "    torch.manual_seed(0)\n"
        "    m = torch.nn.Linear(1, 1)\n"
        "    descend.fit(m, 'mse', Squares(), optimizer=descend.SGD(lr=0.1), batch_size=16, stop=descend.Epochs(2),\n"
        "                workers=workers, verbose=False)\n"
        "    return m.weight\n"
        "if __name__ == '__main__':\n"
        "    print(torch.equal(weights(0), weights(2)))\n"
    )
    assert "True" in shell(sys.executable, name)


@task
def balance_the_classes() -> None:
    """fit.md: Data, sampler."""
    x, y = blobs(600)
    kept = (y > 0) | (torch.arange(600) < 30)
    data = x[kept], y[kept]
    result = train(data=data, sampler=descend.ClassBalancedSampler(data[1]), metrics=["accuracy", "recall"])
    assert result.history[-1]["recall"] > 0.9


@task
def name_inputs_and_targets() -> None:
    """fit.md: Data, dictionaries; a loss function of my own; two targets."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, points: Tensor, weight: Tensor) -> Tensor:
            return self.body(points * weight[:, None])

    def loss(output: Tensor, kind: Tensor, important: Tensor) -> Pair:
        each = functional.cross_entropy(output, kind, reduction="none") * important
        return each.sum(), important.sum()

    x, y = blobs()
    data = {"points": x, "weight": torch.ones(300), "kind": y, "important": torch.rand(300)}
    result = train(Two(), data, loss=loss, targets=["kind", "important"], micro_batch_size=20)
    assert result.history[-1]["objective"] < 0.5


@task
def fit_a_line() -> None:
    """fit.md: Metrics, rmse and r2; descend's own description of an optimizer."""
    x = torch.linspace(-1, 1, 100)[:, None]
    result = train(nn.Linear(1, 1), (x, 3 * x + 1), loss="mse", metrics=["rmse", "r2"], optimizer=descend.SGD(lr=0.3))
    assert result.history[-1]["r2"] > 0.9


@task
def pack_text_for_a_language_model() -> None:
    """data.md: Text for language models."""

    class Bigrams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(257, 257)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.table(tokens).flatten(0, 1)

    def loss(output: Tensor, target: Tensor) -> Pair:
        flat = target.flatten()
        return functional.cross_entropy(output, flat, reduction="sum"), (flat != -100).sum()

    Path("corpus.txt").write_text("Once upon a time there was a cat.\n\nThere was a dog.\n" * 50)
    text = descend.data.read("corpus.txt", length=64, separator="\n\n")
    history = train(Bigrams(), text, loss=loss, batch_size=8, targets=["target"]).history
    assert history[-1]["objective"] < history[0]["objective"]


# ---- the optimizer and its learning rate


@task
def warm_up_and_decay() -> None:
    """optimizers.md: Schedules; fit.md: The rate over time."""
    schedule = descend.optim.schedules.WarmupCosine(peak=1e-2, warmup_steps=5, steps=30)
    print(*descend.optim.schedules.lint(schedule, 30), sep="\n")
    result = train(optimizer=functools.partial(descend.optim.AdamW, lr=schedule))
    rates = [row["learning_rate"] for row in result.history]
    assert rates[0] > rates[-1] > 0
    assert accuracy(result.module) > 0.9


@task
def find_a_learning_rate() -> None:
    """fit.md: a range test."""
    found = descend.find_learning_rate(
        net(), "cross_entropy", blobs(), optimizer=torch.optim.AdamW, batch_size=50, lowest=1e-5, highest=10.0
    )
    print(found)
    found.save("rates.svg")
    assert Path("rates.svg").read_text().startswith("<svg")


@task
def leave_biases_without_decay() -> None:
    """optimizers.md: Parameter groups."""
    module = net()
    groups = descend.optim.groups.no_decay(module, weight_decay=0.05)
    result = train(module, optimizer=lambda params: torch.optim.AdamW(groups, lr=1e-2))
    assert accuracy(result.module) > 0.95
    assert "learning_rate/decayed" in result.history[-1]


@task
def fine_tune_the_head() -> None:
    """optimizers.md: train_only."""
    module = net()
    body = module[0].weight.detach().clone()
    descend.optim.groups.train_only(module, ["2.*"])
    result = train(module, stop=descend.Epochs(10))
    assert torch.equal(module[0].weight, body)
    assert accuracy(result.module) > 0.9


@task
def make_big_batches() -> None:
    """fit.md: Strategies, what does not depend on micro_batch_size; training.md: Precision; clipping."""
    whole, pieces, accumulated = (
        train(net().double(), (blobs()[0].double(), blobs()[1]), shuffle=False, **options)
        for options in (
            {"batch_size": 100, "clip_global_norm": 1.0},
            {"batch_size": 100, "clip_global_norm": 1.0, "micro_batch_size": 7},
            {"batch_size": 25, "clip_global_norm": 1.0, "strategy": descend.GradientAccumulation(every=4)},
        )
    )
    for other in (pieces, accumulated):
        torch.testing.assert_close(other.module.state_dict(), whole.module.state_dict(), rtol=1e-9, atol=1e-12)
    assert accuracy(train(precision="bfloat16").module) > 0.9


@task
def look_inside() -> None:
    """training.md: Inference and evaluation."""
    found = descend.infer(net(), blobs()[0], batch_size=128, layers=["1"])
    assert found.outputs.shape == (300, 3)
    assert found.layers["1"].shape == (300, 16)
    assert 0 <= descend.evaluate(net(), "cross_entropy", blobs(), batch_size=128, metrics=["accuracy"])["accuracy"] <= 1


@task
def average_the_weights() -> None:
    """fit.md: Averages of the weights."""
    for callback in (descend.EMA(decay=0.9), descend.SWA(start_epoch=3, lr=0.01)):
        assert accuracy(train(callbacks=[callback]).module) > 0.9


# ---- the loop of `fit`: callbacks, stopping, continuing


@task
def stop_early_and_keep_the_best() -> None:
    """fit.md: The best weights, and predictions; Stopping."""
    best = descend.Checkpoint(keep_best="validation/accuracy", best="highest", keep=1)
    stopping = descend.EarlyStopping(monitor="validation/accuracy", patience=1, restore_best=True)
    result = train(
        valid=blobs(seed=1), metrics=["accuracy"], callbacks=[best, stopping], stop=descend.Epochs(50), run_dir="run"
    )
    assert result.history[-1]["epoch"] < 50
    module = net()
    descend.load_weights(module, "run")
    assert abs(accuracy(module) - result.best.value) < 1e-6
    assert descend.predict(module, blobs(seed=1)[0]).shape == (300, 3)


@task
def stop_at_a_target() -> None:
    """fit.md: Stopping."""
    result = train(stop=descend.Reached("train/objective", 0.3) | descend.Epochs(50))
    assert result.history[-1]["objective"] <= 0.3
    assert "reached" in result.reason


@task
def write_a_callback() -> None:
    """callbacks.md: Your own, in ten lines; fit.md: Several validation sets."""

    class Losses(descend.Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def after_step(self, step: Any) -> None:
            self.seen.append(step.loss)

        def after_evaluation(self, evaluation: Any) -> None:
            found = descend.evaluate(evaluation.run.module, "cross_entropy", blobs(seed=2), batch_size=100)
            evaluation.run.control.record({f"second/{name}": value for name, value in found.items()}, evaluation.step)

    losses = Losses()
    result = train(callbacks=[losses], valid=blobs(seed=1))
    assert len(losses.seen) == 30
    assert any("second/objective" in row for row in result.history)


@task
def log_to_a_table_and_tensorboard() -> None:
    """callbacks.md: Loggers."""
    train(callbacks=[descend.CSVLogger(every_steps=2), descend.TensorBoardLogger()], run_dir="run")
    table = Path("run", "metrics.csv").read_text().splitlines()
    assert "train/objective" in table[0]
    assert len(table) > 10
    assert list(Path("run", "tensorboard").iterdir())


@task
def interrupt_and_go_on() -> None:
    """README and checkpoints.md: Ctrl-C ends a script with 75; the same script continues to the same bits."""
    name = script(
        "import functools, sys, time, torch, descend\n"
        "class Slow(descend.Callback):\n"
        "    def after_step(self, step):\n"
        "        time.sleep(float(sys.argv[2]))\n"
        "def train():\n"
        "    torch.manual_seed(0)\n"
        "    x, y = torch.randn(200, 8), torch.arange(200) % 3\n"
        "    descend.fit(torch.nn.Linear(8, 3), 'cross_entropy', (x, y), batch_size=10, stop=descend.Epochs(5),\n"
        "                optimizer=functools.partial(torch.optim.AdamW, lr=1e-2), run_dir=sys.argv[1], resume=True,\n"
        "                callbacks=[Slow(), descend.Checkpoint(every_steps=10)])\n"
        "descend.main(train)\n"
    )
    shell(sys.executable, name, "whole", "0")
    process = subprocess.Popen([sys.executable, name, "stopped", "0.1"], stdout=subprocess.DEVNULL)
    for _ in range(600):
        if Path("stopped", "checkpoints", "step-10").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 75
    said = shell("descend", "resume", "stopped", expect=2)
    assert "resume=True" in said, said
    shell(sys.executable, name, "stopped", "0")
    ends = [Path(folder, "checkpoints", "step-100", "weights.safetensors") for folder in ("whole", "stopped")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


@task
def make_mistakes() -> None:
    """README: A setting that is not used is an error; errors of data name the sample."""
    x, y = blobs()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bath_size": 5}, "batch_size"),
        ({"metrics": ["acuracy"]}, "accuracy"),
        ({"data": (x, torch.where(torch.arange(300) == 7, 3, y))}, "7"),
        ({"data": (torch.where(torch.arange(300)[:, None] == 9, torch.nan, x), y)}, "9"),
        ({"loss": "crossentropy"}, "cross_entropy"),
    ]
    for changed, expected in wrong:
        said = ""
        try:
            train(**changed)
        except descend.errors.DescendError as error:
            said = str(error)
        assert expected in said, said


# ---- a loop of my own


@task
def replace_my_optimizer() -> None:
    """optimizers.md: In a torch loop; a scheduler and a state of torch; training.md: K-FAC is for fit."""
    x, y = blobs()

    def loop(module: nn.Module, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

    ours, theirs, resumed = net(), net(), net()
    optimizer = descend.optim.AdamW(ours.named_parameters(), lr=1e-2)
    loop(ours, optimizer, 10)
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
    loop(ours, optimizer, 10)
    loop(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2), 20)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    saved = torch.load("state.pt", weights_only=True)
    resumed.load_state_dict(saved["model"])
    optimizer = descend.optim.AdamW(resumed.named_parameters(), lr=1e-2)
    optimizer.load_state_dict(saved["optimizer"])
    loop(resumed, optimizer, 10)
    assert all(map(torch.equal, resumed.parameters(), ours.parameters()))


@task
def evaluate_a_schedule_free_rule() -> None:
    """optimizers.md: Schedule-free rules; and by fit."""
    module, (x, y) = net(), blobs()
    optimizer = descend.optim.ScheduleFreeAdamW(module.named_parameters(), lr=2.5e-2)
    for _ in range(30):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    with optimizer.averaged():
        assert accuracy(module) > 0.95
    free = functools.partial(descend.optim.ScheduleFreeAdamW, lr=2.5e-2)
    result = train(optimizer=free, valid=blobs(seed=1), metrics=["accuracy"], run_dir="run")
    again = net()
    descend.load_weights(again, "run", which="last")
    last = [row["accuracy"] for row in result.history if row["mode"] == "validation"][-1]
    assert abs(accuracy(again) - last) < 1e-6


class Total(NamedTuple):
    """The state of the newcomer's own rule."""

    total: Tensor


@task
def write_a_rule() -> None:
    """optimizers.md: Your own rule."""

    @descend.optim.register
    @dataclass(frozen=True)
    class Cautious(descend.optim.Rule):
        """d = g where it keeps the sign it had in the sum of all gradients so far, else 0."""

        def init(self, p: Tensor) -> Total:
            return Total(torch.zeros_like(p))

        def direction(self, g: Tensor, s: Total) -> tuple[Tensor, Total]:
            total = s.total + g
            return torch.where(g * total > 0, g, 0.0), Total(total)

    result = train(optimizer=lambda params: descend.optim.create("cautious", params, lr=0.3))
    assert accuracy(result.module) > 0.9
    assert Cautious is not None


@task
def check_an_optimizer() -> None:
    """README: conformance; optimizers.md: explain, and optimizers of other libraries."""
    assert "FAIL" in shell("descend", "conformance", "torch.optim:SGD", expect=1)
    assert "FAIL" not in shell("descend", "conformance", "descend.optim:SGD")
    params = list(net().named_parameters())
    optimizer = descend.optim.from_library("torch", "AdamW", params, lr=3e-4, betas=(0.9, 0.95), fused=True)
    assert "0.01 decoupled" in str(descend.optim.explain(optimizer))


# ---- several processes


@task
def train_on_two_ranks() -> None:
    """ranks.md: the beginning, by both launchers, against one process."""
    name = script(
        "import torch, descend\n"
        "def train():\n"
        "    torch.manual_seed(0)\n"
        "    data = torch.randn(200, 20), torch.arange(200) % 3\n"
        "    module = torch.nn.Linear(20, 3)\n"
        "    descend.fit(module, 'cross_entropy', data, optimizer=descend.SGD(learn_rate=0.1), batch_size=50,\n"
        "                stop=descend.Epochs(3), verbose=False)\n"
        "    if descend.distributed.rank() == 0:\n"
        "        print('sum', float(module.weight.double().abs().sum()))\n"
        "descend.main(train)\n"
    )
    launchers = (
        (sys.executable,),
        ("descend", "launch", "--ranks", "2"),
        ("torchrun", "--nproc_per_node", "2"),
    )
    sums = [float(shell(*launcher, name, OMP_NUM_THREADS="1").split("sum ")[1].split()[0]) for launcher in launchers]
    assert max(sums) - min(sums) < 1e-5 * sums[0], sums


# ---- comparing


@task
def compare_two_optimizers() -> None:
    """studies.md: In ten lines."""
    result = descend.compare(
        net,
        nn.CrossEntropyLoss(),
        {"train": blobs(), "validation": blobs(seed=1)},
        arms=["nesterov", "Adam"],
        batch_size=50,
        steps=10,
        trials=3,
        seeds=4,
    )
    assert result.verdict
    print(result.table)
    result.report("report.html")
    assert "<html" in Path("report.html").read_text()[:500]


@task
def plan_a_study() -> None:
    """studies.md: As a file; a workload without a script."""
    Path("study.toml").write_text(
        'name = "first"\nworkload = "zoo:lenet"\nbatch_sizes = [256]\nsteps = [4]\ntrials = 2\nsearches = 2\n'
        "shortlist = 1\nshortlist_seeds = 1\nconfirmation_seeds = 2\nseed = 1\n[target]\nvalue = 0.5\n"
        '[arms.sgd]\noptimizer = "SGD"\n[arms.sgd.space]\nlr = { log = [0.01, 1] }\n'
        '[arms.adam]\noptimizer = "Adam"\n[arms.adam.space]\nlr = { log = [0.0001, 0.01] }\n'
    )
    shell("descend", "study", "plan", "study.toml")
    shell("descend", "study", "run", "study.toml", "runs")
    shell("descend", "study", "report", "runs")
    assert "sgd" in shell("descend", "study", "show", "runs")


# ---- beyond one module and one loss


@task
def move_between_torch_and_graphs() -> None:
    """bridges.md: Train a torch module as a model, Get a torch module from a model, Export to ONNX."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = descend.Model.from_torch(module, loss="cross_entropy", metrics=["accuracy"], epochs=3)
    rule = descend.SGD(learn_rate=0.1, momentum=0.9)
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    result = descend.run(trainer, model, descend.zoo.digits(), rule, run_dir="run")
    assert result.history[-1]["accuracy"] > 0.8
    labels = descend.Input(data_field="labels")
    probabilities = descend.zoo.small_lenet(descend.Input(data_field="samples", name="images"))
    graph = descend.Model(1, objective_function=descend.CrossEntropy(probabilities, labels))
    plain = graph.to_torch(fields={"samples": (1, 8, 8), "labels": (10,)})
    assert plain(torch.zeros(5, 1, 8, 8)).shape == (5, 10)
    descend.onnx.save(graph, "net.onnx", fields={"samples": (1, 8, 8), "labels": (10,)})
    read = descend.onnx.load("net.onnx").to_torch(weights=None)
    assert read(torch.zeros(5, 1, 8, 8)).shape == (5, 10)


@task
def train_a_model_with_its_own_loss() -> None:
    """fit.md: a single phase."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": functional.cross_entropy(self.body(inputs), labels)}

    x, y = blobs()
    phase = descend.Phase("loss", lambda model, **batch: model(**batch)["loss"], weights=["*"])
    result = train(Model(), {"inputs": x, "labels": y}, loss=[phase])
    assert result.history[-1]["objective"] < 0.5


@task
def train_a_gan() -> None:
    """fit.md: Several optimizers, alternating updates."""

    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
            self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

        def draw(self, count: int) -> Tensor:
            return self.generator(torch.randn(count, 4))

    def judge(gan: Gan, real: Tensor) -> Tensor:
        scores = torch.cat([gan.discriminator(real), gan.discriminator(gan.draw(len(real)))])
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        return functional.binary_cross_entropy_with_logits(scores, truth)

    def deceive(gan: Gan, real: Tensor) -> Tensor:
        scores = gan.discriminator(gan.draw(len(real)))
        return functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))

    torch.manual_seed(0)
    gan = Gan()
    before = float((gan.draw(500).detach().mean(0) - 3).norm())
    phases = [
        descend.Phase("discriminator", judge, weights=["discriminator.*"], updates=2),
        descend.Phase("generator", deceive, weights=["generator.*"]),
    ]
    adam = functools.partial(torch.optim.Adam, lr=2e-3, betas=(0.5, 0.999))
    train(gan, torch.randn(600, 2) * 0.5 + 3, loss=phases, optimizer=adam, batch_size=20, stop=descend.Epochs(30))
    assert float((gan.draw(500).detach().mean(0) - 3).norm()) < before / 2


def main(names: list[str], tasks: list[Callable[[], None]]) -> int:
    """Run tasks, each in a folder of its own, and print what came of them; the number that failed."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home, failed = Path.cwd(), 0
    known = {function.__name__: function for function in tasks}
    for number, name in enumerate(names or known, 1):
        folder = home / f"{number:02}_{name}"
        folder.mkdir()
        os.chdir(folder)
        started, problem = time.monotonic(), ""
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                known[name]()
        except Exception:
            problem, failed = traceback.format_exc(), failed + 1
        for warning in said:
            print(f"     warning: {str(warning.message).splitlines()[0][:150]}")
        print(
            f"{number:2} {'FAILED' if problem else 'ok'} {name} ({time.monotonic() - started:.1f} s)\n{problem}", end=""
        )
        sys.stdout.flush()
    os.chdir(home)
    print(json.dumps({"tasks": len(names or known), "failed": failed}))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], TASKS) > 0)
