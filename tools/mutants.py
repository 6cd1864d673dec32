"""Mutation testing: which small changes of a module does its own unit test not notice?

    python tools/mutants.py [MODULE.py ...] [--sample N] [--jobs N] [--verbose] [--write]

A mutant is a module with one change: a comparison, an operator, a condition, a number, a result or a call. It is
killed where the test at the mirrored path fails, and survives where that passes. Without names the modules of `CORE`
are taken. Survivors that change no behaviour stand in `mutants.toml` with a reason each, and do not count.

Each mutant runs in a fork of a process that has imported torch and pytest and nothing of the package, so that one takes
about as long as its tests; a mutant on a line that the tests never execute survives without a run.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import re
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # run as a file, its folder is on the path and not the root
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import ROOT, twins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

CORE = (
    "descend/train/step.py",
    "descend/train/loop.py",
    "descend/train/strategies/*.py",
    "descend/train/transforms/*.py",
    "descend/experiment/checkpoint.py",
    "descend/runtime/checkpoint.py",
    "descend/runtime/checkpoint_manager.py",
    "descend/study/running/record_files.py",
    "descend/study/running/study_file.py",
    "descend/study/running/trial_leases.py",
    "descend/study/running/trial_store.py",
)
PAGE = ROOT / "docs" / "mutants.md"
EQUIVALENT = Path(__file__).with_name("mutants.toml")

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: The file, relative to the root.
        line: Where it is.
        before: What stands there.
        after: What the mutant has instead.
        index: Its number among the module's mutants.
    """

    module: str
    line: int
    before: str
    after: str
    index: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.before}  ->  {self.after}"


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[], None], Callable[[], None]]]:
    """Each place of a tree that can be changed, with a function that changes it and one that puts it back.

    Annotations, docstrings, decorators, messages of errors, `__all__` and imports for types are left alone.
    """
    for node in _code(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
            yield node, *_swap_item(node.ops, 0, _COMPARE[type(node.ops[0])]())
        elif isinstance(node, ast.BoolOp):
            yield node, *_swap(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
            yield node, *_swap(node, "op", _ARITHMETIC[type(node.op)]())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, *_swap(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, *_swap(node, "value", node.value + 1)
        elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare):
            yield node.test, *_swap(node, "test", ast.copy_location(_negated(node.test), node.test))
        elif value := _dropped(node):
            yield node, *_swap(node, "value", ast.copy_location(ast.Constant(None), value))


def _dropped(node: ast.AST) -> ast.expr | None:
    """What a mutant leaves out: a result that is no constant, or a call by itself."""
    if isinstance(node, ast.Return):
        return None if node.value is None or _is_constant(node.value) else node.value
    return node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may be changed."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom
            ):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
                continue
            yield child
            yield from _code(child)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _swap(node: Any, name: str, new: object) -> tuple[Callable[[], None], Callable[[], None]]:
    old = getattr(node, name)
    return (lambda: setattr(node, name, new)), (lambda: setattr(node, name, old))


def _swap_item(items: list[Any], at: int, new: object) -> tuple[Callable[[], None], Callable[[], None]]:
    old = items[at]
    return (lambda: items.__setitem__(at, new)), (lambda: items.__setitem__(at, old))


def mutants_of(text: str, module: str) -> list[Mutant]:
    """All mutants of a module."""
    found: list[Mutant] = []
    for i, (node, apply, undo) in enumerate(mutations(ast.parse(text))):
        before = _shown(node)
        apply()
        found.append(Mutant(module, getattr(node, "lineno", 0), before, _shown(node, changed=True), i))
        undo()
    return found


def _shown(node: ast.AST, changed: bool = False) -> str:
    if changed and isinstance(node, ast.Expr) and _is_constant(node.value):
        return "(no call)"
    return ast.unparse(node).split("\n")[0][:100]


def mutated(text: str, mutant: Mutant, path: Path) -> Any:
    """The compiled module with the change of a mutant."""
    tree = ast.parse(text)
    _, apply, _ = list(mutations(tree))[mutant.index]
    apply()
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


# Running


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives one module from code that has been compiled already."""

    def __init__(self, name: str, code: Any, path: Path) -> None:
        self.name, self.code, self.path = name, code, path

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """The module's spec; None for others."""
        if name != self.name:
            return None
        is_package = self.path.name == "__init__.py"
        spec = importlib.machinery.ModuleSpec(name, self, origin=str(self.path), is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(self.path.parent)]
        return spec

    def get_code(self, fullname: str) -> Any:
        """The changed code."""
        return self.code

    def get_source(self, fullname: str) -> str:
        """The text of the file as it is."""
        return self.path.read_text()


def dotted(module: str) -> str:
    """The name by which a file is imported."""
    return ".".join(Path(module).with_suffix("").parts).removesuffix(".__init__")


def _tests(tests: Sequence[Path]) -> int:
    import pytest

    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *map(str, tests)]
    return int(pytest.main(words))


def _in_fork(act: Callable[[], int], seconds: float) -> int:
    """The exit code of `act` in a fork; that of a signal is negative. After `seconds` the fork's group is killed."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        code = 70
        try:
            code = act()
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def executed(path: Path, tests: Sequence[Path]) -> tuple[set[int], float]:
    """Lines of a file that its tests execute in this process, and how many seconds the tests take.

    Raises:
        RuntimeError: The tests fail as they are.
    """
    read, write = os.pipe()

    def act() -> int:
        lines: set[int] = set()

        def local(frame: FrameType, event: str, arg: object) -> Any:
            lines.add(frame.f_lineno)
            return local

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if frame.f_code.co_filename != str(path):
                return None
            lines.add(frame.f_lineno)
            return local

        threading.settrace(trace)
        sys.settrace(trace)
        code = _tests(tests)
        sys.settrace(None)
        os.write(write, json.dumps(sorted(lines)).encode())
        return code

    began = time.monotonic()
    code = _in_fork(act, 600)
    seconds = time.monotonic() - began
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    if code != 0:
        raise RuntimeError(f"the tests of {path} end with {code} before anything is changed: run {tests[0]}")
    return set(json.loads(text)), seconds


def survives(mutant: Mutant, text: str, tests: Sequence[Path], seconds: float, root: Path = ROOT) -> bool:
    """Whether the tests pass with a mutant in place of its module."""
    path = root / mutant.module
    code = mutated(text, mutant, path)

    def act() -> int:
        sys.meta_path.insert(0, _Finder(dotted(mutant.module), code, path))
        return _tests(tests)

    return _in_fork(act, seconds) == 0


@dataclass(frozen=True)
class Score:
    """What became of the mutants of one module."""

    module: str
    killed: int
    survivors: tuple[Mutant, ...]
    equivalent: int = 0

    @property
    def share(self) -> float:
        """Killed among those that change something, in percent."""
        made = self.killed + len(self.survivors)
        return 100 * self.killed / made if made else 100.0


def score(module: str, sample: int | None, jobs: int, root: Path = ROOT, known: Path = EQUIVALENT) -> Score:
    """Make the mutants of a module and run its test on each."""
    path = root / module
    text, tests = path.read_text(), [root / twin for twin in twins(Path(module)) if (root / twin).is_file()]
    every = mutants_of(text, module)
    if sample is not None and sample < len(every):
        every = random.Random(module).sample(every, sample)
    if not tests:
        return Score(module, 0, tuple(every))
    reasons = {(row["module"], row["before"], row["after"]) for row in _equivalents(known)}
    counted = [mutant for mutant in every if (module, mutant.before, mutant.after) not in reasons]
    lines, seconds = executed(path, tests)
    reached = [mutant for mutant in counted if mutant.line in lines]
    alive = set(counted) - set(reached)
    lock, left = threading.Lock(), list(reached)

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                mutant = left.pop()
            if survives(mutant, text, tests, 20 + 4 * seconds, root):
                with lock:
                    alive.add(mutant)

    workers = [threading.Thread(target=work) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    survivors = tuple(sorted(alive, key=lambda mutant: mutant.line))
    return Score(module, len(counted) - len(survivors), survivors, len(every) - len(counted))


def _equivalents(path: Path) -> list[dict[str, str]]:
    return tomllib.loads(path.read_text()).get("equivalent", []) if path.is_file() else []


def rows(scores: Sequence[Score]) -> list[str]:
    """The scores as a table of Markdown."""
    lines = ["| module | mutants | killed | survived | score |", "|---|---|---|---|---|"]
    for one in scores:
        made = one.killed + len(one.survivors)
        lines.append(f"| `{one.module}` | {made} | {one.killed} | {len(one.survivors)} | {one.share:.0f} % |")
    return lines


def written(page: str, scores: Sequence[Score]) -> str:
    """The page with these scores; rows of other modules stay."""
    mark = re.compile(r"(<!-- scores -->\n).*?(<!-- end -->)", re.DOTALL)
    found = mark.search(page)
    old = {line.split("`")[1]: line for line in (found[0] if found else "").splitlines() if line.startswith("| `")}
    head, *new = rows(scores)[0:2], *rows(scores)[2:]
    old |= {line.split("`")[1]: line for line in new}
    text = "\n".join([*head, *(old[name] for name in sorted(old))])
    return mark.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def main(words: Sequence[str] | None = None) -> int:
    """Print the scores; see the head of this file."""
    parser = argparse.ArgumentParser(description="Which small changes of a module does its unit test not notice?")
    parser.add_argument("modules", nargs="*", help="files of the package; without any those of the core")
    parser.add_argument("--sample", type=int, help="so many mutants of each module, drawn by its name")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--verbose", action="store_true", help="every survivor")
    parser.add_argument("--write", action="store_true", help="put the scores into docs/mutants.md")
    given = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    for name in ("numpy", "torch", "pytest"):
        importlib.import_module(name)  # once, for all forks
    assert "descend" not in sys.modules, "the package is imported by each fork"
    found = [str(path.relative_to(ROOT)) for name in CORE for path in sorted(ROOT.glob(name))]
    modules = given.modules or [name for name in found if (ROOT / name).stat().st_size]
    scores: list[Score] = []
    for module in modules:
        one = score(module, given.sample, given.jobs)
        scores.append(one)
        sys.stdout.write(f"{one.share:5.1f} %  {one.killed} killed, {len(one.survivors)} survived  {module}\n")
        if given.verbose:
            sys.stdout.write("".join(f"    {mutant}\n" for mutant in one.survivors))
        sys.stdout.flush()
    sums = Counter(killed=sum(one.killed for one in scores), survived=sum(len(one.survivors) for one in scores))
    total = sums["killed"] / max(1, sums.total())
    sys.stdout.write(f"{100 * total:5.1f} %  of {sums.total()} mutants killed\n")
    if given.write:
        PAGE.write_text(written(PAGE.read_text(), scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
