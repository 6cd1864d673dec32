"""Figures of the code's structure, each with a bound: python tools/figures.py [--verbose] [--strict] [--lower]

    python tools/figures.py --paths    # those of runs as well

A figure counts places that make the code harder to read: classes with too many members, long functions, names that
mean two things, and so on (`FIGURES` lists them). Bounds and ratchets stand in `figures.toml`. A ratchet is what a
figure may reach until it is within its bound; it only falls, and `--lower` sets each to what is measured. Only the
standard library is used, and no module of the package is imported, but for `--paths`: it runs training and studies and
counts the files and calls on the way (`tools/run_paths.py`), with the interpreter that runs this.

Exit codes: 0 all figures within their bounds or ratchets, 1 a figure above.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = Path(__file__).with_name("figures.toml")

MEMBERS = 30  # fields and methods of a class
FUNCTION_LINES = 80
MODULE_LINES = 60  # longer modules have a test at the mirrored path
MARKDOWN_COLUMNS = 100

LARGE_CLASSES = {"Reader": "LBANN's message for a reader has that many fields"}

NAMESPACE = "descend.lbann."  # names of other rooms with LBANN's arguments
# A class name stands in one file. These stand in two, each for a reason.
_RULE = "an LBANN message and the published rule it names"
_TRANSFORM = "LBANN gives a layer and a transform of images this name"
HOMONYMS = {
    "AdaGrad": _RULE,
    "Adam": _RULE,
    "HypergradientAdam": _RULE,
    "SGD": _RULE,
    "Cutout": _TRANSFORM,
    "Mixup": "LBANN gives a callback this name, and it is a transform of samples",
    "Constant": "LBANN's layer and a schedule; both are public names",
    "Optimizer": "the description in an experiment and the torch optimizer that it means; both are public names",
    "Scale": "LBANN gives an operator and a transform of images this name",
    "GRU": "LBANN gives a layer and a module this name",
    "LogSoftmax": "LBANN gives a layer and an operator of older files this name",
    "Select": "LBANN gives an operator this name, and LBANN's scripts call it as a layer",
}

# A gap between two words: blanks, a line break with a comment's mark, or the seam of two adjacent strings.
_GAP = r"""(?:\s|#|["']\s*\n\s*[rbf]{0,2}["'])+"""
PHRASES = {
    text: re.compile(r"(?<![A-Za-z])" + _GAP.join(text.split()) + r"(?![A-Za-z])", re.IGNORECASE)
    for text in (
        *("is to be", "are to be", "to be had", "whoever", "told", "weights object", "who takes whose"),
        *("anew", "nobody", "somebody", "whole number", "whole numbers", "asked for an end"),
        *("cut up", "not had", "made already", "begin anew", "mend it", "trained numbers"),
    )
}
PLACES_OF_PHRASES = ("descend", "docs", "tests", "examples", "benchmarks", "*.md")
NOT_TEXT = {".gz", ".binpb", ".npz", ".png", ".jpg", ".safetensors", ".onnx", ".pyc", ".ico"}


@dataclass(frozen=True)
class Figure:
    """One number with the places behind it."""

    count: float
    offenders: Sequence[str] = ()
    unit: str = ""


@dataclass(frozen=True)
class Module:
    """A Python file of the package."""

    path: Path  # relative to the root
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def typing_nodes(self) -> set[ast.AST]:
        """Those below `if TYPE_CHECKING`, which only a type checker reads."""
        guards = [node for node in self.nodes if isinstance(node, ast.If) and _is_typing(node.test)]
        return {below for guard in guards for statement in guard.body for below in ast.walk(statement)}

    @property
    def name(self) -> str:
        """Its dotted name; of an `__init__.py` that of the package."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self.text.count("\n")


@dataclass
class House:
    """The files that the figures are taken from."""

    root: Path = ROOT
    modules: dict[str, Module] = field(init=False)

    def __post_init__(self) -> None:
        files = sorted((self.root / "descend").rglob("*.py"))
        modules = [Module(path.relative_to(self.root), path.read_text()) for path in files]
        self.modules = {module.name: module for module in modules}

    def texts(self, places: Iterable[str]) -> Iterator[tuple[Path, str]]:
        """Every text file below `places`, with its path relative to the root."""
        for place in places:
            found = sorted(self.root.glob(place)) if "*" in place else sorted((self.root / place).rglob("*"))
            for path in found:
                if path.is_file() and path.suffix not in NOT_TEXT:
                    yield path.relative_to(self.root), path.read_text()


def _is_typing(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


# Classes and functions


def members(cls: ast.ClassDef) -> set[str]:
    """Names of the fields, class attributes, attributes set on `self` and methods that a class defines itself."""
    names: set[str] = set()
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            names |= _set_on_self(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {leaf.id for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return names - {"__slots__", "__all__"}


def _set_on_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments:
        return set()
    me = arguments[0].arg
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == me
    }


def _classes(house: House) -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in house.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                yield module, node


def large_classes(house: House) -> Figure:
    """Classes with more than 30 fields and methods."""
    sized = [(len(members(cls)), module, cls) for module, cls in _classes(house) if cls.name not in LARGE_CLASSES]
    found = sorted((row for row in sized if row[0] > MEMBERS), key=lambda row: -row[0])
    return Figure(len(found), [f"{module.path}:{cls.lineno} {cls.name}: {n}" for n, module, cls in found])


def long_functions(house: House) -> Figure:
    """Functions over 80 lines, docstring included."""
    found: list[tuple[int, str]] = []
    for module in house.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append((lines, f"{module.path}:{node.lineno} {node.name}: {lines} lines"))
    return Figure(len(found), [text for _, text in sorted(found, reverse=True)])


def homonyms(house: House) -> Figure:
    """Class names that are defined in two files or more."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for module, cls in _classes(house):
        if not module.name.startswith(NAMESPACE):
            places[cls.name].add(str(module.path))
    found = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1 and name not in HOMONYMS}
    return Figure(len(found), [f"{name}: {', '.join(paths)}" for name, paths in sorted(found.items())])


# Branches of the step on parts that a run may lack


def optional_attributes(house: House, rooms: tuple[str, ...]) -> set[str]:
    """Names of attributes that may be None: annotated so, returned so by a property, or set to None on `self`."""
    names: set[str] = set()
    for module, cls in _classes(house):
        if module.name.startswith(rooms):
            fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
            methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
            names |= {ast.unparse(node.target) for node in fields if _may_be_none(node.annotation)}
            names |= {node.name for node in methods if _is_property(node) and _may_be_none(node.returns)}
            names |= {name for method in methods for name in _none_on_self(method)}
    return names


def _none_on_self(method: ast.FunctionDef) -> Iterator[str]:
    """Attributes of `self` that a method declares optional or sets to None."""
    for node in ast.walk(method):
        if isinstance(node, ast.AnnAssign):
            targets = [node.target] if _may_be_none(node.annotation) else []
        elif isinstance(node, ast.Assign):
            targets = node.targets if _gives_none(node.value) else []
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr


def _is_property(function: ast.FunctionDef) -> bool:
    marks = [mark.id if isinstance(mark, ast.Name) else getattr(mark, "attr", "") for mark in function.decorator_list]
    return bool({"property", "cached_property"} & set(marks))


def _may_be_none(annotation: ast.expr | None) -> bool:
    """Whether `X | None`, `None | X` or `Optional[X]` stands at the top of an annotation."""
    if isinstance(annotation, ast.Constant):
        if isinstance(annotation.value, str):
            return _may_be_none(ast.parse(annotation.value, mode="eval").body)
        return annotation.value is None
    if isinstance(annotation, ast.BinOp):
        return _may_be_none(annotation.left) or _may_be_none(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return ast.unparse(annotation.value).endswith("Optional")
    return False


def _gives_none(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _gives_none(value.body) or _gives_none(value.orelse)
    return isinstance(value, ast.Constant) and value.value is None


def optional_branches(tree: ast.Module, optional: set[str]) -> list[int]:
    """Lines of the tests on attributes that may be None, or on names that such an attribute was given to.

    A test is the condition of `if`, `while`, `assert`, a ternary or a comprehension, or an operand of `and`, `or` and
    `not`. It counts where it asks an optional attribute for its truth or compares one with None.
    """
    aliases = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(_is_optional(leaf, optional, set()) for leaf in _operands(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    lines: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.BoolOp):
            tests = node.values[:-1]  # the last operand decides nothing here
        elif isinstance(node, ast.match_case) and node.guard is not None:
            tests = [node.guard]
        for test in (leaf for condition in tests for leaf in _operands(condition)):
            compared = isinstance(test, ast.Compare) and any(_is_none(side) for side in test.comparators)
            asked = test.left if isinstance(test, ast.Compare) and compared else test
            if _is_optional(asked, optional, aliases):
                lines.append((asked.lineno, asked.col_offset))
    return [line for line, _ in sorted(set(lines))]


def _operands(test: ast.expr) -> list[ast.expr]:
    """What a condition asks, without `and`, `or` and `not`."""
    if isinstance(test, ast.BoolOp):
        return [leaf for value in test.values for leaf in _operands(value)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _operands(test.operand)
    return [test]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_optional(node: ast.expr, optional: set[str], aliases: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in optional
    return isinstance(node, ast.Name) and node.id in aliases


def branches_in_step(house: House) -> Figure:
    """Branches of train/step.py on parts that a run may lack."""
    step = house.modules["descend.train.step"]
    rooms = ("descend.train.", "descend.experiment.", "descend.runtime.", "descend.data.")
    lines, source = optional_branches(step.tree, optional_attributes(house, rooms)), step.text.splitlines()
    return Figure(len(lines), [f"{step.path}:{line} {source[line - 1].strip()}" for line in lines])


# Words


def banned_phrases(house: House) -> Figure:
    """Banned phrases in code, documents, tests and examples."""
    found: list[str] = []
    for path, text in house.texts(PLACES_OF_PHRASES):
        for phrase, pattern in PHRASES.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line} {phrase}: {text.splitlines()[line - 1].strip()[:90]}")
    return Figure(len(found), sorted(found, key=_by_line))


def _by_line(place: str) -> tuple[str, int]:
    path, line = place.split(" ", 1)[0].rsplit(":", 1)
    return path, int(line)


def long_markdown(house: House) -> Figure:
    """Lines of Markdown over 100 columns.

    Rows of tables, code and lines of one word cannot be broken and do not count, nor do reports that a command writes.
    """
    found: list[str] = []
    for path, text in house.texts(("*.md", "docs", "descend", "benchmarks", "examples", "tests")):
        if path.suffix == ".md" and path.name != "report.md":
            found += [f"{path}:{i} {len(line)} columns" for i, line in _prose(text) if len(line) > MARKDOWN_COLUMNS]
    return Figure(len(found), found)


def _prose(text: str) -> Iterator[tuple[int, str]]:
    in_code = False
    for i, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|") and " " in line.strip():
            yield i, line


# Language: docs of STYLE: a summary is a sentence, a name is a noun, an error has one grammar

SUMMARY = re.compile(r"(What|Whose|Of|Those|That of|The same)\b")
# Participles and pronouns that say nothing of the value that they name.
BARE_NAMES = {
    *("one", "found", "own", "given", "known", "held", "made", "kept", "taken", "seen", "shown", "said", "done"),
    *("wanted", "needed", "asked", "listed", "named", "joined", "written", "counted", "gone"),
}
PRIVATE_NOUNS = re.compile(r"\b(texts?|looks?|looked|answers?|lanes?)\b")
PLACES_OF_NOUNS = ("descend.optim.engine.", "descend.optim.compiler.")


def odd_summaries(house: House) -> Figure:
    """Docstrings that begin with What, Whose, Of, Those or The same."""
    found: list[str] = []
    for module in house.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if SUMMARY.match(text):
                    line = getattr(node, "lineno", 1)
                    found.append(f"{module.path}:{line} {text.splitlines()[0]}")
    return Figure(len(found), found)


def bare_names(house: House) -> Figure:
    """Names that are a bare participle or pronoun."""
    found: list[str] = []
    for module in house.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name, line = node.id, node.lineno
            elif isinstance(node, ast.arg):
                name, line = node.arg, node.lineno
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name, line = node.name, node.lineno
            else:
                continue
            if name.strip("_") in BARE_NAMES:
                found.append(f"{module.path}:{line} {name}")
    return Figure(len(found), found)


def odd_errors(house: House) -> Figure:
    """Messages that say `and is Z` in the place of `got Z`."""
    found: list[str] = []
    for module in house.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.JoinedStr):
                for part, value in zip(node.values, node.values[1:], strict=False):
                    text = part.value if isinstance(part, ast.Constant) else ""
                    if isinstance(value, ast.FormattedValue) and re.search(r" and (is|are) $", str(text)):
                        found.append(f"{module.path}:{node.lineno} {ast.unparse(node)[:90]}")
    return Figure(len(found), found)


def private_nouns(house: House) -> Figure:
    """Private nouns (text, look, answers, lane) in engine and compiler."""
    found: list[str] = []
    for module in house.modules.values():
        if module.name.startswith(PLACES_OF_NOUNS):
            for i, line in enumerate(module.text.splitlines(), 1):
                if PRIVATE_NOUNS.search(line.replace("_", " ")):
                    found.append(f"{module.path}:{i} {line.strip()[:90]}")
    return Figure(len(found), found)


# Size and spread


def package_lines(house: House) -> Figure:
    """Lines of the package."""
    return Figure(sum(module.lines for module in house.modules.values()))


def package_files(house: House) -> Figure:
    """Files of the package."""
    return Figure(len(house.modules))


def top_modules(house: House) -> Figure:
    """Modules at the top of the package."""
    found = [str(module.path) for module in house.modules.values() if len(module.path.parts) == 2]
    return Figure(len(found), found)


def with_one_importer(house: House) -> Figure:
    """Files that exactly one other file imports."""
    importers: defaultdict[str, list[str]] = defaultdict(list)
    for name, others in imports(house).items():
        for other in others:
            importers[other].append(name)
    single = {
        name: users[0]
        for name, users in sorted(importers.items())
        if len(users) == 1 and house.modules[name].path.stem != "__init__"
    }
    return Figure(len(single), [f"{house.modules[name].path} <- {user}" for name, user in single.items()])


def files_of_path(path: str) -> Callable[[House], Figure]:
    """A figure of `tools/run_paths.py`: how many files have functions that run."""

    def figure(house: House) -> Figure:
        return Figure(run_path(path)["files"])

    figure.__doc__ = f"Files whose functions run in the path {path!r}."
    return figure


def calls_of_step(path: str) -> Callable[[House], Figure]:
    """A figure of `tools/run_paths.py`: how many functions of the package a step calls."""

    def figure(house: House) -> Figure:
        return Figure(run_path(path)["calls_per_step"])

    figure.__doc__ = f"Calls per step in the path {path!r}."
    return figure


@cache
def run_path(name: str) -> dict[str, int]:
    """What a path gives, run in a process of its own with this interpreter, which needs the package."""
    from tools.run_paths import measured as run

    return run(name)


# Tests at the mirrored path


def twins(path: Path) -> list[Path]:
    """Where the test of a module may stand: `tests/a/test_b.py` for `descend/a/b.py`."""
    folder, stem = Path("tests", *path.parts[1:-1]), path.stem
    if stem == "__init__":
        name = path.parent.name
        return [folder / f"test_{name}.py", folder.parent / f"test_{name}.py", folder / "test_init.py"]
    return [folder / f"test_{stem.strip('_')}.py", folder / f"test_{stem}.py"]


def without_twin(house: House) -> Figure:
    """Modules over 60 lines with a test at the mirrored path."""
    long = [module for module in house.modules.values() if module.lines > MODULE_LINES]
    missing = [module for module in long if not any((house.root / twin).is_file() for twin in twins(module.path))]
    share = 100 * (len(long) - len(missing)) / len(long) if long else 100.0
    missing.sort(key=lambda module: -module.lines)
    return Figure(round(share, 1), [f"{module.path}: {module.lines} lines" for module in missing], unit="%")


# Imports


def imports(house: House, *, typing: bool = False, by_string: bool = True) -> dict[str, set[str]]:
    """Modules of the package that each module imports, in functions too.

    Args:
        house: The files.
        typing: Whether those below `if TYPE_CHECKING` count too.
        by_string: Whether names that are given to `import_module` count too.
    """
    return {
        name: _imported(module, house.modules, typing, by_string) - {name} for name, module in house.modules.items()
    }


def _imported(module: Module, known: dict[str, Module], typing: bool, by_string: bool) -> set[str]:
    found: set[str] = set()
    constants = _text_constants(module.tree)
    for node in module.nodes:
        if node in module.typing_nodes and not typing:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in below}
        elif by_string and isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
            found |= {constants[arg.id] for arg in node.args if isinstance(arg, ast.Name) and arg.id in constants}
    return found & set(known)


def _text_constants(tree: ast.Module) -> dict[str, str]:
    """Names at the top of a module that stand for a text."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _last_name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports, in the end, every other of its group (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def _circle_figure(graph: dict[str, set[str]]) -> Figure:
    groups = sorted(circles(graph), key=len)
    shown = [f"{len(group)} files, such as {' -> '.join(_a_way_round(graph, group))}" for group in groups]
    return Figure(len(groups), shown)


def _a_way_round(graph: dict[str, set[str]], group: Sequence[str]) -> list[str]:
    """A shortest circle within a group."""
    ways = [way for start in group if (way := _way_back(graph, start, set(group)))]
    return min(ways, key=len)


def _way_back(graph: dict[str, set[str]], start: str, group: set[str]) -> list[str]:
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        for other in sorted(graph[way[-1]] & group):
            if other == start:
                return [*way, start]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def runtime_circles(house: House) -> Figure:
    """Circles of imports between files."""
    return _circle_figure(imports(house))


def files_in_circles(house: House) -> Figure:
    """Files that stand in a circle of imports."""
    names = [name for group in circles(imports(house)) for name in group]
    return Figure(len(names), names)


def typing_circles(house: House) -> Figure:
    """Circles of imports, those for the type checker included."""
    return _circle_figure(imports(house, typing=True))


def module_names(house: House) -> Figure:
    """File names that stand in two rooms or more."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in house.modules.values():
        if module.path.stem != "__init__":
            places[module.path.stem].append(str(module.path))
    found = {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}
    return Figure(len(found), [f"{name}: {', '.join(paths)}" for name, paths in found.items()])


# The table


FIGURES: dict[str, Callable[[House], Figure]] = {
    "large_classes": large_classes,
    "long_functions": long_functions,
    "step_branches": branches_in_step,
    "homonyms": homonyms,
    "banned_phrases": banned_phrases,
    "twin_tests": without_twin,
    "import_circles": runtime_circles,
    "files_in_circles": files_in_circles,
    "long_markdown": long_markdown,
    "odd_summaries": odd_summaries,
    "bare_names": bare_names,
    "odd_errors": odd_errors,
    "private_nouns": private_nouns,
    "package_lines": package_lines,
    "package_files": package_files,
    "one_importer": with_one_importer,
    "top_modules": top_modules,
    "typing_circles": typing_circles,
    "module_names": module_names,
}
# These run the package, and are measured where --paths asks for them.
PATHS: dict[str, Callable[[House], Figure]] = {
    "files_of_fit": files_of_path("fit_descend"),
    "files_of_run": files_of_path("run"),
    "files_of_study": files_of_path("study"),
    "calls_per_step": calls_of_step("fit"),
    "calls_per_step_descend": calls_of_step("fit_descend"),
}
AT_LEAST = {"twin_tests"}  # of these more is better


@dataclass(frozen=True)
class Line:
    """A figure beside its bound."""

    name: str
    about: str
    figure: Figure
    bound: float | None
    ratchet: float | None

    def within(self, limit: float | None) -> bool:
        """Whether the figure keeps to a limit; without a limit it does."""
        if limit is None:
            return True
        return self.figure.count >= limit if self.name in AT_LEAST else self.figure.count <= limit

    @property
    def state(self) -> str:
        """`ok`, `ratchet` (above the bound, within what is allowed for now) or `OVER`; `-` without a bound."""
        if self.bound is None and self.ratchet is None:
            return "-"
        if self.bound is not None and self.within(self.bound):
            return "ok"
        return "ratchet" if self.ratchet is not None and self.within(self.ratchet) else "OVER"


def measured(house: House, bounds: Path = BOUNDS, *, paths: bool = False) -> list[Line]:
    """All figures with their bounds and ratchets, those of runs too where `paths` says so."""
    kept = tomllib.loads(bounds.read_text())
    lines: list[Line] = []
    for name, count in {**FIGURES, **(PATHS if paths else {})}.items():
        about = (count.__doc__ or "").split("\n")[0].rstrip(".")
        lines.append(Line(name, about, count(house), kept["bounds"].get(name), kept["ratchets"].get(name)))
    return lines


def table(lines: Sequence[Line], *, verbose: bool = False) -> str:
    """The figures as a table; with the places behind each that is above its bound where `verbose`."""
    width = max(len(line.about) for line in lines)
    rows = [f"{'figure':{width}}  {'is':>7}  {'bound':>7}  {'ratchet':>7}  state"]
    for line in lines:
        sign = ">=" if line.name in AT_LEAST else ""
        bound = "-" if line.bound is None else f"{sign}{line.bound:g}{line.figure.unit}"
        ratchet = "-" if line.ratchet is None else f"{line.ratchet:g}"
        value = f"{line.figure.count:g}{line.figure.unit}"
        rows.append(f"{line.about:{width}}  {value:>7}  {bound:>7}  {ratchet:>7}  {line.state}")
        if verbose and line.state != "ok":
            rows += [f"    {place}" for place in line.figure.offenders]
    return "\n".join(rows)


def lower(lines: Sequence[Line], bounds: Path = BOUNDS) -> None:
    """Set each ratchet to the figure where that is better, and drop those that are within their bound."""
    kept = tomllib.loads(bounds.read_text())
    ratchets: dict[str, float] = dict(kept["ratchets"])
    for line in lines:
        ratchets.pop(line.name, None)
        best = max if line.name in AT_LEAST else min
        if line.ratchet is not None and (line.bound is None or not line.within(line.bound)):
            ratchets[line.name] = best(line.figure.count, line.ratchet)
    head = bounds.read_text().split("[bounds]")[0]
    parts = [
        f"[{part}]\n" + "".join(f"{name} = {value:g}\n" for name, value in values.items())
        for part, values in (("bounds", kept["bounds"]), ("ratchets", ratchets))
    ]
    bounds.write_text(head + "\n".join(parts))


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; see the top of this file."""
    parser = argparse.ArgumentParser(description="Figures of the code's structure, each with a bound.")
    parser.add_argument("--verbose", action="store_true", help="the places behind figures above their bound")
    parser.add_argument("--strict", action="store_true", help="ratchets do not count")
    parser.add_argument("--lower", action="store_true", help="set each ratchet to what is measured")
    parser.add_argument("--only", metavar="FIGURE", choices=[*FIGURES, *PATHS], help="one figure with all its places")
    parser.add_argument("--paths", action="store_true", help="the figures of runs as well, which need the package")
    given = parser.parse_args(words)
    house = House()
    if given.only:
        figure = {**FIGURES, **PATHS}[given.only](house)
        sys.stdout.write("\n".join([*figure.offenders, f"{figure.count:g}{figure.unit}"]) + "\n")
        return 0
    lines = measured(house, paths=given.paths)
    sys.stdout.write(table(lines, verbose=given.verbose) + "\n")
    if given.lower:
        lower(lines)
    wrong = {"OVER", "ratchet"} if given.strict else {"OVER"}
    return int(any(line.state in wrong for line in lines))


if __name__ == "__main__":
    sys.exit(main())
