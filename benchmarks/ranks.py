"""Training on several ranks beside one rank with as many threads, and what goes over the wire.

    python benchmarks/ranks.py                 # 2 ranks x 1 thread against 1 rank x 2 threads
    python benchmarks/ranks.py --rounds 9 --width 1024 --batch-size 512

Both train the same network on the same global mini-batches in turn. A round is one call of `fit`; the time is that of
its steps alone, after the first. Bytes are what a rank hands to the sums of gradients in each step.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = "--worker"


def measure(settings: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step, and bytes handed to sums of gradients in a step."""
    import torch
    from torch import nn

    import descend

    kind = getattr(torch, settings.dtype)
    torch.manual_seed(0)
    width = settings.width
    module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    x = torch.randn(settings.batch_size * settings.steps, width, dtype=kind)
    y = torch.randint(0, 10, (len(x),))

    class Watch(descend.Callback):
        """Keeps the time of each step and what had been sent by then."""

        seconds: tuple[float, ...] = ()
        sent = 0

        def after_epoch(self, epoch: object) -> None:
            """See `Callback.after_epoch`."""
            self.seconds = epoch.step_seconds
            together = epoch.run.control._session.together
            self.sent = together.reduction.sent_bytes if together else 0

    watch = Watch()
    descend.fit(
        module.to(kind),
        nn.CrossEntropyLoss(),
        (x, y),
        optimizer=functools.partial(torch.optim.SGD, lr=0.01),
        batch_size=settings.batch_size,
        stop=descend.Epochs(1),
        callbacks=[watch],
        shuffle=False,
    )
    return {"seconds": statistics.median(watch.seconds[1:]), "bytes": watch.sent / settings.steps}


def started(ranks: int, threads: int, dtype: str, arguments: list[str]) -> dict[str, float]:
    """What the first of so many ranks measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    common = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, WORKER, "--dtype", dtype],
            env={**os.environ, "PYTHONPATH": path, "RANK": str(rank), **{k: str(v) for k, v in common.items()}},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    return json.loads(outputs[0].splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.worker:
        print(json.dumps(measure(settings)))
        return
    arguments = [f"--width={settings.width}", f"--batch-size={settings.batch_size}", f"--steps={settings.steps}"]
    rounds = [
        (started(1, 2, "float32", arguments), started(2, 1, "float32", arguments)) for _ in range(settings.rounds)
    ]
    ratios = [one["seconds"] / two["seconds"] for one, two in rounds]
    one, two = (statistics.median(round_[i]["seconds"] for round_ in rounds) * 1e3 for i in (0, 1))
    print(f"1 rank x 2 threads   {one:8.2f} ms a step")
    print(f"2 ranks x 1 thread   {two:8.2f} ms a step")
    print(f"speed of 2 ranks     {statistics.median(ratios):8.2f} x (median of {len(ratios)} rounds)")
    half = started(2, 1, "bfloat16", arguments)
    print(f"bytes a step         {rounds[0][1]['bytes']:12,.0f} float32, {half['bytes']:12,.0f} bfloat16")


if __name__ == "__main__":
    main()
