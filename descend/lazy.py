"""Modules that are imported when they are first used: a process pays for what it uses, not for all that there is.

This module imports nothing of ours.

`lazy_names` gives a package PEP 562's `__getattr__`:

    if TYPE_CHECKING:
        from descend.callbacks.print import Print

    __all__ = ["Print"]
    __getattr__, __dir__ = lazy_names(__name__, {"print": ("Print",)})

A type checker reads the imports; `tests/test_lazy.py` compares them with the table. A module that is named like
what it offers (`runtime/process_group.py` has `process_group`) does not take the place of the name when it is imported.

`instance_check` asks whether a value is of a class without importing it.

The core imports no annex, and some of its names and methods need one: `Model.to_torch` is a method of a graph to its
users and builds torch modules; `descend.optim.from_library` reads other libraries' optimizers. `descend/__init__.py`,
which may import every room, says where these are: `provide` for what a method fetches by `hook`, `offer` for names of a
package, `moved` for modules that had another path.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import TypeIs

__all__ = ["hook", "instance_check", "lazy_names", "moved", "offer", "provide", "registered"]

_OFFERED: dict[str, dict[str, str]] = {}  # by package, where names of it are that an annex has


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
        if name in (annexed := _OFFERED.get(package, {})):
            module, own = annexed[name], name
        elif name in sources:
            module, own = sources[name]
        else:
            raise AttributeError(f"module '{package}' has no attribute '{name}'{hint(name)}")
        value = here[name] = getattr(import_module(module), own)
        return value

    def listed() -> list[str]:
        return sorted({*here, *sources, *_OFFERED.get(package, ())})

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


def offer(package: str, names: Mapping[str, str]) -> None:
    """Let a package have names that an annex defines: its `__getattr__` of `lazy_names` fetches them.

    Args:
        package: Whose names they become, such as "descend.optim".
        names: The module of each, such as {"from_library": "descend.compat"}.
    """
    _OFFERED.setdefault(package, {}).update(names)


_PROVIDED: dict[str, tuple[str, str]] = {}


def provide(name: str, module: str, attribute: str) -> None:
    """Say where something is that a lower room, or the core, cannot import by itself.

    Args:
        name: What `hook` and `registered` are called with.
        module: Its module, imported when it is first needed.
        attribute: Its name there.
    """
    _PROVIDED[name] = (module, attribute)


def hook(name: str) -> Any:
    """The thing that was provided under a name.

    Raises:
        KeyError: there is none, which is a mistake of this package.
    """
    module, attribute = _PROVIDED[name]
    return getattr(import_module(module), attribute)


def registered(name: str) -> Any:
    """The thing that was provided under a name; None where nothing was, or its annex is not installed."""
    if name not in _PROVIDED:
        return None
    module, _ = _PROVIDED[name]
    annex = ".".join(module.split(".")[:2])
    try:
        import_module(annex)
    except ModuleNotFoundError as error:
        if error.name != annex:  # a library that the annex needs is missing, which is no absent annex
            raise
        return None
    return hook(name)


class _MovedModules(MetaPathFinder, Loader):
    """Imports a module by the path that it had before; both paths are one module."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        return ModuleSpec(fullname, self) if self._path_now(fullname) else None

    def exec_module(self, module: Any) -> None:
        """See `Loader`: the module at the new path takes the place of the empty one."""
        sys.modules[module.__name__] = import_module(self._path_now(module.__name__))

    def _path_now(self, name: str) -> str:
        """The path of today; empty where the name is none of the old ones."""
        old = name
        while old and old not in self._paths:
            old = old.rpartition(".")[0]
        return self._paths[old] + name.removeprefix(old) if old else ""


def moved(paths: Mapping[str, str]) -> None:
    """Let modules, and all in them, be imported by their old paths too.

    Args:
        paths: The path of today by the old one, such as {"descend.optim.compat": "descend.compat"}.
    """
    sys.meta_path.insert(0, _MovedModules(paths))  # before a search in the folder of the package at the new path
