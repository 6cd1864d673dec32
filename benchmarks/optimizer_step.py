"""Time of one optimizer step, ours beside others', in one run on one machine.

    python benchmarks/optimizer_step.py                          # all rules, all models, at most an hour
    python benchmarks/optimizer_step.py --environments FOLDER    # with pytorch_optimizer and optax beside
    python benchmarks/optimizer_step.py --rules Adam SGD --models resnet50 --rounds 15
    python benchmarks/optimizer_step.py --models vit_base lstm embeddings tiny --rules AdamW SGD
    python benchmarks/optimizer_step.py --no-compiler            # as on a machine without a C++ compiler
    python benchmarks/optimizer_step.py --start                  # first steps, compiling on the way, memory
    python benchmarks/optimizer_step.py --device cuda --fast     # our fastest runner, and the best of the peers

Every contender takes one step in turn, `--rounds` times, so a change of the machine's mood meets all of them alike; a
slow one stops after `--seconds` of its own, or less where the tables still to come need it: all take about `--minutes`.
The table holds medians, the spread (quarter to three quarters) with the number of turns, and the ratio to the peer that
the design names for the rule; the last table sets each rule beside what it is held to. `pytorch_optimizer` and `optax`
run in environments that the script makes under `--environments` (with pip, on first use); where that fails their rows
say so. `bytes/s` counts every buffer that a rule must read or write once (weights and state twice, gradients once) and
stands beside a copy of as many bytes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import descend.optim
from descend.optim.compiler.cache import obstacle

Shapes = list[tuple[int, ...]]
Step = Callable[[], Any]


def resnet50() -> Shapes:
    """The 161 tensors of ResNet-50 for 1,000 classes, 25.6 M elements."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outside = 4 * width
            for shape in ((width, inside, 1, 1), (width, width, 3, 3), (outside, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(outside, inside, 1, 1), (outside,), (outside,)]
            inside = outside
    return [*shapes, (1000, 2048), (1000,)]


def bert_base() -> Shapes:
    """The tensors of BERT-base with its pooler, 109 M elements."""
    shapes: Shapes = [(30522, 768), (512, 768), (2, 768), (768,), (768,)]
    for _ in range(12):
        shapes += [(768, 768), (768,)] * 4 + [(768,), (768,)]
        shapes += [(3072, 768), (3072,), (768, 3072), (768,), (768,), (768,)]
    return [*shapes, (768, 768), (768,)]


def matrices() -> Shapes:
    """Four small transformer layers without their vectors, 3.1 M elements, for rules that work on matrices."""
    return [*[(256, 256)] * 16, *[(1024, 256), (256, 1024)] * 4]


def vit_base() -> Shapes:
    """The tensors of ViT-B/16 for 1,000 classes, 86.6 M elements."""
    shapes: Shapes = [(1, 1, 768), (1, 197, 768), (768, 3, 16, 16), (768,)]
    for _ in range(12):
        shapes += [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,)]
        shapes += [(768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
    return [*shapes, (768,), (768,), (1000, 768), (1000,)]


def lstm() -> Shapes:
    """A language model of two LSTM layers of 650 units for 10,000 words, 19.8 M elements in 11 tensors."""
    return [(10_000, 650), *[(2600, 650), (2600, 650), (2600,), (2600,)] * 2, (10_000, 650), (10_000,)]


def embeddings() -> Shapes:
    """A recommender: 26 tables of 1,000 to 401,000 rows of 16 and a small network, 57.2 M elements."""
    tables: Shapes = [(1000 * (1 + i * i * 16 // 25), 16) for i in range(26)]
    return [*tables, (512, 13), (512,), (256, 512), (256,), (16, 256), (16,), (512, 367), (512,), (1, 512), (1,)]


def tiny() -> Shapes:
    """10,000 tensors of 1 to 48 elements, vectors and matrices, 0.12 M elements."""
    return [(1 + i % 8,) if i % 3 else (1 + i % 8, 6) for i in range(10_000)]


MODELS: dict[str, Callable[[], Shapes]] = {
    "resnet50": resnet50,
    "bert_base": bert_base,
    "thousand_of_64": lambda: [(64,)] * 1000,
    "matrices": matrices,
}
MORE_MODELS: dict[str, Callable[[], Shapes]] = {
    "vit_base": vit_base,
    "lstm": lstm,
    "embeddings": embeddings,
    "tiny": tiny,
}


@dataclass(frozen=True)
class Rule:
    """A rule and how others call it.

    Attributes:
        ours: Name in `descend.optim`, with options.
        torch_name: Class in `torch.optim`, or None.
        fused: Whether torch has a fused kernel for it.
        others: Name in pytorch_optimizer and in optax, or None.
        buffers: Buffers of the weights' size that an update reads or writes, each counted once for each direction.
        whole: Whether it multiplies matrices, which are then the only model it is measured on; no kernel is compiled.
        variant: What sets it apart from another row of the same rule.
        optax_options: What optax's function takes to be the same rule.
    """

    ours: str
    options: dict[str, Any]
    torch_name: str | None
    torch_options: dict[str, Any]
    fused: bool
    pytorch_optimizer: str | None
    optax: str | None
    buffers: int
    whole: bool = False
    variant: str = ""
    optax_options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.ours} {self.variant}".rstrip()


MOMENTUM: dict[str, Any] = {"momentum": 0.9}
NESTEROV: dict[str, Any] = {**MOMENTUM, "nesterov": True}

RULES = [
    Rule("SGD", MOMENTUM, "SGD", MOMENTUM, True, None, "sgd", 5, optax_options=MOMENTUM),
    Rule("NAG", {}, "SGD", NESTEROV, True, None, "sgd", 5, optax_options=NESTEROV),
    Rule("Adam", {}, "Adam", {}, True, None, "adam", 7),
    Rule("AdamW", {}, "AdamW", {}, True, None, "adamw", 7),
    Rule("AdaGrad", {}, "Adagrad", {}, True, None, "adagrad", 5),
    Rule("Nadam", {}, "NAdam", {}, False, None, "nadam", 7),
    Rule("RMSProp", {}, "RMSprop", {}, False, None, "rmsprop", 5),
    Rule("AdaDelta", {}, "Adadelta", {}, False, None, "adadelta", 7),
    Rule("Adamax", {}, "Adamax", {}, False, None, "adamax", 7),
    Rule("Rprop", {}, "Rprop", {}, False, None, "rprop", 7),
    Rule("LARS", {}, None, {}, False, "LARS", "lars", 5),
    Rule("LAMB", {}, None, {}, False, "Lamb", "lamb", 7),
    Rule("LANS", {}, None, {}, False, None, None, 7),
    Rule("LBSGD", {}, None, {}, False, None, None, 5),
    Rule("FTRL", {}, None, {}, False, "FTRL", None, 7),
    Rule("FTML", {}, None, {}, False, None, None, 9),
    Rule("DCASGD", {}, None, {}, False, None, None, 5),
    Rule("SGLD", {}, None, {}, False, None, "noisy_sgd", 3),
    Rule("SignSGD", {}, None, {}, False, None, "sign_sgd", 3),
    Rule("Signum", {}, None, {}, False, "SignSGD", None, 5),
    Rule("Lion", {}, None, {}, False, "Lion", "lion", 5),
    Rule("AdaBelief", {}, None, {}, False, "AdaBelief", "adabelief", 7),
    Rule("HypergradientAdam", {}, None, {}, False, None, None, 9),
    Rule("ScheduleFreeSGD", {}, None, {}, False, "ScheduleFreeSGD", "contrib.schedule_free_sgd", 5),
    Rule("ScheduleFreeAdamW", {}, None, {}, False, "ScheduleFreeAdamW", "contrib.schedule_free_adamw", 7),
    Rule("Adafactor", {}, "Adafactor", {}, False, "AdaFactor", "adafactor", 3),
    Rule("GroupAdaGrad", {}, None, {}, False, None, None, 3, whole=True),
    Rule("Muon", {"bfloat16": True}, "Muon", {}, False, None, None, 5, whole=True, variant="bfloat16"),
    Rule("Muon", {}, None, {}, False, None, "contrib.muon", 5, whole=True, variant="float32"),
    Rule("SOAP", {}, None, {}, False, "SOAP", None, 7, whole=True),
]

FUSED_ON_A_GPU = ("SGD", "Adam", "AdamW")  # torch's Adagrad has its fused kernel on a CPU alone
SMALL = 200_000  # elements
TURN_SECONDS = 0.05  # of a turn of several steps; who needs longer for one has nothing in the cache after it anyway
SETTLE_SECONDS = 0.05  # after which threads that have no work sleep
WAKE_SECONDS = 0.05
COPIED = 2**20  # elements, which several threads copy
FEWEST = 5  # turns of a contender however slow it is

FOREIGN = {
    "pytorch_optimizer": ["pytorch-optimizer>=4", "torch==2.13.0"],
    "optax": ["optax", "jax[cpu]"],
}


def weights(shapes: Shapes, device: str) -> list[Tensor]:
    """Fresh parameters with gradients."""
    made: list[Tensor] = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for p in made:
        p.grad = p.detach() * 1e-3
    return made


def contenders(
    rule: Rule, shapes: Shapes, device: str, environments: Path | None, fast: bool = False
) -> Iterator[tuple[str, Step]]:
    """Each way to take one step of a rule, ready to be called; with `fast` without those that are slow by design."""
    make = getattr(descend.optim, rule.ours)
    fastest = "blocks" if obstacle(device) else "compiled"
    for runner in [fastest] if fast else dict.fromkeys((fastest, "blocks", "plain")):
        yield (
            f"descend {runner}",
            make(weights(shapes, device), runner=runner, on_nonfinite="allow", **rule.options).step,
        )
    yield f"descend {fastest}, checked", make(weights(shapes, device), runner=fastest, **rule.options).step
    if rule.torch_name:
        peer = getattr(torch.optim, rule.torch_name)
        known = inspect.signature(peer).parameters
        for form in ("fused", "foreach") if fast and "foreach" in known else ("fused", "foreach", "loop"):
            if form == "fused" and not (rule.fused and (device == "cpu" or rule.torch_name in FUSED_ON_A_GPU)):
                continue
            how = {"foreach": False} if form == "loop" else {form: True}
            if "foreach" not in known:
                if form == "foreach":
                    continue
                how = {}
            yield f"torch {form}", peer(weights(shapes, device), lr=1e-3, **rule.torch_options, **how).step
    if environments is not None:
        others = (("pytorch_optimizer", rule.pytorch_optimizer, {}), ("optax", rule.optax, rule.optax_options))
        for library, name, options in others:
            if name:
                worker = Foreign.start(library, name, options, shapes, environments)
                if worker is not None:
                    yield library, worker


class Foreign:
    """A peer that lives in an environment of its own: it times its own steps and hands the seconds over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @staticmethod
    def start(library: str, name: str, options: dict[str, Any], shapes: Shapes, environments: Path) -> Foreign | None:
        """Make the environment if it is not there and start the peer; None, with a message, where that fails."""
        python = environments / library / "bin" / "python"
        if not python.exists():
            venv.create(environments / library, with_pip=True)
            made = subprocess.run(
                [python, "-m", "pip", "install", "-q", *FOREIGN[library]], capture_output=True, text=True
            )
            if made.returncode:
                print(f"  {library} is left out: {made.stderr.strip().splitlines()[-1:]}")
                shutil.rmtree(environments / library)  # so that the next run tries again
                return None
        worker = Path(__file__).with_name("peers.py")
        process = subprocess.Popen(
            [python, worker, library, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        foreign = Foreign(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps([shapes, options]) + "\n")
        ready = foreign.ask()
        if ready is None:
            print(f"  {library} {name} is left out: it does not start")
            foreign.close()
        return foreign if ready is not None else None

    def ask(self) -> float | None:
        """Seconds of one more step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            return None

    def __call__(self) -> float | None:
        """The same as a step is called, in quiet: threads of another process wait awake for more work for a while."""
        time.sleep(SETTLE_SECONDS)
        taken = self.ask()
        time.sleep(SETTLE_SECONDS)
        return taken

    def close(self) -> None:
        """End the peer and give its memory back."""
        self.process.kill()
        self.process.communicate()


def seconds(step: Step, device: str, count: int) -> float:
    """Wall time of one of `count` steps in a row; a peer in another process reports its own."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    reported = [step() for _ in range(count)]
    if device == "cuda":
        torch.cuda.synchronize()
    total = sum(reported) if isinstance(step, Foreign) else time.perf_counter() - began
    return total / count


def steps_in_a_turn(step: Step, device: str, most: int) -> int:
    """How many steps a contender takes in a row after three of warming up: as many as a short turn has room for."""
    for _ in range(2):
        step()
    return max(1, min(most, int(TURN_SECONDS / seconds(step, device, 1))))


def measure(steps: dict[str, Step], rounds: int, device: str, in_a_row: int, limit: float) -> dict[str, list[float]]:
    """Seconds of a step of each contender, taken in turns.

    Args:
        steps: The contenders.
        rounds: How many turns each has, unless it is slow.
        device: Where they run.
        in_a_row: Steps in a turn, unless they are slow.
        limit: Seconds after which a contender has no more turns, once it had `FEWEST`.
    """
    counts = {name: steps_in_a_turn(step, device, in_a_row) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        asleep = False
        for name, step in steps.items():
            if len(times[name]) < FEWEST or sum(times[name]) * counts[name] < limit:
                if asleep and not isinstance(step, Foreign):
                    wake_threads()
                times[name].append(seconds(step, device, counts[name]))
                asleep = isinstance(step, Foreign)
    return times


def wake_threads() -> None:
    """Have torch's threads work for a moment: after a peer's turn in another process they sleep.

    The first two operations then take 5 ms more, whichever contender has to make them: a thread that is woken gets the
    core of the one that waits for it, awake.
    """
    one, two = torch.zeros(COPIED), torch.ones(COPIED)
    end = time.perf_counter() + WAKE_SECONDS
    while time.perf_counter() < end:
        one.copy_(two)


def copying(elements: int, device: str) -> Step:
    """A copy of weights of this size, which reads and writes each once."""
    one, two = torch.zeros(elements, device=device), torch.ones(elements, device=device)
    return lambda: one.copy_(two)


@dataclass(frozen=True)
class Verdict:
    """How a rule did on a model, for the table at the end.

    Attributes:
        rule: Its name.
        model: The model's name.
        milliseconds: Median of our fastest runner, which looks at no gradient, as its peers do not.
        peer: Which peer it is measured by, or None.
        ratio: Our time by the peer's.
        limit: What the ratio is held to.
        bandwidth: Bytes per second as a fraction of a copy's.
    """

    rule: str
    model: str
    milliseconds: float
    peer: str | None
    ratio: float
    limit: float
    bandwidth: float


COPY_LIMIT = 0.85  # of a copy's bytes per second


def measure_of(rule: Rule, model: str, medians: dict[str, float]) -> tuple[str | None, float]:
    """The peer that the design names for a rule on a model, and the limit of the ratio to it.

    Where nothing can be compiled, torch's own compiled kernel is no measure. A loop over tensors is one only where
    there is nothing else.
    """
    if obstacle("cpu"):
        wanted, limit = ["torch foreach"], 1.1
    elif rule.fused:
        wanted, limit = ["torch fused"], 1 / 20 if model in ("thousand_of_64", "tiny") else 1.0
    else:
        wanted, limit = ["torch foreach", "pytorch_optimizer", "optax"], 1 / 3
    peers = [name for name in wanted if name in medians] or [name for name in medians if name.startswith("torch")]
    return min(peers, key=medians.__getitem__, default=None), limit


def report(rule: Rule, model: str, times: dict[str, list[float]], elements: int) -> Verdict:
    """Print one table of one rule on one model, and say what comes of it."""
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    best, limit = measure_of(rule, model, medians)
    beside = best or "copy"
    base = medians[beside]
    bytes_of_copy = 2 * 4 * elements / medians["copy"]
    print(f"\n{rule.title} on {model}   (ratios to {beside}; a copy moves {bytes_of_copy / 1e9:.1f} GB/s)")
    for name, taken in sorted(times.items(), key=lambda item: medians[item[0]]):
        low, middle, high = statistics.quantiles(taken, n=4)
        moved = rule.buffers * 4 * elements / middle
        spread = f"({1e3 * low:.3f} to {1e3 * high:.3f} in {len(taken)})"
        print(
            f"  {name:<28}{1e3 * middle:9.3f} ms  {spread}   {middle / base:7.3f} x"
            + (f"   {moved / bytes_of_copy:5.2f} of a copy's bytes/s" if name.startswith("descend") else "")
        )
    ours = min(taken for name, taken in medians.items() if name.startswith("descend") and "checked" not in name)
    bandwidth = rule.buffers * 4 * elements / ours / bytes_of_copy
    return Verdict(rule.title, model, 1e3 * ours, best, ours / base if best else float("nan"), limit, bandwidth)


def report_all(verdicts: list[Verdict]) -> None:
    """One line for each rule and model: our fastest runner beside what it is held to."""
    print(f"\n{'rule':<19}{'model':<16}{'ours':>10}   {'peer':<19}{'ratio':>7}{'limit':>7}{'':>9}{'of a copy':>10}")
    for v in verdicts:
        held = "" if v.peer is None else "held" if v.ratio <= v.limit else "not held"
        ratio = f"{v.ratio:7.3f}{v.limit:7.3f}" if v.peer else f"{'':14}"
        missing = (
            "" if v.bandwidth >= COPY_LIMIT or v.model in ("thousand_of_64", "tiny", "matrices") else "  below 0.85"
        )
        line = f"{v.rule:<19}{v.model:<16}{v.milliseconds:7.2f} ms   {v.peer or 'none':<19}{ratio} {held:<8}"
        print(f"{line}{v.bandwidth:10.2f}{missing}")


COMPILERS = ("++", "gcc", "clang", "cc")  # parts of their names


def hide_compilers(folder: Path) -> None:
    """Make a path on which everything is but compilers, for this process and those it starts."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    for tool in (tool for place in places if place.is_dir() for tool in place.iterdir()):
        link = folder / tool.name
        if not any(name in tool.name for name in COMPILERS) and not link.is_symlink():
            link.symlink_to(tool)
    os.environ["PATH"] = str(folder)
    os.environ.pop("CXX", None)


def beginning(
    module: str, name: str, options: dict[str, Any], shapes: Shapes, seconds: float, cache: str
) -> dict[str, Any]:
    """What `first_step.py` found in a process with this kernel cache."""
    job = {"module": module, "name": name, "options": options, "shapes": shapes, "seconds": seconds}
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("first_step.py")],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, "DESCEND_CACHE_DIR": cache, "PYTHONPATH": root},
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def report_beginnings(rule: Rule, model: str, shapes: Shapes) -> None:
    """First steps, when compiled kernels were in place, and memory."""
    print(f"\n{rule.ours} on {model}")
    peer = None
    if rule.torch_name:
        options = {"lr": 1e-3, **rule.torch_options, **({"fused": True} if rule.fused else {})}
        peer = beginning("torch.optim", rule.torch_name, options, shapes, 0.0, "")["first"]
        print(f"  torch, first step               {peer:7.2f} s")
    with tempfile.TemporaryDirectory() as cache:
        for words, seconds in (("no kernel in the cache", 30.0), ("kernels in the cache", 3.0)):
            found = beginning("descend.optim", rule.ours, rule.options, shapes, seconds, cache)
            later = "" if peer is None else f"  ({found['first'] - peer:+.2f} s)"
            print(f"  descend, {words:<23}{found['first']:7.2f} s{later}")
            ready = "not within the run" if found["compiled"] is None else f"after {found['compiled']:.2f} s"
            print(f"    compiled kernels {ready}; longest later step {found['longest']:.3f} s")
            extra = "unknown here" if found["extra"] is None else f"{100 * found['extra']:.1f} % of the weights"
            print(f"    extra memory of a step: {extra}")


def check_idle() -> None:
    """Say so where the machine is busy: threads then wait for each other and only ratios mean anything."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load {load:.1f}): trust ratios only")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*", default=[rule.ours for rule in RULES])
    parser.add_argument("--models", nargs="*", choices=[*MODELS, *MORE_MODELS], default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=21, help="turns of each contender")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help=f"after which a contender has no more turns than {FEWEST}"
    )
    parser.add_argument("--minutes", type=float, default=55.0, help="time for all tables, shared between them")
    parser.add_argument(
        "--in-a-row", type=int, help="most steps that a contender takes in its turn; 20 for small models, else 1"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--environments", type=Path, default=None, help="folder for the peers' environments")
    parser.add_argument("--fast", action="store_true", help="leave out loops over tensors and our slower runners")
    parser.add_argument("--start", action="store_true", help="first steps, when kernels are compiled, and memory")
    parser.add_argument("--no-compiler", action="store_true", help="hide C++ compilers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.no_compiler:
            hide_compilers(Path(folder))
        run(given)


def run(given: argparse.Namespace) -> None:
    """All tables."""
    check_idle()
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    verdicts: list[Verdict] = []
    wanted = [rule for rule in RULES if rule.ours in given.rules]
    tables = [(rule, model) for model in given.models for rule in wanted if model == "matrices" or not rule.whole]
    end = time.monotonic() + 60 * given.minutes
    for i, (rule, model) in enumerate(tables):
        shapes = {**MODELS, **MORE_MODELS}[model]()
        if given.start:
            report_beginnings(rule, model, shapes)
        else:
            share = (end - time.monotonic()) / (len(tables) - i)
            verdicts.append(compare(rule, model, shapes, given, share))
    if verdicts:
        report_all(verdicts)


def compare(rule: Rule, model: str, shapes: Shapes, given: argparse.Namespace, share: float) -> Verdict:
    """One table. All contenders are in memory at once, and gone before those of the next rule are made.

    Args:
        rule: Whose.
        model: Name of the model.
        shapes: Of its tensors.
        given: The command line.
        share: Seconds that the table should take, as far as `FEWEST` turns of each contender allow it.
    """
    end = time.monotonic() + share
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    steps = dict(contenders(rule, shapes, given.device, given.environments, given.fast))
    steps["copy"] = copying(elements, given.device)
    # A step of some microseconds would else be the time in which its caches are filled again.
    # On a GPU steps follow each other without a wait for the one before.
    in_a_row = given.in_a_row or (20 if elements < SMALL or given.device == "cuda" else 1)
    try:
        limit = max(0.0, min(given.seconds, (end - time.monotonic()) / len(steps)))
        return report(rule, model, measure(steps, given.rounds, given.device, in_a_row, limit), elements)
    finally:
        for step in steps.values():
            if isinstance(step, Foreign):
                step.close()


if __name__ == "__main__":
    main()
