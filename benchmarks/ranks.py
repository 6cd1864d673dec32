"""Training on several ranks beside one rank with as many threads, what goes over the wire, and what was predicted.

    python benchmarks/ranks.py                 # 2 ranks x 1 thread against 1 rank x 2 threads, overlap, bytes, memory
    python benchmarks/ranks.py --rounds 9 --width 1024 --batch-size 512
    python benchmarks/ranks.py --predict      # steps on 1, 2, 4, 8 ranks, as `descend plan` predicts and as measured
    python benchmarks/ranks.py --timeline     # when each sum of a step begins and ends beside the backward pass
    python benchmarks/ranks.py --table        # ResNet-50 and a GPT of 1.3 B parameters on up to 4,096 ranks

Both of the first train the same network on the same global mini-batches in turn. A round is one call of `fit`; the time
is that of its steps alone, after the first. Bytes are what a rank hands to the others in each step. CPU time is that of
all threads of all ranks, from the first step to the last one: other programs make a step longer and hardly that.

Two limits are printed beside it. Two processes that know nothing of each other, with half of each mini-batch, take what
two ranks would without any network: the update of all weights is made twice, on one thread each, and the cores share
their memory. The sums alone are what these take on this machine with nothing else to do.

Ranks on one host's CPUs sum gradients in memory that all of them see. As ranks of several hosts do it, through gloo, is
printed beside that, with sums that begin within the backward pass and with sums that begin after it.

How much of a step the sums take depends on the work for each byte of gradients, so the same is printed for more samples
in a mini-batch and for a network of convolutions, whose weights are used at every place of an image.

What is predicted is compared on networks and ranks that are made: work on samples is sleep, so that a machine of two
cores can have eight ranks, and a sum of gradients is over when messages around a ring would be. There are two networks,
of another latency and another bandwidth.

The table takes the time of a sample from its floating-point operations and what a device makes of them in a second,
which is a setting as the network is; nothing of it is measured.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).parent.parent))

WORKER = "--worker"
MORE_WORK = (  # operations for each weight grow with samples, and with places of an image
    ("2048 samples", ["--batch-size=2048", "--steps=10"]),
    ("convolutions, 64 images", ["--network=convolutions", "--batch-size=64", "--steps=8"]),
)
NETWORKS = ((2e-3, 100e6), (15e-3, 1e9))  # that are made: seconds of latency, bytes per second
BARRIERS = 300  # all-reduces of a hundred numbers
SAMPLE_SECONDS = 2e-3  # of work that is made


def made(settings: argparse.Namespace) -> list[Any]:
    """The layers of the network."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width = settings.width
    if settings.network == "mlp":
        return [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    channels = [3, 64, 64, 128, 128]
    layers: list[Any] = []
    for i, (before, after) in enumerate(itertools.pairwise(channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), *[nn.MaxPool2d(2)] * (i % 2)]
    return [*layers, nn.Flatten(), nn.Linear(128 * 8 * 8, 10)]


def sums_alone(settings: argparse.Namespace) -> dict[str, float]:
    """Median seconds of the sums of gradients of a step, without any other work; and of a barrier among them."""
    import torch

    from descend.runtime import process_group
    from descend.train.strategies.buckets import GradientReducer

    if settings.mode != "sums":
        through_gloo()
    weights = dict(torch.nn.Sequential(*made(settings)).named_parameters())
    for p in weights.values():
        p.grad = torch.ones_like(p)
    times: list[float] = []
    barriers: list[float] = []
    with process_group(torch.device("cpu")) as process:
        reduction = GradientReducer(weights, process)
        for _ in range(settings.steps):
            process.synchronize("the beginning of a step")
            began = time.perf_counter()
            reduction.begin()
            reduction.send()
            process.synchronize("the sum")
            reduction.wait()
            times.append(time.perf_counter() - began)
        for _ in range(BARRIERS):
            began = time.perf_counter()
            process.all_reduce(torch.zeros(100, dtype=torch.float64))
            barriers.append(time.perf_counter() - began)
    sent, barrier = reduction.sent_bytes / settings.steps, statistics.median(barriers)
    return {"seconds": statistics.median(times[1:]), "barrier": barrier, "cpu": 0.0, "bytes": sent, "state": 0.0}


def measure(settings: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step: their median, and of CPUs; bytes handed over in a step, and of the optimizer's state."""
    import torch
    from torch import nn

    import descend
    from descend.train.strategies.buckets import GradientReducer
    from descend.train.strategies.data_parallel import DataParallel

    kind = torch.bfloat16 if settings.mode == "bfloat16" else torch.float32
    layers = made(settings)
    if settings.mode == "shaped":
        shape_network(*NETWORKS[settings.made_network])
        layers = [slow(part) if isinstance(part, nn.Linear) else part for part in layers]
    if settings.mode in ("gloo", "no overlap", "shaped", "timeline"):
        through_gloo()
    spans = record_spans() if settings.mode == "timeline" else []
    if settings.mode == "no overlap":
        GradientReducer.watch = lambda self: None  # everything is sent after the backward pass
    shape = (settings.width,) if settings.network == "mlp" else (3, 32, 32)
    x = torch.randn(settings.batch_size * settings.steps, *shape, dtype=kind)
    y = torch.randint(0, 10, (len(x),))

    class Watch(descend.Callback):
        """Keeps the time of each step and what had been sent by then."""

        seconds: tuple[float, ...] = ()
        cpu: tuple[float, ...] = ()
        sent = 0
        held = 0

        def after_step(self, step: Any) -> None:
            """See `Callback.after_step`."""
            self.cpu += (time.process_time(),)

        def after_epoch(self, epoch: Any) -> None:
            """See `Callback.after_epoch`."""
            self.seconds = epoch.step_seconds
            strategy, optimizer = epoch.run.control._run.strategy, epoch.run.optimizer
            of_gradients = strategy.reducer.sent_bytes if isinstance(strategy, DataParallel) else 0
            self.sent = of_gradients + getattr(strategy, "sent_bytes", 0) + getattr(optimizer, "sent_bytes", 0)
            entries = (value for state in epoch.run.optimizer.state.values() for value in state.values())
            self.held = sum(entry.numel() * entry.element_size() for entry in entries if torch.is_tensor(entry))

    watch = Watch()
    more: dict[str, Any] = {"optimizer": functools.partial(torch.optim.SGD, lr=0.01)}
    if settings.mode == "sign":
        more = {"optimizer": functools.partial(descend.optim.SignSGD, lr=1e-4), "gradient_compression": "sign"}
    if settings.mode in ("whole state", "shared out"):
        shared = settings.mode == "shared out"
        more = {"optimizer": functools.partial(torch.optim.Adam, lr=1e-4), "shard_optimizer": shared}
    descend.fit(
        nn.Sequential(*layers).to(kind),
        nn.CrossEntropyLoss(),
        (x, y),
        batch_size=settings.batch_size,
        stop=descend.Epochs(1),
        callbacks=[watch],
        shuffle=False,
        verbose=False,
        **more,
    )
    return {
        "seconds": statistics.median(watch.seconds[1:]),
        "cpu": (watch.cpu[-1] - watch.cpu[0]) / (len(watch.cpu) - 1),
        "bytes": watch.sent / settings.steps,
        "state": watch.held,
        "spans": spans,
    }


def record_spans() -> list[dict[str, Any]]:
    """A list that gets the passes and sums of each step: what, when it began, when it ended."""
    from descend.train.strategies import data_parallel
    from descend.train.strategies.buckets import GradientReducer

    spans: list[dict[str, Any]] = []
    begin_sum, start_backward, begin = GradientReducer.begin_sum, data_parallel.start_backward, GradientReducer.begin

    def step(self: Any, *given: Any) -> None:
        spans.append({"what": "step", "began": time.monotonic()})
        begin(self, *given)

    def summing(self: Any, bucket: Any) -> Any:
        span = {"what": f"sum of {bucket.buffer.nbytes / 1e6:.1f} MB", "began": time.monotonic()}
        spans.append(span)
        work = begin_sum(self, bucket)
        work.get_future().add_done_callback(lambda _: span.update(ended=time.monotonic()))
        return work

    def backward(*given: Any) -> None:
        span = {"what": "backward pass", "began": time.monotonic()}
        spans.append(span)
        start_backward(*given)
        span["ended"] = time.monotonic()

    GradientReducer.begin, GradientReducer.begin_sum, data_parallel.start_backward = step, summing, backward
    return spans


def through_gloo() -> None:
    """Let the ranks share no memory."""
    from descend.train.strategies import buckets as reduction

    reduction.shared_memory = lambda process, size, say: []


def slow(layer: Any) -> Any:
    """A layer that sleeps for its share of the work, twice as long in the backward pass as in the forward pass."""
    import torch
    from torch import nn

    each = SAMPLE_SECONDS / 3  # there are three such layers

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(each * len(x) / 3)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            time.sleep(each * len(gradients[0]) * 2 / 3)
            return gradients[0]

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return Sleep.apply(self.layer(x))

    return Slow()


def shape_network(latency_seconds: float, bytes_per_second: float) -> None:
    """Let sums over ranks take as long as messages around a ring, one sum after the other."""
    from torch import distributed

    from descend.launch import Network

    network, plain = Network(latency_seconds, bytes_per_second), distributed.all_reduce
    free = 0.0  # when the network has nothing to do

    class Later:
        def __init__(self, work: Any, at: float) -> None:
            self.work, self.at = work, at

        def wait(self) -> None:
            if self.work is not None:
                self.work.wait()
            time.sleep(max(self.at - time.monotonic(), 0.0))

    def shaped(tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        nonlocal free
        ranks, size = distributed.get_world_size(), tensor.numel() * tensor.element_size()
        size = size if size > 10_000 else 0  # meetings are messages without length
        free = max(free, time.monotonic()) + network.sum_seconds(ranks, 1, size)
        later = Later(plain(tensor, group=group, async_op=async_op), free)
        return later if async_op else later.wait()

    distributed.all_reduce = shaped


def started(ranks: int, threads: int, mode: str, arguments: list[str]) -> dict[str, float]:
    """What the first of so many ranks measured; CPU time is that of all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    world = 1 if mode == "apart" else ranks  # processes that know nothing of each other
    common = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, WORKER, "--mode", mode],
            env={**os.environ, "PYTHONPATH": path, "RANK": str(rank % world), **{k: str(v) for k, v in common.items()}},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return {**outputs[0], "cpu": sum(output["cpu"] for output in outputs)}


def halved(arguments: list[str]) -> list[str]:
    """The arguments of a process that has half of each mini-batch."""
    word = "--batch-size="
    return [f"{word}{int(a.removeprefix(word)) // 2}" if a.startswith(word) else a for a in arguments]


def in_turn(ways: Sequence[tuple[int, int, str]], arguments: list[str], rounds: int) -> list[list[dict[str, float]]]:
    """What each way measured in each round."""
    turns = [
        [started(*way, halved(arguments) if way[2] == "apart" else arguments) for way in ways] for _ in range(rounds)
    ]
    return [list(way) for way in zip(*turns, strict=True)]


def middle(found: Sequence[dict[str, float]], key: str = "seconds") -> float:
    """The median of the rounds in ms."""
    return statistics.median(entry[key] for entry in found) * 1e3


def ratio(one: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> float:
    """How many times as fast as the first one the other one is: the median of the rounds."""
    return statistics.median(a["seconds"] / b["seconds"] for a, b in zip(one, other, strict=True))


def bound(one: Sequence[dict[str, float]], apart: Sequence[dict[str, float]]) -> str:
    """The limit that a network of no cost would leave."""
    return f"without a network {ratio(one, apart):.2f} x"


def compare(settings: argparse.Namespace, arguments: list[str]) -> None:
    """Speed, overlap, bytes and memory of two ranks."""
    names = ("float32", "gloo", "no overlap", "apart", "sums", "sums through gloo")
    ways = ((1, 2, "float32"), *((2, 1, name) for name in names))
    one, two, through, late, apart, sums, sums_through = in_turn(ways, arguments, settings.rounds)
    print(f"1 rank x 2 threads   {middle(one):8.2f} ms a step, {middle(one, 'cpu'):.2f} of CPUs")
    print(f"2 ranks x 1 thread   {middle(two):8.2f} ms a step, {middle(two, 'cpu'):.2f} of CPUs")
    print(f"through gloo         {middle(through):8.2f} ms a step, {middle(through, 'cpu'):.2f} of CPUs")
    print(f"  sums afterwards    {middle(late):8.2f} ms a step, {middle(late, 'cpu'):.2f} of CPUs")
    print(f"no network at all    {middle(apart):8.2f} ms a step, {middle(apart, 'cpu'):.2f} of CPUs")
    print(f"the sums alone       {middle(sums):8.2f} ms a step; through gloo {middle(sums_through):.2f}")
    by = [1e3 * middle(each, "barrier") for each in (sums, sums_through)]
    print(f"a barrier            {by[0]:8.0f} us; through gloo {by[1]:.0f}")
    print(f"speed of 2 ranks     {ratio(one, two):8.2f} x (median of {settings.rounds} rounds); {bound(one, apart)}")
    print(f"  through gloo       {ratio(one, through):8.2f} x")
    ways, rounds = ((1, 2, "float32"), (2, 1, "float32"), (2, 1, "apart")), min(settings.rounds, 3)
    for name, more in MORE_WORK:
        one, two, apart = in_turn(ways, [*arguments, *more], rounds)
        print(f"{name}: {middle(one):.1f} ms on 1 rank, {middle(two):.1f} on 2, {middle(apart):.1f} without a network")
        print(f"speed of 2 ranks     {ratio(one, two):8.2f} x; {bound(one, apart)}")
    sent = {mode: started(2, 1, mode, arguments)["bytes"] for mode in ("float32", "bfloat16", "sign")}
    for mode, count in sent.items():
        print(f"bytes a step         {count:12,.0f} {mode}: 1/{sent['float32'] / count:.1f}")
    for ranks in (1, 2, 4):
        whole, shared = (started(ranks, 1, mode, arguments) for mode in ("whole state", "shared out"))
        state, sent = ((whole[key], shared[key]) for key in ("state", "bytes"))
        print(f"Adam's state         {state[0]:12,.0f} bytes on each of {ranks} ranks; shared out {state[1]:,.0f}")
        print(f"bytes a step         {sent[0]:12,.0f} from each of {ranks} ranks; shared out {sent[1]:,.0f}")
        print(
            f"a step               {whole['seconds'] * 1e3:12.1f} ms on {ranks} ranks; shared out "
            f"{shared['seconds'] * 1e3:.1f}"
        )


def predict(settings: argparse.Namespace) -> None:
    """Steps on several ranks, predicted from one rank and measured, on each network."""
    from descend.launch import Network, Profile, forecast
    from descend.launch.cost_model import fit_network

    arguments = [f"--width={settings.width}", "--steps=6"]
    sizes = [settings.batch_size >> i for i in range(4)]
    seconds = [started(1, 1, "shaped", [*arguments, f"--batch-size={size}"])["seconds"] for size in sizes]
    fixed, each = fit_network(sizes, seconds)
    weights = 4 * (2 * settings.width * (settings.width + 1) + 10 * (settings.width + 1))
    pieces = 2 if settings.width * settings.width * 4 >= 4 << 20 else 1  # the last layer goes with the one before it
    profile = Profile(fixed, each, weights, weights, pieces, 0)
    print(f"one rank: {fixed * 1e3:.2f} ms a step and {each * 1e3:.3f} ms a sample")
    for number, (latency_seconds, bytes_per_second) in enumerate(NETWORKS):
        print(f"network: {latency_seconds * 1e3:g} ms a message, {bytes_per_second / 1e6:g} MB/s")
        arguments = [*arguments[:2], f"--batch-size={settings.batch_size}", f"--made-network={number}"]
        for ranks in (1, 2, 4, 8):
            found = started(ranks, 1, "shaped", arguments)["seconds"]
            network = Network(latency_seconds, bytes_per_second)
            expected = forecast(profile, network, settings.batch_size, ranks).step_seconds
            print(
                f"{ranks} ranks: {expected * 1e3:8.1f} ms predicted, {found * 1e3:8.1f} measured: "
                f"{expected / found:.2f} x"
            )


COLUMNS = 72  # of a timeline


def timeline(arguments: list[str]) -> None:
    """Passes and sums of the fastest step of two ranks through gloo, a line each."""
    spans = started(2, 1, "timeline", arguments)["spans"]
    steps: list[list[dict[str, Any]]] = []
    for span in spans:
        if span["what"] == "step":
            steps.append([])
        else:
            steps[-1].append(span)
    complete = [step for step in steps[1:] if step and all("ended" in span for span in step)]
    step = min(complete, key=lambda step: max(s["ended"] for s in step) - step[0]["began"])
    began, ended = step[0]["began"], max(span["ended"] for span in step)
    scale = COLUMNS / (ended - began)
    for span in step:
        first, last = (round((span[key] - began) * scale) for key in ("began", "ended"))
        bar = " " * first + "#" * max(last - first, 1)
        times = f"{(span['began'] - began) * 1e3:6.1f} to {(span['ended'] - began) * 1e3:6.1f} ms"
        print(f"{span['what']:<16}{times} |{bar:<{COLUMNS}}|")
    backward, sums = step[0], step[1:]
    in_all = sum(span["ended"] - span["began"] for span in sums)
    within = sum(max(min(span["ended"], backward["ended"]) - span["began"], 0.0) for span in sums)
    print(f"{within / in_all:.0%} of the time of sums lies within the backward pass")


def resnet50() -> list[int]:
    """Elements of the 161 weights of ResNet-50."""
    from optimizer_step import resnet50 as shapes

    return [math.prod(shape) for shape in shapes()]


def gpt() -> list[int]:
    """Elements of the weights of a GPT of 24 layers of width 2,048 for 2,048 tokens of 50,257: 1.3 B."""
    width = 2048
    layer = [3 * width * width, 3 * width, width * width, width, 4 * width * width, 4 * width, 4 * width * width]
    return [50257 * width, 2048 * width, *[*layer, *[width] * 5] * 24, width, width]


def table(settings: argparse.Namespace) -> None:
    """What the model says of two networks that no machine here could train."""
    from descend.experiment.inspect.scaling_forecast import forecast_table
    from descend.launch import Network, Profile
    from descend.train.strategies.buckets import BUCKET_BYTES

    network = Network(settings.latency_us * 1e-6, settings.bandwidth_gbs * 1e9, trees=True)
    counts = [1, 8, 64, 512, 4096]
    print(f"{settings.tflops:g} TFLOP/s a device, float32 gradients, Adam")
    for name, sizes, flops, batch in (
        ("ResNet-50, 224 x 224", resnet50(), 3 * 2 * 4.09e9, 32768),
        ("GPT of 1.3 B parameters, sequences of 2,048 tokens", gpt(), 6 * sum(gpt()) * 2048, 4096),
    ):
        size = 4 * sum(sizes)
        profile = Profile(
            0.0, flops / (settings.tflops * 1e12), size, size, -(-size // BUCKET_BYTES), 2 * size, 8 * max(sizes)
        )
        head, *rest = forecast_table(profile, network, batch, counts).splitlines()
        print(f"\n{name}: {sum(sizes) / 1e6:,.1f} M elements, {flops / 1e9:,.0f} GFLOP a sample")
        print("\n".join([head.replace(", measured", ", from its operations"), *rest]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--network", choices=["mlp", "convolutions"], default="mlp", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", default="float32", help=argparse.SUPPRESS)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--tflops", type=float, default=100.0, help="of the table: what a device makes of its peak")
    parser.add_argument("--latency-us", type=float, default=5.0, help="of the table")
    parser.add_argument("--bandwidth-gbs", type=float, default=25.0, help="of the table: of a device's link")
    parser.add_argument("--made-network", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.worker:
        print(json.dumps(sums_alone(settings) if settings.mode.startswith("sums") else measure(settings)))
        return
    common = [f"--width={settings.width}", f"--batch-size={settings.batch_size}", f"--steps={settings.steps}"]
    if settings.predict:
        predict(settings)
    elif settings.timeline:
        timeline(common)
    elif settings.table:
        table(settings)
    else:
        compare(settings, common)


if __name__ == "__main__":
    main()
