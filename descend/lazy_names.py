"""Modules that are imported when they are first used: a process pays for what it uses, not for all that there is.

`lazy_names` gives a package PEP 562's `__getattr__`:

    if TYPE_CHECKING:
        from descend.callbacks.print import Print

    __all__ = ["Print"]
    __getattr__, __dir__ = lazy_names(__name__, {"print": ("Print",)})

A type checker reads the imports; `tests/test_lazy_names.py` compares them with the table. A module that is named like
what it offers (`runtime/process_group.py` has `process_group`) does not take the place of the name when it is imported.

`instance_check` asks whether a value is of a class without importing it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import TypeIs

__all__ = ["instance_check", "lazy_names"]


class _Package(ModuleType):
    """A package whose names stay what it offers when modules of the same names are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in vars(self)["__all__"]):
            super().__setattr__(name, value)


def lazy_names(
    package: str, names: Mapping[str, tuple[str, ...]], hint: Callable[[str], str] = lambda name: ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: Its `__name__`.
        names: For each of its modules, by the name within the package, the names that come from it; "check as
            check_experiment" is offered under another name.
    """
    sources: dict[str, tuple[str, str]] = {}
    for module, some in names.items():
        for name in some:
            own, _, offered = name.partition(" as ")
            sources[offered or own] = (f"{package}.{module}", own)
    here = vars(sys.modules[package])
    if sources.keys() & names:
        sys.modules[package].__class__ = _Package

    def fetch(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module '{package}' has no attribute '{name}'{hint(name)}")
        module, own = sources[name]
        value = here[name] = getattr(import_module(module), own)
        return value

    def listed() -> list[str]:
        return sorted({*here, *sources})

    return fetch, listed


def instance_check(module: str, name: str) -> Callable[[object], TypeIs[Any]]:
    """A function that says whether a value is an instance of a class, and does not import the class.

        is_kfac: Callable[[object], TypeIs[KFAC]] = instance_check("descend.train.transforms.kfac", "KFAC")

    Args:
        module: Where the class is defined. As long as it was not imported, nothing is an instance.
        name: Of the class.
    """

    def check(value: object) -> TypeIs[Any]:
        return isinstance(value, getattr(sys.modules.get(module), name, ()))

    return check
