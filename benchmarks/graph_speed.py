"""A lowered graph beside a hand-written torch module of the same network: forward and backward, one after the other.

    python benchmarks/graph_speed.py [--rounds 40] [--threads 1]

Both take one pass each in turn, so a change of the machine's mood meets them alike; the ratio is the median of the
ratios of neighbours, with the quarter to three quarters of them. Times are the processor's own, of the thread that
computes, where there is one. Held to: a ratio of at most 1.02.

`plain` is torch's usual way: cross entropy of logits, and batch normalization that divides by n. `alike` computes what
the graph computes: the logarithm of a softmax that is kept from 0. `channels last` is the graph with that option beside
the graph without, and `compiled` likewise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

import descend
from descend import zoo
from descend.graph import check
from descend.lower import LoweredModel, lower
from descend.runtime import generator

if TYPE_CHECKING:
    from collections.abc import Callable

FLOOR = torch.finfo(torch.float32).tiny ** 0.5


class Block(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + x), with a convolution in the shortcut where shapes differ."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        same = stride == 1 and before == width
        short = [nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
        self.short = nn.Identity() if same else nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        """(n, before, h, w) to (n, width, h / stride, w / stride)."""
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.short(x))


def resnet18() -> nn.Module:
    """ResNet-18 for images of about 32 x 32, 10 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for stage in range(4):
        for block in range(2):
            layers.append(Block(before, 64 * 2**stage, 2 if stage and block == 0 else 1))
            before = 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def lenet() -> nn.Module:
    """LeNet for images of 28 x 28, 10 classes."""
    features = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, nn.Flatten(), *dense)


def graph(network: Callable[[descend.Layer], descend.Layer], shape: tuple[int, ...], **options: bool) -> LoweredModel:
    """The lowered graph of a network with cross entropy."""
    images, labels = descend.Input(data_field="images"), descend.Input(data_field="labels")
    loss = descend.CrossEntropy(descend.Softmax(network(images)), labels, name="loss")
    plan = check(descend.Model(objective_function=loss), {"images": shape, "labels": (10,)})
    return lower(plan, lambda name: generator(1, name), **options)


def contenders(
    name: str, shape: tuple[int, ...], batch: int, compiled: bool
) -> tuple[dict[str, Callable[[], None]], list[tuple[str, str]]]:
    """What is timed, and which ratios are of interest."""
    network = (lambda x: zoo.LeNet(10)(x)) if name == "lenet" else lambda x: zoo.ResNet18(10, small_images=True)(x)
    twins = [lenet() if name == "lenet" else resnet18() for _ in range(2)]
    images, labels = torch.randn(batch, *shape), torch.eye(10)[torch.randint(10, (batch,))]

    def of_graph(**options: bool) -> Callable[[], None]:
        module = graph(network, shape, **options)

        def run() -> None:
            module.zero_grad()
            module({"images": images, "labels": labels})["loss"].mean().backward()

        return run

    def plain() -> None:
        twins[0].zero_grad()
        nn.functional.cross_entropy(twins[0](images), labels).backward()

    def alike() -> None:
        twins[1].zero_grad()
        p = twins[1](images).softmax(1).clamp_min(FLOOR)
        (-(labels * p.log()).sum(1)).mean().backward()

    found = {"graph": of_graph(), "plain": plain, "alike": alike, "channels last": of_graph(channels_last=True)}
    ratios = [("graph", "plain"), ("graph", "alike"), ("channels last", "graph")]
    if compiled:
        module = graph(network, shape)
        module.compile()

        def run_compiled() -> None:
            module.zero_grad()
            module({"images": images, "labels": labels})["loss"].mean().backward()

        found["compiled"] = run_compiled
        ratios.append(("compiled", "graph"))
    return found, ratios


def measure(found: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each pass of each contender, in turn."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in found}
    for run in found.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        for name, run in found.items():
            began = clock()
            run()
            times[name].append(clock() - began)
    return times


def main() -> None:
    """Print a table for each network and batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="also through torch.compile, which takes a minute")
    parser.add_argument("--networks", nargs="*", default=["lenet", "resnet18"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    machine = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"torch {torch.__version__}, {given.threads} threads, {machine}")
    for name in given.networks:
        shape, batches = ((1, 28, 28), (8, 64)) if name == "lenet" else ((3, 32, 32), (8,))
        for batch in batches:
            found, ratios = contenders(name, shape, batch, given.compiled)
            rounds = given.rounds * (5 if name == "lenet" else 1)
            times = measure(found, rounds)
            print(f"\n{name}, batch {batch}, {rounds} rounds")
            for one, seconds in times.items():
                low, middle, high = statistics.quantiles(seconds, n=4)
                print(f"  {one:<14} {1e3 * middle:9.3f} ms   ({1e3 * low:.3f} to {1e3 * high:.3f})")
            for ours, theirs in ratios:
                each = [a / b for a, b in zip(times[ours], times[theirs], strict=True)]
                low, middle, high = statistics.quantiles(each, n=4)
                print(f"  {ours} / {theirs:<10} {middle:6.3f}   ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
