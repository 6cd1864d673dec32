"""Time of one training step: `descend.fit` beside the loop that one writes by hand and beside Lightning, in one run.

    python benchmarks/train_step.py                              # all models, some minutes
    python benchmarks/train_step.py --models mlp --rounds 31
    python benchmarks/train_step.py --models resnet18 --steps 40 # a round of at least 40 steps
    python benchmarks/train_step.py --environments build/peers   # with Lightning, in an environment of its own
    python benchmarks/train_step.py --beside ../before           # with `fit` of another checkout of this repository
    python benchmarks/train_step.py --what evaluation inference  # forward passes alone
    python benchmarks/train_step.py --what memory                # of a process that trains
    python benchmarks/train_step.py --device cuda                # modules on a GPU, samples in the host's memory

All train the same kind of network with torch's SGD with momentum on the same tensors in memory. The hand-written loop
shuffles the samples once an epoch, takes slices of that order, sums the loss and does nothing else. `fit` runs with its
defaults, which look at every gradient before an update, and once more with `on_nonfinite="allow"`. `DataLoader` is the
same loop over `torch.utils.data.DataLoader`, as most people write it.

Contenders make a round of steps each in turn, `--rounds` times, so a change of the machine's mood meets all of them
alike. A round is one whole call: what `fit` needs to begin and to end counts, such as a copy of the weights for its
result. More `--steps` show what a step takes where the end of a run is far away. The table holds the median time of a
step, the spread (quarter to three quarters), and the median of the ratios to the hand-written loop of the same round.

Evaluation is `descend.evaluate` beside a loop over slices of the samples that sums the loss, inference
`descend.predict` beside one that concatenates the outputs. Memory is the most that a process held that trains one
round, beside what it held when all was imported and the samples were there.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
ROOT = Path(__file__).resolve().parent.parent
FEWEST_ON_A_GPU = 100  # steps of a round
LIGHTNING = ["lightning>=2.6", "torch==2.13.0"]


@dataclass(frozen=True)
class Work:
    """What a contender trains in a round; it continues from where it left its module."""

    module: nn.Module
    data: TensorDataset
    batch_size: int
    epochs: int

    @property
    def steps(self) -> int:
        """Steps of one round."""
        return self.epochs * (len(self.data) // self.batch_size)

    @property
    def device(self) -> torch.device:
        """Where the module is. The samples are in the host's memory."""
        return next(self.module.parameters()).device


class Block(nn.Module):
    """Two convolutions and the way around them: He et al. 2016, figure 2."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.around = (
            nn.Identity()
            if stride == 1 and inside == outside
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inside, h, w) to (n, outside, h / stride, w / stride)."""
        return torch.relu(self.way(x) + self.around(x))


def mlp() -> Work:
    """Three layers, about a millisecond a step on one core."""
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)]
    return Work(nn.Sequential(*layers), images(6400, 784), batch_size=64, epochs=10)


def lenet() -> Work:
    """LeCun et al. 1998 on 28 × 28."""
    convolutions = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)]
    return Work(nn.Sequential(*convolutions, *head), images(3200, 1, 28, 28), batch_size=64, epochs=2)


def resnet18() -> Work:
    """ResNet-18 on 32 × 32 with 10 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inside = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, width, stride), Block(width, width, 1)]
        inside = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return Work(nn.Sequential(*layers, *head), images(64, 3, 32, 32), batch_size=16, epochs=1)


MODELS: dict[str, Callable[[], Work]] = {"mlp": mlp, "lenet": lenet, "resnet18": resnet18}


def images(count: int, *shape: int) -> TensorDataset:
    """Samples of noise with class numbers; a step takes as long on them as on any others."""
    return TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))


def slices(work: Work) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of one epoch, in a new order, cut from the tensors."""
    x, y = work.data.tensors
    order = torch.randperm(len(x))
    for start in range(0, len(x), work.batch_size):
        chosen = order[start : start + work.batch_size]
        yield x[chosen].to(work.device), y[chosen].to(work.device)


def loaded(work: Work) -> Iterable[tuple[Tensor, Tensor]]:
    """The same by a DataLoader."""
    for x, y in DataLoader(work.data, work.batch_size, shuffle=True, pin_memory=work.device.type == "cuda"):
        yield x.to(work.device, non_blocking=True), y.to(work.device, non_blocking=True)


def loop(work: Work, batches: Callable[[Work], Iterable[tuple[Tensor, Tensor]]]) -> None:
    """The loop that one writes by hand."""
    optimizer, loss_of = SGD(work.module.parameters()), nn.CrossEntropyLoss()
    work.module.train()
    for _ in range(work.epochs):
        total = torch.zeros((), device=work.device)
        for x, y in batches(work):
            optimizer.zero_grad()
            loss = loss_of(work.module(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total.item()


def fit(work: Work, **options: Any) -> None:
    """The same steps by `descend.fit`, without the line an epoch that it prints."""
    import descend

    quiet = {"verbose": False} if "verbose" in inspect.signature(descend.fit).parameters else {}  # of newer checkouts
    options = {"optimizer": SGD, **quiet, **options}
    stop = descend.Epochs(work.epochs)
    descend.fit(work.module, nn.CrossEntropyLoss(), work.data, batch_size=work.batch_size, stop=stop, **options)


def in_order(work: Work) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches in the order of the samples."""
    x, y = work.data.tensors
    for start in range(0, len(x), work.batch_size):
        end = start + work.batch_size
        yield x[start:end].to(work.device), y[start:end].to(work.device)


@torch.no_grad()
def evaluation_loop(work: Work) -> None:
    """The mean loss over all samples, as one writes it by hand."""
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    work.module.eval()
    for _ in range(work.epochs):
        total = torch.zeros((), device=work.device)
        for x, y in in_order(work):
            total += loss_of(work.module(x), y)
        total.item()


def evaluate(work: Work) -> None:
    """The same by `descend.evaluate`."""
    import descend

    for _ in range(work.epochs):
        descend.evaluate(work.module, nn.CrossEntropyLoss(), work.data, batch_size=work.batch_size)


@torch.no_grad()
def inference_loop(work: Work) -> None:
    """The outputs for all samples, as one writes it by hand."""
    work.module.eval()
    for _ in range(work.epochs):
        torch.cat([work.module(x) for x, _ in in_order(work)])


def predict(work: Work) -> None:
    """The same by `descend.predict`."""
    import descend

    for _ in range(work.epochs):
        descend.predict(work.module, work.data, batch_size=work.batch_size)


def lightning(work: Work) -> None:
    """The same by Lightning's Trainer with everything switched off that can be."""
    import lightning as other  # pyright: ignore[reportMissingImports]  # lives in an environment of its own

    class Module(other.LightningModule):  # pyright: ignore[reportUntypedBaseClass]  # not installed here
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss_of = work.module, nn.CrossEntropyLoss()

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            x, y = batch
            return self.loss_of(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return SGD(self.net.parameters())

    accelerator = "gpu" if work.device.type == "cuda" else "cpu"
    trainer = other.Trainer(max_epochs=work.epochs, accelerator=accelerator, barebones=True)
    trainer.fit(Module(), DataLoader(work.data, work.batch_size, shuffle=True))


CONTENDERS: dict[str, Callable[[Work], None]] = {
    "hand-written loop": functools.partial(loop, batches=slices),
    "descend.fit": fit,
    "descend.fit, allow": functools.partial(fit, on_nonfinite="allow"),
    "DataLoader loop": functools.partial(loop, batches=loaded),
}


SERVED: dict[str, Callable[[Work], None]] = {**CONTENDERS, "Lightning": lightning}
FORWARD: dict[str, dict[str, Callable[[Work], None]]] = {
    "evaluation": {"hand-written loop": evaluation_loop, "descend.evaluate": evaluate},
    "inference": {"hand-written loop": inference_loop, "descend.predict": predict},
}


def timed(contender: Callable[[Work], None], work: Work) -> float:
    """Seconds of one step in one round."""
    began = time.perf_counter()
    contender(work)
    if work.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / work.steps


class Served:
    """A contender in a process of its own: this script, started there, times its own rounds.

    Args:
        python: The interpreter of its environment.
        model: What it trains.
        contender: A name of `SERVED`.
        device: Where its module is.
        steps: Fewest of a round.
        path: The checkout whose package it imports; None for the one that is installed.
    """

    def __init__(
        self, python: Path, model: str, contender: str, device: str, steps: int, path: Path | None = None
    ) -> None:
        command = [str(python), __file__, "--serve", model, contender, "--device", device, f"--steps={steps}"]
        environment = os.environ if path is None else {**os.environ, "PYTHONPATH": str(path.resolve())}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def __call__(self) -> float:
        """Seconds of one step in one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def environment(folder: Path) -> Path | None:
    """The interpreter of an environment with Lightning, made if it is not there; None, with a message, without one."""
    python = folder / "lightning" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "lightning", with_pip=True)
        command = [python, "-m", "pip", "install", "-q", *LIGHTNING]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            print(f"Lightning is left out: {made.stderr.strip().splitlines()[-1:]}")
            shutil.rmtree(folder / "lightning")  # so that the next run tries again
            return None
    return python


def made(model: str, device: str, steps: int = 0) -> Work:
    """Samples and a module with the same first weights each time; a round takes at least so many steps."""
    torch.manual_seed(0)
    work = MODELS[model]()
    work.module.to(device)
    if device == "cuda":  # a GPU takes so few steps in so short a time that beginning and ending would be all
        steps = max(steps, FEWEST_ON_A_GPU)
    in_one = work.steps // work.epochs
    return replace(work, epochs=max(work.epochs, -(-steps // in_one)))


def serve(model: str, contender: str, device: str, steps: int) -> None:
    """Answer each line with the time of one round of a contender."""
    work = made(model, device, steps)
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the contender prints is no answer
    for _ in sys.stdin:
        print(timed(SERVED[contender], work), file=answers, flush=True)


def resident(peak: bool = False) -> int:
    """Bytes of memory that this process holds, or the most that it has held."""
    if peak:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def serve_memory(model: str, contender: str, device: str, steps: int) -> None:
    """Print what this process holds before a round of a contender, and the most that it held in it."""
    if contender != "hand-written loop":
        import descend

        descend.fit  # noqa: B018  # which imports what it needs
    work = made(model, device, steps)
    before, answers, sys.stdout = resident(), sys.stdout, sys.stderr
    SERVED[contender](work)
    print(before, resident(peak=True), file=answers, flush=True)


def report_memory(model: str, rounds: int) -> None:
    """One table of memory."""
    print(f"\n{model}, memory of a process that trains")
    taken: dict[str, list[tuple[int, int]]] = {"hand-written loop": [], "descend.fit": []}
    for _ in range(rounds):
        for name, some in taken.items():
            command = [sys.executable, __file__, "--serve", model, name, "--what", "memory"]
            before, most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            some.append((int(before), int(most)))
    base = statistics.median(most for _, most in taken["hand-written loop"])
    for name, some in taken.items():
        before, most = (statistics.median(each) for each in zip(*some, strict=True))
        print(f"  {name:<27}{most / 1e6:9.1f} MB at most  {before / 1e6:9.1f} MB before  {most / base:7.3f} x")


def measure(
    model: str,
    given: argparse.Namespace,
    contenders: dict[str, Callable[[Work], None]],
    served: dict[str, Served],
    steps: int = 0,
) -> dict[str, list[float]]:
    """Seconds of a step of each contender, round by round after one round of warming up."""
    takes: dict[str, Callable[[], float]] = {}
    for name, contender in contenders.items():
        takes[name] = functools.partial(timed, contender, made(model, given.device, steps))
    takes.update(served)
    for take in takes.values():
        take()
    times: dict[str, list[float]] = {name: [] for name in takes}
    for _ in range(given.rounds):
        for name, take in takes.items():
            times[name].append(take())
    return times


def report(title: str, times: dict[str, list[float]]) -> None:
    """One table."""
    print(f"\n{title}")
    base = times["hand-written loop"]
    for name, taken in times.items():
        low, middle, high = (1e3 * t for t in statistics.quantiles(taken, n=4))
        less, ratio, more = statistics.quantiles([one / other for one, other in zip(taken, base, strict=True)], n=4)
        spread = f"({low:.3f} to {high:.3f})"
        print(f"  {name:<27}{middle:9.3f} ms  {spread:<20}{ratio:7.3f} x  ({less:.3f} to {more:.3f})")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=0, help="fewest of a round of training; a few epochs by default")
    parser.add_argument("--what", nargs="*", choices=["training", *FORWARD, "memory"], default=["training"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where modules are")
    parser.add_argument("--environments", type=Path, default=None, help="folder for Lightning's environment")
    parser.add_argument("--beside", type=Path, default=None, help="another checkout, whose fit is timed too")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds must be 2 or more, for a spread of times, got {given.rounds}")
    if given.serve:
        (serve_memory if "memory" in given.what else serve)(*given.serve, given.device, given.steps)
        return
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): trust ratios only")
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    python = environment(given.environments) if given.environments else None
    for model in given.models:
        for what in given.what:
            if what in FORWARD:
                report(f"{model}, {what}", measure(model, given, FORWARD[what], {}))
            elif what == "memory":
                report_memory(model, given.rounds)
        if "training" not in given.what:
            continue
        served = {} if python is None else {"Lightning": Served(python, model, "Lightning", given.device, given.steps)}
        if given.beside is not None:
            for name in ("descend.fit", "descend.fit, allow"):  # both in processes, which is fair to both
                for which, path in {"here": ROOT, "beside": given.beside}.items():
                    served[f"{name} ({which})"] = Served(
                        Path(sys.executable), model, name, given.device, given.steps, path
                    )
        report(model, measure(model, given, CONTENDERS, served, given.steps))
        for one in served.values():
            one.close()


if __name__ == "__main__":
    main()
