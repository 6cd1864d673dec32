"""Time of a step of rules of whole matrices over equal matrices, beside plain forms of it, by one thread.

    python benchmarks/matrix_stacks.py                          # all rules and shapes, some ten minutes
    python benchmarks/matrix_stacks.py --rules Muon --shapes 48x128x64 8x64x64x3x3    # number x shape, of one's own

The contenders are our default, our text applied to one matrix after the other (`plain`), torch.optim.Muon, and the
least that one would write by hand: matrices stacked by `torch.stack` and multiplied by `torch.baddbmm`, with state that
stays stacked. The last has no checks of gradients, no masters of weights in low precision, no groups and no saving.
torch's iterates in bfloat16 alone, so it has no row in float32. Times are CPU milliseconds of the thread, medians of
turns with the spread from a quarter to three quarters, so other processes matter little; a turn of SOAP is ten steps,
with one refresh of its bases. The ratio is ours to the best of the others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from optimizer_step import check_idle, weights
from torch import Tensor

import descend.optim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHAPES = [
    *("96x32x32", "48x64x64", "48x128x64", "48x64x128", "24x160x160", "8x96x64", "4x256x64", "6x512x512"),
    *("transformer", "4x1024x256", "8x256x64x3x3", "1x1024x1024"),
]
TRANSFORMER = [*[(256, 256)] * 8, *[(1024, 256), (256, 1024)] * 4]  # two layers
RULES = ("Muon", "Muon bfloat16", "SOAP", "GroupAdaGrad")
MOMENTUM, LR, EPS = 0.95, 1e-3, 1e-8
TURN = 20.0  # milliseconds


class ByHand:
    """A rule over stacks of the parameters of each shape."""

    def __init__(self, params: list[Tensor]) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = {}
        for p in params:
            alike.setdefault(tuple(p.shape), []).append(p)
        self.stacks = list(alike.values())
        self.states = [self.init(torch.stack(stack).flatten(2)) for stack in self.stacks]

    def init(self, p: Tensor) -> dict[str, Tensor]:
        """The state of a stack."""
        raise NotImplementedError  # each rule has its own

    def direction(self, g: Tensor, state: dict[str, Tensor]) -> Tensor:
        """By how much its weights move."""
        raise NotImplementedError  # each rule has its own

    @torch.no_grad()
    def step(self) -> None:
        """One update."""
        for stack, state in zip(self.stacks, self.states, strict=True):
            g = torch.stack([p.grad for p in stack if p.grad is not None])
            d = self.direction(g.flatten(2), state).reshape(g.shape)
            torch._foreach_add_(stack, list(d.unbind(0)), alpha=-LR)


class Muon(ByHand):
    """Muon, whose products are in this precision."""

    dtype = torch.float32

    def init(self, p: Tensor) -> dict[str, Tensor]:
        """Zeros."""
        return {"b": torch.zeros_like(p)}

    def direction(self, g: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Newton and Schulz's iteration."""
        x = g.lerp(state["b"].lerp_(g, 1 - MOMENTUM), MOMENTUM).to(self.dtype)
        tall = x.shape[1] > x.shape[2]
        x = x.mT.contiguous() if tall else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        a, b, c = 3.4445, -4.7750, 2.0315
        for _ in range(5):
            A = x @ x.mT
            B = torch.baddbmm(A, A, A, beta=b, alpha=c)
            x = torch.baddbmm(x, B, x, beta=a)
        x = x.mT if tall else x
        return x.to(g.dtype) * max(1.0, x.shape[1] / x.shape[2]) ** 0.5


class MuonBFloat16(Muon):
    """Muon in bfloat16."""

    dtype = torch.bfloat16


class SOAP(ByHand):
    """SOAP."""

    def init(self, p: Tensor) -> dict[str, Tensor]:
        """Zeros and standard bases."""
        bases = [torch.eye(side).repeat(len(p), 1, 1) for side in p.shape[1:]]
        zeros = [torch.zeros_like(Q) for Q in bases]
        names = ("t", "M", "V", "L", "R", "QL", "QR")
        held = (torch.zeros(()), torch.zeros_like(p), torch.zeros_like(p), *zeros, *bases)
        return dict(zip(names, held, strict=True))

    def direction(self, g: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Adam in the bases, and a refresh of these now and then."""
        t, M, V, L, R, QL, QR = state.values()
        t.add_(1)
        G = QL.mT @ g @ QR
        M.lerp_(G, 0.05)
        V.mul_(0.95).addcmul_(G, G, value=0.05)
        c = (1 - 0.95 ** float(t)) ** 0.5 / (1 - 0.95 ** float(t))
        d = QL @ (c * M / (V.sqrt() + EPS)) @ QR.mT
        torch.baddbmm(L, g, g.mT, beta=0.95, alpha=0.05, out=L)
        torch.baddbmm(R, g.mT, g, beta=0.95, alpha=0.05, out=R)
        first = float(t) == 1
        if first or float(t) % 10 == 0:
            mean = QL @ M @ QR.mT
            for P, Q, side in ((L, QL, 1), (R, QR, 2)):
                if first:
                    Q.copy_(torch.linalg.eigh(P)[1].flip(-1))
                    continue
                PQ = P @ Q
                order = (Q * PQ).sum(1).argsort(descending=True)
                Q.copy_(torch.linalg.qr(PQ.take_along_dim(order[:, None], 2))[0])
                V.copy_(V.take_along_dim(order[:, :, None] if side == 1 else order[:, None], side))
            M.copy_(QL.mT @ mean @ QR)
        return d


class GroupAdaGrad(ByHand):
    """GroupAdaGrad."""

    def init(self, p: Tensor) -> dict[str, Tensor]:
        """Zero a row."""
        return {"h": torch.zeros(p.shape[:2])}

    def direction(self, g: Tensor, state: dict[str, Tensor]) -> Tensor:
        """The gradient by the root of a row's sum."""
        return g / (state["h"].add_((g * g).mean(2)).sqrt() + 1e-6)[:, :, None]


BY_HAND: dict[str, type[ByHand]] = {
    "Muon": Muon,
    "Muon bfloat16": MuonBFloat16,
    "SOAP": SOAP,
    "GroupAdaGrad": GroupAdaGrad,
}


def contenders(rule: str, shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
    """Each way to take a step, by name."""
    options: dict[str, Any] = {"lr": LR, "weight_decay": 0.0}
    if rule.startswith("Muon"):
        options["bfloat16"] = rule.endswith("bfloat16")
    make = getattr(descend.optim, rule.split()[0])
    made = {
        "descend": make(weights(shapes, "cpu"), **options).step,
        "plain": make(weights(shapes, "cpu"), runner="plain", **options).step,
        "by hand": BY_HAND[rule](weights(shapes, "cpu")).step,
    }
    if rule == "Muon bfloat16" and all(len(shape) == 2 for shape in shapes):
        made["torch"] = torch.optim.Muon(weights(shapes, "cpu"), lr=LR, weight_decay=0.0).step
    return made


def measure(steps: dict[str, Callable[[], Any]], turn: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of a step of each contender in its turns, which alternate.

    Args:
        steps: The contenders.
        turn: A turn is a multiple of so many steps, that many times that it takes `TURN` milliseconds.
        rounds: Turns of each.
        seconds: After which a contender has no more turns, once it had three.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    begin = time.thread_time()
    steps["descend"]()
    turn *= max(1, round(TURN / (1e3 * (time.thread_time() - begin)) / turn))
    for _ in range(rounds):
        for name, step in steps.items():
            if len(times[name]) >= 3 and sum(times[name]) * turn > 1e3 * seconds:
                continue
            begin = time.thread_time()
            for _ in range(turn):
                step()
            times[name].append(1e3 * (time.thread_time() - begin) / turn)
    return times


def shapes_of(text: str) -> list[tuple[int, ...]]:
    """The matrices that the command line calls so."""
    if text == "transformer":
        return list(TRANSFORMER)
    count, *shape = map(int, text.split("x"))
    return [tuple(shape)] * count


def row(text: str, times: dict[str, list[float]]) -> str:
    """One line of the table."""
    medians = {name: statistics.median(found) for name, found in times.items()}
    low, _, high = statistics.quantiles(times["descend"], n=4)
    ours = f"{medians['descend']:.2f} ({low:.2f}-{high:.2f})"
    others = [medians.get(name) for name in ("plain", "by hand", "torch")]
    cells = " ".join(f"{'-' if x is None else f'{x:.2f}':>9}" for x in others)
    return f"{text:>14} {ours:>24} {cells}  {medians['descend'] / min(x for x in others if x is not None):.2f}"


def main(given: Sequence[str] | None = None) -> None:
    """Print one row per rule and shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*", choices=RULES, default=RULES)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=1.5, help="limit of a contender after three turns")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    torch.empty(2**23).fill_(1.0)  # once so much was freed, as in any training, malloc keeps what it gets
    check_idle()
    print(f"torch {torch.__version__}, one thread; CPU milliseconds per step")
    for rule in options.rules:
        print(f"\n{rule:>14} {'descend':>24} {'plain':>9} {'by hand':>9} {'torch':>9}  ratio to the best")
        for text in options.shapes:
            turn = 10 if rule == "SOAP" else 1
            print(
                row(text, measure(contenders(rule, shapes_of(text)), turn, options.rounds, options.seconds)), flush=True
            )


if __name__ == "__main__":
    main()
