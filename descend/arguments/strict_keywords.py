"""Descriptions and functions whose unknown keywords are errors that name the nearest known one."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from descend.errors import ConfigurationError, DescendError, WrongType, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["StrictKeywords", "also_takes", "canonical_names", "strict_keywords"]

_NOTHING: Mapping[str, str] = {}
_FEW = 12  # options that an error lists beside a better answer
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class StrictKeywords(type):
    """The metaclass of descriptions: an unknown keyword is an error that names the nearest known one.

    A class may say in a mapping `said_instead` what to write instead of keywords that it does not have.

    Raises:
        ConfigurationError: when a class is called with unknown keywords; the error names all of them.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`, for help() and editors; that of `__call__` says nothing."""
        if cls.__init__ is object.__init__:
            return inspect.Signature()
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        return inspect.Signature(parameters)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object."""
        taken = _parameters_of(cls.__init__)
        if kwargs and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            options = [name for name in taken if name not in ("self", "where")]
            _refuse_unknown(cls.__name__, kwargs, options, taken, getattr(cls, "said_instead", _NOTHING))
        try:
            return super().__call__(*args, **kwargs)
        except _FOREIGN as error:
            if isinstance(error, DescendError) or not cls.__module__.startswith("descend."):
                raise
            raise WrongType(_not_taken(cls.__name__, taken, args, kwargs, error)) from error


@lru_cache(maxsize=1024)  # a study makes a schedule for each trial, whose signature takes longer to find
def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def strict_keywords(
    passes_on_to: Callable[..., Any] | None = None, /, **said: str
) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """The same function, whose unknown keywords are errors as those of descriptions.

    Args:
        passes_on_to: The function that gets `**options` of this one, whose keywords are known, too.
        **said: What to write instead of keywords that other libraries have, and values that an error suggests
            for arguments that are missing.
    """

    def wrap(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        own = {name: one for name, one in inspect.signature(function).parameters.items() if one.kind not in _OPEN}
        taken = own if passes_on_to is None else {**own, **inspect.signature(passes_on_to).parameters}

        @wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            _refuse_unknown(function.__name__, cast("Mapping[str, Any]", kwargs), list(taken), taken, said)
            _refuse_missing(function.__name__, args, cast("Mapping[str, Any]", kwargs), own, said)
            return function(*args, **kwargs)

        return checked

    return wrap


def also_takes(
    init: Callable[..., None], *left_out: str
) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """The same `__init__`, which help() and editors show with the parameters of another that it passes `**options` to.

    Args:
        init: The other one, of a base class.
        left_out: Its parameters that are not passed on.
    """

    def show(own: Callable[Given, Returned]) -> Callable[Given, Returned]:
        base = inspect.signature(init).parameters
        named = [one for one in inspect.signature(own).parameters.values() if one.kind not in _OPEN]
        taken = {*left_out, *(one.name for one in named)}
        rest = [one for one in base.values() if one.name not in taken]
        cast("Any", own).__signature__ = inspect.Signature(sorted((*named, *rest), key=lambda one: one.kind))
        return own

    return show


_FOREIGN = (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)  # of values of a wrong kind
_PLAIN: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "Sequence": (list, tuple),
    "Iterable": (list, tuple),
    "Mapping": (dict,),
}


def _not_taken(
    title: str,
    parameters: Mapping[str, inspect.Parameter],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> str:
    """What a class of ours was given where it failed: the options whose values are not what they are declared to be."""
    given = {**dict(zip([name for name in parameters if name != "self"], args, strict=False)), **kwargs}
    wrong: dict[str, Any] = {}
    for name, value in given.items():
        kinds = _PLAIN.get(re.split(r"[\[ |]", str(parameters[name].annotation))[0])
        if kinds and not isinstance(value, kinds):
            wrong[name] = value
    said = [f"{name} must be {parameters[name].annotation}, got {_shown(value)}" for name, value in wrong.items()]
    said = said or [f"got {', '.join(f'{name}={_shown(value)}' for name, value in given.items()) or 'no option'}"]
    return f"{title}: {'; '.join(said)} ({error})"


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else f"a {type(value).__name__}"


_MOST_BITS = 256  # of an integer that is shown


_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _refuse_unknown(
    title: str,
    given: Iterable[str],
    options: list[str],
    taken: Mapping[str, Any],
    said: Mapping[str, str] = _NOTHING,
) -> None:
    if unknown := [name for name in given if name not in taken]:
        raise ConfigurationError([f"{title} has no option '{name}'{_answer(name, options, said)}" for name in unknown])


def _refuse_missing(
    title: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    taken: Mapping[str, inspect.Parameter],
    said: Mapping[str, str],
) -> None:
    by_position = [name for name, one in taken.items() if one.kind is not one.KEYWORD_ONLY][: len(args)]
    needed = [name for name, one in taken.items() if one.default is one.empty]
    if missing := [name for name in needed if name not in kwargs and name not in by_position]:
        raise WrongType(
            [f"{title} needs {name}=" + (f", such as {name}={said[name]}" if name in said else "") for name in missing]
        )


def _answer(name: str, options: list[str], said: Mapping[str, str]) -> str:
    """What to write instead of an unknown option; all options where that is not known, or where they are few."""
    instead = f"; {said[name]}" if name in said else nearest(name, options)
    if instead and len(options) > _FEW:
        return instead
    every = f"its options are {', '.join(options) or 'none'}"
    return f"{instead} {every}" if instead.endswith("?") else f"{instead}; {every}"


def canonical_names(
    title: str,
    given: Mapping[str, Any],
    aliases: Mapping[str, str | tuple[str, ...]],
    error: type[DescendError] = ConfigurationError,
) -> dict[str, Any]:
    """The same keyword arguments under one name each.

    Args:
        title: What takes them, for the error.
        given: Keyword arguments; unknown ones stay as they are.
        aliases: For another name of an option its own name, or its names where the value is a pair, such as
            `{"lr": "learn_rate", "betas": ("beta1", "beta2")}`.
        error: What to raise.

    Raises:
        DescendError: An option is given under two names with different values, or a pair does not have its length.
    """
    found = {name: value for name, value in given.items() if name not in aliases}
    problems: list[str] = []
    for alias in [name for name in given if name in aliases]:
        value, own = given[alias], aliases[alias]
        names = (own,) if isinstance(own, str) else own
        if not isinstance(own, str) and not (isinstance(value, (tuple, list)) and len(cast("Any", value)) == len(own)):
            problems.append(f"{title}: {alias} must hold {len(own)} numbers, ({', '.join(own)}), got {value!r}")
            continue
        values: tuple[Any, ...] = (value,) if isinstance(own, str) else tuple(value)
        for name, one in zip(names, values, strict=True):
            if name in found and found[name] != one:
                problems.append(
                    f"{title} got {alias}={value!r} and {name}={found[name]!r}, which are one setting: give one of them"
                )
            found[name] = one
    if problems:
        raise error(problems)
    return found
