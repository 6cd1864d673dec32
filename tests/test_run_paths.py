"""Files and calls of a run are counted as they are, without imports and class bodies."""

import threading

import pytest

from tools import run_paths
from tools.run_paths import Calls

MODULE = """
def early():
    pass

early()

class C:
    def method(self):
        return inner()

def inner():
    return [x for x in (1, 2)]
"""


def module(name: str) -> dict[str, object]:
    """A module of the package that no file holds."""
    names: dict[str, object] = {}
    exec(compile(MODULE, run_paths.PACKAGE + name, "exec"), names)
    return names


def test_imports_and_class_bodies_do_not_count():
    calls = Calls()
    with calls.counting():
        module("a.py")
    assert calls.files == 0


def test_functions_count_once_a_call_and_files_once():
    a, b = module("a.py"), module("b.py")
    calls = Calls()
    with calls.counting():
        a["C"]().method()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        a["inner"]()  # pyright: ignore[reportCallIssue]
        thread = threading.Thread(target=b["inner"])  # pyright: ignore[reportArgumentType]
        thread.start()
        thread.join()
    assert calls.files == 2
    assert sum(count for (file, line), count in calls.counts.items() if file.endswith("a.py") and line == 11) == 2


def test_a_path_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)the path unknown failed: .*KeyError: 'unknown'"):
        run_paths.measured("unknown")


@pytest.mark.slow
@pytest.mark.parametrize("name", run_paths.PATHS)
def test_each_path_runs(name: str):
    assert run_paths.measured(name)["files"] > 50
