"""Time of a step of Muon over stacks of equal matrices, tall, wide and square, beside plain forms of it.

    python benchmarks/matrix_stacks.py                       # twelve stacks in float32 and bfloat16, some three minutes
    python benchmarks/matrix_stacks.py --stacks 48x128x64    # one of one's own: matrices x rows x columns

The contenders are our text applied to one matrix after the other (`plain`), torch.optim.Muon, and the least that one
would write by hand: matrices stacked by `torch.stack` and multiplied by `torch.baddbmm`. The last one has no checks, no
masters of weights in low precision, no groups and no saving. torch's iterates in bfloat16 alone, so it has no row in
float32. Times are medians of turns with the spread from a quarter to three quarters; the ratio is ours to the best of
the others.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from optimizer_step import check_idle, measure, weights
from torch import Tensor

import descend.optim

STACKS = [  # matrices, rows, columns
    *((48, 128, 64), (48, 64, 128), (48, 96, 96)),
    *((64, 16, 4), (64, 4, 16), (64, 12, 12)),
    *((12, 512, 128), (12, 128, 512), (12, 256, 256)),
    *((2, 1536, 384), (2, 384, 1536), (2, 768, 768)),
]
MOMENTUM, LR = 0.95, 1e-3


class StackedMuon:
    """Muon over matrices of one shape, by hand."""

    def __init__(self, params: list[Tensor], bfloat16: bool) -> None:
        self.params, self.dtype = params, torch.bfloat16 if bfloat16 else torch.float32
        self.momentum = torch.zeros(len(params), *params[0].shape)

    @torch.no_grad()
    def step(self) -> None:
        """One update."""
        g = torch.stack([p.grad for p in self.params if p.grad is not None])
        self.momentum.lerp_(g, 1 - MOMENTUM)
        x = g.lerp(self.momentum, MOMENTUM).to(self.dtype)
        tall = x.shape[1] > x.shape[2]
        x = x.mT.contiguous() if tall else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        a, b, c = 3.4445, -4.7750, 2.0315
        for _ in range(5):
            A = x @ x.mT
            B = torch.baddbmm(A, A, A, beta=b, alpha=c)
            x = torch.baddbmm(x, B, x, beta=a)
        x = x.mT if tall else x
        scale = max(1.0, x.shape[1] / x.shape[2]) ** 0.5
        torch._foreach_add_(self.params, list(x.to(g.dtype).unbind(0)), alpha=-LR * scale)


def contenders(stack: tuple[int, int, int], bfloat16: bool) -> dict[str, Any]:
    """Each way to take a step, by name."""
    count, *shape = stack

    def fresh() -> list[Tensor]:
        return weights([(shape[0], shape[1])] * count, "cpu")

    options: dict[str, Any] = {"lr": LR, "weight_decay": 0.0, "bfloat16": bfloat16}
    made = {
        "descend": descend.optim.Muon(fresh(), **options).step,
        "plain": descend.optim.Muon(fresh(), runner="plain", **options).step,
        "stack by hand": StackedMuon(fresh(), bfloat16).step,
    }
    if bfloat16:
        made["torch"] = torch.optim.Muon(fresh(), lr=LR, weight_decay=0.0).step
    return made


def main() -> None:
    """Print one row per stack and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", nargs="*", default=["x".join(map(str, stack)) for stack in STACKS])
    parser.add_argument("--rounds", type=int, default=11, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=1.0, help="limit of a contender after five turns")
    given = parser.parse_args()
    check_idle()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; milliseconds per step")
    print(f"{'stack':>14} {'precision':<9} {'descend':>20} {'plain':>9} {'by hand':>9} {'torch':>9}  ratio to the best")
    for text in given.stacks:
        count, rows, columns = map(int, text.split("x"))
        for bfloat16 in (False, True):
            times = measure(contenders((count, rows, columns), bfloat16), given.rounds, "cpu", 20, given.seconds)
            medians = {name: 1e3 * statistics.median(found) for name, found in times.items()}
            low, _, high = statistics.quantiles(times["descend"], n=4)
            ours = f"{medians['descend']:.2f} ({1e3 * low:.2f}-{1e3 * high:.2f})"
            others = [medians.get(name) for name in ("plain", "stack by hand", "torch")]
            cells = " ".join(f"{'-' if x is None else f'{x:.2f}':>9}" for x in others)
            best = min(x for x in others if x is not None)
            precision = "bfloat16" if bfloat16 else "float32"
            print(f"{text:>14} {precision:<9} {ours:>20} {cells}  {medians['descend'] / best:.2f}", flush=True)


if __name__ == "__main__":
    main()
