"""Classes that describe something answer a misspelt keyword with the nearest name they have."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["StrictKeywords", "strict_keywords"]

_NOTHING: Mapping[str, str] = {}
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class StrictKeywords(type):
    """The metaclass of descriptions: a keyword that the class does not take is an error that names the nearest one.

    Raises:
        ConfigurationError: when an object is made with unknown keywords; all of them are named.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object."""
        taken = inspect.signature(cls.__init__).parameters
        if kwargs and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            _refuse_unknown(cls.__name__, kwargs, [name for name in taken if name not in ("self", "where")], taken)
        return super().__call__(*args, **kwargs)


def strict_keywords(
    **said: str,
) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """The same function, which answers a misspelt keyword as descriptions do.

    Args:
        **said: What to write instead of words that others have for it.
    """

    def wrap(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        taken = inspect.signature(function).parameters

        @wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            _refuse_unknown(function.__name__, cast("Mapping[str, Any]", kwargs), list(taken), taken, said)
            return function(*args, **kwargs)

        return checked

    return wrap


def _refuse_unknown(
    title: str,
    given: Iterable[str],
    options: list[str],
    taken: Mapping[str, Any],
    said: Mapping[str, str] = _NOTHING,
) -> None:
    if unknown := [name for name in given if name not in taken]:
        shown = ", ".join(options) or "none"
        instead = {name: f"; {words};" for name, words in said.items()}
        raise ConfigurationError(
            [
                f"{title} has no option '{name}'{instead.get(name) or nearest(name, options) or ';'} its options are "
                f"{shown}"
                for name in unknown
            ]
        )
