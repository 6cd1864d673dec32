"""Mutation testing: which small changes of a module does its own unit test not notice?

    python tools/mutants.py [MODULE.py ...] [--sample N] [--jobs N] [--verbose] [--write]
    python tools/mutants.py [MODULE.py ...] --survivors

A mutant is a module with one change: a comparison, an operator, a condition, a number, a result or a call. It is
killed where the test at the mirrored path fails, and survives where that passes. Without names the modules of `CORE`
are taken. `mutants.toml` has a reason for each known survivor, which `--survivors` and `--verbose` print. Those that
change no behaviour do not count. Tests elsewhere that belong to a module too stand there as well.

`mutant_runs.py` runs the tests; a mutant on a line that they never execute survives without a run.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # run as a file, its folder is on the path and not the root
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import ROOT, twins
from tools.mutant_runs import Change, survivors, within_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CORE = (
    "descend/train/step.py",
    "descend/train/state.py",
    "descend/train/module_state.py",
    "descend/train/loop.py",
    "descend/train/stopping.py",
    "descend/train/strategies/*.py",
    "descend/train/transforms/*.py",
    "descend/experiment/checkpoint.py",
    "descend/runtime/checkpoint.py",
    "descend/runtime/checkpoint_manager.py",
    "descend/runtime/sharded_save.py",
    "descend/runtime/safetensors_io.py",
    "descend/study/running/study_file.py",
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
        in_function: Whether it is in the body of a function.
    """

    module: str
    line: int
    before: str
    after: str
    index: int
    in_function: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.before}  ->  {self.after}"


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[], None], Callable[[], None]]]:
    """Each place of a tree that can be changed, with a function that changes it and one that puts it back.

    Annotations, docstrings, decorators, messages of errors, `__all__`, imports for types and `strict` of `zip`, which
    asserts what holds anyway, are left alone.
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
    """What a mutant leaves out: a result that is not a constant, or a call by itself."""
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
            if isinstance(child, ast.keyword) and child.arg == "strict":
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
    tree = ast.parse(text)
    inside = within_functions(tree)
    for i, (node, apply, undo) in enumerate(mutations(tree)):
        before = _shown(node)
        apply()
        after = _shown(node, changed=True)
        after = f"not ({before})" if after == before else after  # it is the statement around a condition that changes
        found.append(Mutant(module, getattr(node, "lineno", 0), before, after, i, id(node) in inside))
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
    also = [Path(row["test"]) for row in _rows(known, "also") if row["module"] == module]
    text, tests = path.read_text(), [root / test for test in [*twins(Path(module)), *also] if (root / test).is_file()]
    every = mutants_of(text, module)
    if sample is not None and sample < len(every):
        every = random.Random(module).sample(every, sample)
    if not tests:
        return Score(module, 0, tuple(every))
    reasons = {(row["module"], row["before"], row["after"]) for row in _rows(known, "equivalent")}
    counted = [mutant for mutant in every if (module, mutant.before, mutant.after) not in reasons]
    changes = [Change(one.index, one.line, mutated(text, one, path), one.in_function) for one in counted]
    indices = survivors(module, tests, changes, jobs, root)
    alive = tuple(mutant for mutant in counted if mutant.index in indices)
    return Score(module, len(counted) - len(alive), alive, len(every) - len(counted))


def _rows(path: Path, kind: str) -> list[dict[str, str]]:
    return tomllib.loads(path.read_text()).get(kind, []) if path.is_file() else []


def reasons_of(module: str, known: Path = EQUIVALENT) -> dict[tuple[str, str], str]:
    """Why each known survivor of a module survives, by what stands there and what the mutant has instead."""
    found = {
        kind: [row for row in _rows(known, kind) if row["module"] == module] for kind in ("equivalent", "survivor")
    }
    same = {(row["before"], row["after"]): f"changes no behaviour: {row['reason']}" for row in found["equivalent"]}
    return same | {(row["before"], row["after"]): row["reason"] for row in found["survivor"]}


def listed(module: str, reasons: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A line for each known survivor, with its reason."""
    for (before, after), reason in reasons.items():
        yield f"{module}: {before}  ->  {after}\n    {reason}\n"


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
    """Print the scores; see the top of this file."""
    parser = argparse.ArgumentParser(description="Which small changes of a module does its unit test not notice?")
    parser.add_argument("modules", nargs="*", help="files of the package; without any those of the core")
    parser.add_argument("--sample", type=int, help="so many mutants of each module, drawn by its name")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--verbose", action="store_true", help="every survivor")
    parser.add_argument("--write", action="store_true", help="put the scores into docs/mutants.md")
    parser.add_argument("--survivors", action="store_true", help="only print the known survivors, with their reasons")
    given = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    found = [str(path.relative_to(ROOT)) for name in CORE for path in sorted(ROOT.glob(name))]
    modules = given.modules or [name for name in found if (ROOT / name).stat().st_size]
    if given.survivors:
        sys.stdout.writelines(line for module in modules for line in listed(module, reasons_of(module)))
        return 0
    for name in ("numpy", "torch"):
        importlib.import_module(name)  # once, for all forks
    assert "descend" not in sys.modules, "the package is imported by each fork"
    scores: list[Score] = []
    for module in modules:
        one = score(module, given.sample, given.jobs)
        scores.append(one)
        sys.stdout.write(f"{one.share:5.1f} %  {one.killed} killed, {len(one.survivors)} survived  {module}\n")
        if given.verbose:
            reasons = reasons_of(module)
            for mutant in one.survivors:
                reason = reasons.get((mutant.before, mutant.after), "no reason is known")
                sys.stdout.write(f"    {mutant}\n        {reason}\n")
        sys.stdout.flush()
    sums = Counter(killed=sum(one.killed for one in scores), survived=sum(len(one.survivors) for one in scores))
    total = sums["killed"] / max(1, sums.total())
    sys.stdout.write(f"{100 * total:5.1f} %  of {sums.total()} mutants killed\n")
    if given.write:
        PAGE.write_text(written(PAGE.read_text(), scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
