"""What a user names on the command line: a module, a class in it, and arguments for the class."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["arguments", "classes", "load"]


def load(target: str) -> Any:
    """What `module:Class`, or `module` alone, names. The module is imported, which runs its code.

    Returns:
        A module, or any callable of that name.

    Raises:
        RuleError: There is no such module, or no such name in it.
    """
    module_name, _, name = target.partition(":")
    module = _imported(target, module_name)
    if not name:
        return module
    found = getattr(module, name, None)
    if not callable(found):
        close = nearest(name, [each.__name__ for each in classes(module)])
        raise RuleError(f"module '{module_name}' has no optimizer '{name}'{close}")
    return found


def _imported(target: str, name: str) -> ModuleType:
    """The module, whatever its import may raise."""
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as problem:
        message = f"{target}: {problem}; write module:Class, or a module alone for all of its classes"
    except (Exception, SystemExit) as problem:
        message = f"{target}: importing '{name}' raised {type(problem).__name__}: {problem}"
    raise RuleError(message)


def classes(module: ModuleType) -> list[type[torch.optim.Optimizer]]:
    """Every optimizer class that a module offers, each once, in alphabetical order; not torch's own base."""
    found: dict[type[torch.optim.Optimizer], None] = {}
    for name, value in inspect.getmembers(module, inspect.isclass):
        if issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer and not name.startswith("_"):
            found.setdefault(value)
    return list(found)


def arguments(texts: Iterable[str]) -> dict[str, Any]:
    """`["lr=0.1", "betas=(0.9,0.99)", "mode=fast"]` as keyword arguments: Python's literals, or else plain text.

    Raises:
        RuleError: A text has no "=" in it.
    """
    said: dict[str, Any] = {}
    for text in texts:
        for pair in text.split():
            key, equals, value = pair.partition("=")
            if not equals or not key.isidentifier():
                raise RuleError(f"arguments are written name=value, without spaces, and this is {pair!r}")
            said[key] = _literal(value)
    return said


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
