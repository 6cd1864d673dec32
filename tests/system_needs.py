"""What of the system some tests need, and the one form in which a test that is skipped says so.

    @needs_compiler                                a mark, as @needs("two processors", count > 1)
    require("the right to mount", allowed)         the same within a test, a fixture or a module
    onnx = library("onnx")                         a Python library, or a skip

Each reason reads "needs WHAT (how to get it)". `make test` counts them at its end, `make fresh` takes no other reason,
and CI runs what was skipped for want of one of Debian's packages once it has installed those.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from launch import cluster

from descend.optim.compiler.cache import compiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

FORM = "needs "


def _reason(what: str, get: str) -> str:
    return f"{FORM}{what} ({get})" if get else f"{FORM}{what}"


def needs(what: str, there: bool, get: str = "") -> pytest.MarkDecorator:
    """A mark that skips a test where something is not there; `get` says how to get it."""
    return pytest.mark.skipif(not there, reason=_reason(what, get))


def require(what: str, there: bool, get: str = "") -> None:
    """Skip the test, or the module, that calls this where something is not there."""
    if not there:
        pytest.skip(_reason(what, get), allow_module_level=True)


def library(name: str, get: str = "") -> ModuleType:
    """A Python library, or a skip of the test or module that calls this; `get` is what to install if not the name."""
    require(f"the Python library {name}", is_installed(name), f"pip install {get or name}")
    return importlib.import_module(name)


def needs_library(name: str, get: str = "") -> pytest.MarkDecorator:
    """A mark for tests that need a Python library."""
    return needs(f"the Python library {name}", is_installed(name), f"pip install {get or name}")


def is_installed(name: str) -> bool:
    """Whether a Python library or a module of one can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def recorded(cases: Sequence[Mapping[str, Any]], folder: Path, variable: str) -> Sequence[Any]:
    """Cases of a record as values of a parameter; where it is missing, one in their place is skipped."""
    missing = needs(f"the record {folder.name}", False, f"set {variable} to its folder")
    return [pytest.param(case, id=case["id"]) for case in cases] or [pytest.param({}, marks=missing, id="none")]


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
IN_BROWSER = ("Chromium", CHROMIUM is not None, "Debian: chromium")

needs_compiler = needs("a C++ compiler", compiler() is not None, "Debian: g++")
COMPILED = pytest.param("compiled", marks=needs_compiler)  # a value of the parameter `runner`
needs_gnu_compiler = needs("g++", shutil.which("g++") is not None, "Debian: g++")
needs_fashion_mnist = needs("Fashion-MNIST", FASHION_MNIST.is_dir(), "Debian: dataset-fashion-mnist")
needs_browser = needs(*IN_BROWSER)
needs_slurm = needs(
    f"a Slurm of its own: {cluster.why_not()}", cluster.why_not() is None, "Debian: slurmctld slurmd slurm-client munge"
)
needs_linux = needs("Linux", sys.platform == "linux")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
