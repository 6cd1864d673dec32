"""Runs a module's tests on its mutants, for `tools/mutants.py`.

Importing the package takes longer than most unit tests. So tests are collected once, in a process of their own; each
mutant is a fork of it in which the changed functions have the mutant's code, and runs only the tests that execute the
changed line, the quickest first, until one fails. A change outside functions, or in one that runs while the module is
imported, needs a process that has imported nothing of the package, and all tests of the module.

A fork is killed, and the mutant with it, once it takes four times as long as its tests took before, or once none of its
processes has used the processor for twice as long as its longest test: mutants of code for ranks often wait for a
message that does not come.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType, ModuleType

PASSED, FAILED, NOT_REPLACED = 0, 1, 71
LEAST_SECONDS = 20.0  # a busy machine delays a fork by seconds; four times a test of milliseconds would be too short
LEAST_IDLE_SECONDS = 4.0


@dataclass(frozen=True)
class Change:
    """A mutant, compiled.

    Attributes:
        index: Its number.
        line: Where it is.
        code: The module with the change.
        in_function: Whether it is within a function, so that it takes effect whenever that is called.
    """

    index: int
    line: int
    code: CodeType
    in_function: bool


def within_functions(tree: ast.Module) -> set[int]:
    """The `id`s of all nodes in bodies of functions; defaults and decorators belong to what is around a function."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for part in node.body if isinstance(node.body, list) else [node.body]:
                found |= {id(below) for below in ast.walk(part)}
    return found


def dotted(module: str) -> str:
    """The name by which a file is imported."""
    return ".".join(Path(module).with_suffix("").parts).removesuffix(".__init__")


def survivors(module: str, tests: Sequence[Path], changes: Sequence[Change], jobs: int, root: Path) -> set[int]:
    """Indices of the changes with which the tests pass.

    Args:
        module: The file, relative to the root.
        tests: Its test files.
        changes: What to try.
        jobs: How many forks at a time.
        root: The folder with the package and its tests.

    Raises:
        RuntimeError: The tests fail as they are.
    """
    path = root / module
    found = _collected(path, tests, changes, jobs)
    if found["code"] != PASSED:
        raise RuntimeError(f"the tests of {path} end with {found['code']} before anything is changed: run {tests[0]}")
    _import_all(found["libraries"])
    by_index = {change.index: change for change in changes}

    def act(change: Change) -> Callable[[], int]:
        def run() -> int:
            _be_quiet()
            sys.meta_path.insert(0, _Finder(dotted(module), change.code, path))
            return run_pytest(tests)

        return run

    seconds, longest = found["seconds"] + 5, found["longest"] + 5  # 5 for importing the package
    todo = [Job(index, act(by_index[index]), seconds, longest) for index in found["again"]]
    codes = run_jobs(todo, jobs)
    return set(found["alive"]) | {index for index, code in codes.items() if code == PASSED}


def run_pytest(tests: Sequence[Path], plugins: Sequence[object] = ()) -> int:
    """What pytest ends with."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *map(str, tests)]
    return int(pytest.main(words, plugins=list(plugins)))


# Forks


@dataclass
class Job:
    """Something to do in a fork.

    Attributes:
        key: Its name.
        act: What to do; gives the exit code.
        seconds: How long it should take.
        longest: How long it may do nothing: what its longest test takes.
    """

    key: int
    act: Callable[[], int]
    seconds: float
    longest: float


@dataclass
class _Fork:
    job: Job
    process: int
    began: float = field(default_factory=time.monotonic)
    used: float = 0.0
    last_use: float = field(default_factory=time.monotonic)

    def is_stuck(self, processor_seconds: Mapping[int, float]) -> bool:
        """Whether it takes too long, or waits for something that does not come."""
        now = time.monotonic()
        used = processor_seconds.get(self.process, 0.0)
        if used > self.used + 0.015 or not processor_seconds:
            self.used, self.last_use = used, now
        idle = now - self.last_use > max(LEAST_IDLE_SECONDS, 2 * self.job.longest)
        return idle or now - self.began > LEAST_SECONDS + 4 * self.job.seconds


def run_jobs(todo: Iterable[Job], at_once: int) -> dict[int, int]:
    """The exit code of each job, which runs in a fork; -9 of one that was stuck."""
    left, running, codes = list(todo)[::-1], list[_Fork](), dict[int, int]()
    looked = time.monotonic()
    try:
        while left or running:
            while left and len(running) < at_once:
                job = left.pop()
                running.append(_Fork(job, _fork(job.act)))
            time.sleep(0.01)
            for fork in list(running):
                ended, status = os.waitpid(fork.process, os.WNOHANG)
                if ended:
                    running.remove(fork)
                    _kill_group(fork.process)
                    codes[fork.job.key] = os.waitstatus_to_exitcode(status)
            if time.monotonic() - looked > 0.5:
                looked, used = time.monotonic(), _processor_seconds()
                for fork in running:
                    if fork.is_stuck(used):
                        _kill_group(fork.process)
    finally:
        for fork in running:
            _kill_group(fork.process)
    return codes


def _fork(act: Callable[[], int]) -> int:
    """Start a process, in a group of its own, that ends with what `act` gives."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        code = act()
    finally:
        os._exit(code)


def _kill_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def _processor_seconds() -> dict[int, float]:
    """Processor time of each process group; nothing where the system has no `/proc`."""
    found: Counter[int] = Counter()
    ticks = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rsplit(")", 1)[1].split()  # after the name, which may have spaces
            found[int(words[2])] += sum(map(int, words[11:15])) / ticks  # type: ignore[assignment]
    return dict(found)


def _be_quiet() -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)


# Tests collected once


def _collected(path: Path, tests: Sequence[Path], changes: Sequence[Change], jobs: int) -> dict[str, Any]:
    """What a process found that collects the tests and runs them on each change: see `_Server.result`."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "result.json"

        def act() -> int:
            _be_quiet()
            server = _Server(path, changes, jobs, Path(folder))
            sys.settrace(server.tracer.trace)
            code = run_pytest(tests, [server])
            sys.settrace(None)
            told.write_text(json.dumps(server.result | {"code": server.result["code"] or code}))
            return 0

        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = act()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if not told.is_file():
            return {"code": os.waitstatus_to_exitcode(status)}
        return json.loads(told.read_text())


class _Tracer:
    """Collects the lines of one file that are executed."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = str(path), set[int]()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self._local

    def _local(self, frame: FrameType, event: str, arg: object) -> Any:
        self.lines.add(frame.f_lineno)
        return self._local


class _Server:
    """A plugin of pytest that runs the tests once for each change, where pytest would run them once.

    Attributes:
        result: `code`, that of the tests as they are; `alive`, indices of changes that the tests do not notice;
            `again`, of those that need another process; `seconds` that the tests take, `longest` the longest of them;
            `libraries` that they import.
    """

    def __init__(self, path: Path, changes: Sequence[Change], jobs: int, folder: Path) -> None:
        self.changes, self.jobs, self.folder = changes, jobs, folder
        self.path, self.tracer = path, _Tracer(path)
        self.failed = False
        self.phases: dict[str, set[int]] = {}  # the lines of the present test, by setup, call and teardown
        self.result: dict[str, Any] = {"code": PASSED, "alive": [], "again": [], "libraries": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test failed and what it executed."""
        self.failed = self.failed or report.failed
        self.phases[report.when or ""] = set(self.tracer.lines)
        self.tracer.lines.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests as they are, then with each change."""
        sys.settrace(None)
        if session.testsfailed:
            return None  # files that cannot be collected: pytest says so
        imported = set(self.tracer.lines)
        self.tracer.lines.clear()
        told = self.folder / "baseline.json"
        items = {item.nodeid: item for item in session.items}
        traced = Job(0, lambda: self._baseline(list(items.values()), told), 600.0, 600.0)
        if run_jobs([traced], 1)[0] != PASSED:
            self.result["code"] = FAILED
            return True
        baseline = json.loads(told.read_text())
        sys.settrace(self.tracer.trace)
        _import_all(baseline["modules"])
        sys.settrace(None)
        imported |= self.tracer.lines
        self._try_changes(items, baseline, imported)
        return True

    def _try_changes(self, items: dict[str, pytest.Item], baseline: dict[str, Any], imported: set[int]) -> None:
        seconds: dict[str, float] = baseline["seconds"]
        lines = {name: set(of_test) for name, of_test in baseline["lines"].items()}
        shared = set(baseline["shared"])
        functions = _functions(self.path)
        todo: list[Job] = []
        for change in self.changes:
            names = [name for name in items if change.line in shared or change.line in lines[name]]
            if change.line in imported or not change.in_function:
                self.result["again"].append(change.index)
            elif names:
                names.sort(key=lambda name: seconds[name])
                act = self._act(change, [items[name] for name in names], functions)
                took = [seconds[name] for name in names]
                todo.append(Job(change.index, act, sum(took), max(took)))
            else:
                self.result["alive"].append(change.index)
        for index, code in run_jobs(todo, self.jobs).items():
            if code in (PASSED, NOT_REPLACED):
                self.result["alive" if code == PASSED else "again"].append(index)
        self.result["seconds"], self.result["longest"] = sum(seconds.values()), max(seconds.values(), default=0.0)
        self.result["libraries"] = [name for name in baseline["modules"] if _is_library(name)]

    def _baseline(self, items: Sequence[pytest.Item], told: Path) -> int:
        """Run all tests as they are, and write down what each executes and how long it takes."""
        before = set(sys.modules)
        seconds: dict[str, float] = {}
        lines: dict[str, list[int]] = {}
        shared: set[int] = set()  # fixtures may serve several tests
        threading.settrace(self.tracer.trace)
        sys.settrace(self.tracer.trace)
        for item, following in _with_following(items):
            began = time.monotonic()
            self.phases = {}
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.monotonic() - began
            lines[item.nodeid] = sorted(self.phases.get("call", set()))
            shared |= self.phases.get("setup", set()) | self.phases.get("teardown", set())
            if self.failed:
                return FAILED
        modules = [name for name in sys.modules if name not in before]
        told.write_text(json.dumps({"seconds": seconds, "lines": lines, "shared": sorted(shared), "modules": modules}))
        return PASSED

    def _act(self, change: Change, items: Sequence[pytest.Item], functions: _Functions) -> Callable[[], int]:
        def run() -> int:
            if not _replace(functions, change.code):
                return NOT_REPLACED
            for item, following in _with_following(items):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    return FAILED
            return PASSED

        return run


def _with_following(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _is_library(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file and not name.startswith(("_pytest", "pytest", "descend"))


def _import_all(names: Iterable[str]) -> None:
    """Import what can be imported: some libraries enter names that cannot."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


# The code of a mutant

_Functions = dict[tuple[str, int], list[FunctionType]]


def _functions(path: Path) -> _Functions:
    """Every function that there is of a file, by its name and line."""
    found: _Functions = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == str(path):
            found.setdefault((thing.__code__.co_qualname, thing.__code__.co_firstlineno), []).append(thing)
    return found


def _replace(functions: _Functions, code: CodeType) -> bool:
    """Give functions the code of a mutant; False where it is not clear which is which, or it cannot be done."""
    codes = list(_codes(code))
    names = Counter((one.co_qualname, one.co_firstlineno) for one in codes)
    replaced = 0
    for one in codes:
        name = (one.co_qualname, one.co_firstlineno)
        for function in functions.get(name, []):
            if function.__code__ != one:
                if names[name] > 1:
                    return False
                try:
                    function.__code__ = one
                except ValueError:  # other free variables
                    return False
                replaced += 1
    return replaced > 0


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives one module from code that has been compiled already."""

    def __init__(self, name: str, code: CodeType, path: Path) -> None:
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
