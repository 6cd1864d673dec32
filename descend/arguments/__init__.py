"""Checks of arguments: each returns a sentence that says what is wrong, or None.

    require(
        check_integer("seed", seed, minimum=0),
        check_number("learn_rate", learn_rate, above=0),
        check_choice("on_nonfinite", on_nonfinite, ("raise", "skip", "allow")),
        where="fit",
    )

raises one ConfigurationError with a line for each problem:

    fit: seed must be an integer >= 0, got 'x'
    fit: learn_rate must be a finite number > 0, got -1.0
    fit: on_nonfinite must be one of 'raise', 'skip', 'allow', got 'rise'; did you mean 'raise'?

An integer is whatever Python calls one (`numbers.Integral`), NumPy's included; True and False are not numbers.
NaN is never a number. Values are shown in at most `SHOWN` characters and on one line, so that no error grows with what
was given.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeGuard

from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from descend.errors import DescendError

__all__ = [
    "SHOWN",
    "called",
    "check_bool",
    "check_choice",
    "check_each",
    "check_instance",
    "check_integer",
    "check_names",
    "check_number",
    "check_path",
    "check_string",
    "collect",
    "is_finite",
    "is_integer",
    "is_number",
    "require",
    "shown",
    "takes_arguments",
    "together",
]

SHOWN = 80  # characters of a value in an error


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of Python or NumPy, and not a bool."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number of Python or NumPy, infinities included, and neither a bool nor NaN.

    An integer past every float is none, since whatever computes with it is in floating point.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or _is_nan(value):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_finite(value: object) -> bool:
    """Whether `value` is a finite number of Python or NumPy that a float can hold, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def shown(value: object) -> str:
    """`value` as an error shows it: its repr on one line, cut off after `SHOWN` characters."""
    try:
        text = " ".join(repr(value).split()) if not isinstance(value, str) else repr(value[: SHOWN + 1])
    except Exception:  # an error about an argument must not end in an error of its repr
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def check_integer(
    name: str,
    value: object,
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    also: Sequence[object] = (),
    remedy: str = "",
) -> str | None:
    """The problem with an argument that must be an integer, such as "seed must be an integer >= 0, got 'x'".

    Args:
        name: What the user calls it.
        value: What was given.
        minimum: The least integer that is allowed.
        maximum: The greatest.
        also: Other values that are allowed, such as `(None,)` or `(None, "auto")`.
        remedy: What to do, added after a colon.
    """
    fits = is_integer(value) and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    if fits or _among(value, also):
        return None
    return _problem(name, "an integer" + _bounds((">=", minimum), ("<=", maximum)), value, also, remedy)


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = True,
    also: Sequence[object] = (),
    remedy: str = "",
) -> str | None:
    """The problem with an argument that must be a real number.

    Args:
        name: What the user calls it.
        value: What was given.
        above: It must be greater than this.
        at_least: It must be this or greater.
        below: It must be less than this.
        at_most: It must be this or less.
        finite: Whether infinities are refused. NaN always is.
        also: Other values that are allowed, such as `(None,)`.
        remedy: What to do, added after a colon.
    """
    if _among(value, also) or (
        is_number(value)
        and not (finite and _is_infinite(value))
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (below is None or value < below)
        and (at_most is None or value <= at_most)
    ):
        return None
    bounded = (above is not None or at_least is not None) and (below is not None or at_most is not None)
    bounds = _bounds((">", above), (">=", at_least), ("<", below), ("<=", at_most))
    return _problem(name, ("a finite number" if finite and not bounded else "a number") + bounds, value, also, remedy)


def check_bool(name: str, value: object, *, also: Sequence[object] = (), remedy: str = "") -> str | None:
    """The problem with an argument that must be True or False; NumPy's are taken, 0 and 1 are not."""
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")):
        return None
    return None if _among(value, also) else _problem(name, "True or False", value, also, remedy)


def check_choice(
    name: str, value: object, options: Iterable[str], *, also: Sequence[object] = (), remedy: str = ""
) -> str | None:
    """The problem with an argument that must be one of some words; names the nearest one where one is close."""
    options = list(options)
    if (isinstance(value, str) and value in options) or _among(value, also):
        return None
    near = nearest(value, options) if isinstance(value, str) else ""
    return _problem(name, "one of " + ", ".join(repr(option) for option in options), value, also, remedy, near)


def check_string(
    name: str,
    value: object,
    *,
    empty: bool = True,
    one_line: bool = False,
    also: Sequence[object] = (),
    remedy: str = "",
) -> str | None:
    """The problem with an argument that must be a string.

    Args:
        name: What the user calls it.
        value: What was given.
        empty: Whether a string without characters other than spaces is allowed.
        one_line: Whether line breaks and other control characters are refused.
        also: Other values that are allowed, such as `(None,)`.
        remedy: What to do, added after a colon.
    """
    if _among(value, also) or (
        isinstance(value, str) and (empty or value.strip()) and not (one_line and _has_control(value))
    ):
        return None
    expected = ("a string" if empty else "a non-empty string") + (" of one line" if one_line else "")
    return _problem(name, expected, value, also, remedy)


def check_path(name: str, value: object, *, also: Sequence[object] = (), remedy: str = "") -> str | None:
    """The problem with an argument that must name a file or a directory."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if (isinstance(path, str) and path and "\0" not in path and _is_encodable(path)) or _among(value, also):
        return None
    return _problem(name, "a str or a Path", value, also, remedy)


def check_instance(
    name: str,
    value: object,
    types: type | tuple[type, ...],
    expected: str = "",
    *,
    also: Sequence[object] = (),
    remedy: str = "",
) -> str | None:
    """The problem with an argument that must be an object of one of some types.

    Args:
        name: What the user calls it.
        value: What was given.
        types: The types that are allowed.
        expected: What an error says was expected, such as "a torch.nn.Module"; the names of the types otherwise.
        also: Other values that are allowed, such as `(None,)`.
        remedy: What to do, added after a colon.
    """
    if isinstance(value, types) or _among(value, also):
        return None
    types = types if isinstance(types, tuple) else (types,)
    return _problem(name, expected or "a " + " or a ".join(one.__name__ for one in types), value, also, remedy)


def takes_arguments(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments by position; one of C may not say it, and is tried."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def called(name: str, expected: str, function: Callable[..., Any], *given: object) -> Any:
    """Call a function that is an argument, and return what it returns.

    Args:
        name: Of the argument.
        expected: What it must be.
        function: The function.
        given: Its own arguments.

    Raises:
        ConfigurationError: the call is refused, as by a function of C; an error within the function stays what it is.
    """
    try:
        return function(*given)
    except Exception as error:  # of whatever kind: the one place that tells a refused call from an error within
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise
        raise ConfigurationError(_problem(name, expected, function, (), str(error))) from error


def check_each(
    name: str, values: object, check: Callable[[str, object], str | None], expected: str = "a list"
) -> list[str]:
    """The problems with an argument that must be a list, and with its entries, called `name[0]`, `name[1]` and so on.

    Args:
        name: What the user calls it.
        values: What was given; a string is not a list.
        check: Gives the problem with an entry, from its name and value.
        expected: What an error says was expected.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return [_problem(name, expected, values, (), "")]
    return [problem for i, value in enumerate(values) if (problem := check(f"{name}[{i}]", value))]


def check_names(what: str, given: Iterable[str], options: Iterable[str]) -> list[str]:
    """The problem with each unknown name: "Adam has no option 'b2'; did you mean 'beta2'? Its options are ...".

    Args:
        what: Whose options they are.
        given: The names that were given.
        options: The names that are known.
    """
    options = list(options)
    listed = ", ".join(options) or "none"
    problems: list[str] = []
    for name in given:
        if name not in options:
            near = nearest(name, options)
            problems.append(
                f"{what} has no option {shown(name)}{near or ';'} {'I' if near else 'i'}ts options are {listed}"
            )
    return problems


def collect(*problems: str | Iterable[str | None] | None) -> list[str]:
    """The problems among what checks returned: sentences, None, or several of them."""
    return [one for problem in problems for one in ([problem] if isinstance(problem, str) else problem or ()) if one]


def require(
    *problems: str | Iterable[str | None] | None,
    where: str = "",
    error: Callable[[list[str]], DescendError] = ConfigurationError,
) -> None:
    """Raise one error with all problems; do nothing where there are none. Within `together` the error waits.

    Args:
        problems: What the checks returned: sentences, None, or several of them.
        where: What the arguments belong to; prefixed to each problem.
        error: The class of the error.

    Raises:
        ConfigurationError: there is at least one problem; or the `error` that was given.
    """
    sentences = [f"{where}: {sentence}" if where else sentence for sentence in collect(*problems)]
    waiting = _WAITING.get()
    if waiting is not None:
        waiting.extend(sentences)
    elif sentences:
        raise error(sentences)


_WAITING: ContextVar[list[str] | None] = ContextVar("waiting", default=None)


@contextmanager
def together(error: Callable[[list[str]], DescendError] = ConfigurationError) -> Generator[None]:
    """Checks by `require` within raise one error at the end, with the problems of all.

    An exception within, such as that of a comparison with a value that was refused before, ends the checks; where there
    were problems before it, these are what is raised. Within another `together` this one adds to it.

    Args:
        error: The class of the error.

    Raises:
        ConfigurationError: there is at least one problem; or the `error` that was given.
    """
    if _WAITING.get() is not None:
        yield
        return
    problems: list[str] = []
    token = _WAITING.set(problems)
    try:
        yield
    except Exception as other:  # of a comparison with a value that was refused already
        if problems:
            raise error([*problems, *getattr(other, "problems", ())]) from None
        raise
    finally:
        _WAITING.reset(token)
    if problems:
        raise error(problems)


def _problem(name: str, expected: str, value: object, also: Sequence[object], remedy: str, near: str = "") -> str:
    allowed = [expected, *(repr(one) for one in also)]
    choice = allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    return f"{name} must be {choice}, got {shown(value)}{near}{f': {remedy}' if remedy else ''}"


def _bounds(*limits: tuple[str, float | None]) -> str:
    stated = [
        f"{sign} {limit:g}" if isinstance(limit, float) else f"{sign} {limit}"
        for sign, limit in limits
        if limit is not None
    ]
    return f" {' and '.join(stated)}" if stated else ""


def _among(value: object, allowed: Sequence[object]) -> bool:
    return any(value is one or (type(value) is type(one) and value == one) for one in allowed)


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _has_control(text: str) -> bool:
    return not text.isprintable()


def _is_nan(value: Any) -> bool:
    return value != value  # works for every Real, also for integers too large for a float


def _is_infinite(value: Any) -> bool:
    return value in (math.inf, -math.inf)
