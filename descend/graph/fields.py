"""What fields a description has and which values they take.

Fields are annotated class attributes, and an annotation is one of a few: int, float, bool, str, an enumeration, a
class of ours, each also as `... | None` or `tuple[..., ...]`. A value is brought to its field's type where nothing is
lost (an integer for a float, any iterable or a single value for a tuple, a name for an enumeration) and refused
otherwise.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from descend.errors import ConfigurationError, WrongType, nearest

__all__ = [
    "FieldType",
    "annotation_of",
    "described",
    "described_openly",
    "field_types",
    "refuse_unknown",
    "shows_options",
    "take_all",
    "take_list",
]

_T = TypeVar("_T")


class FieldType(NamedTuple):
    """The values that a field takes."""

    base: type
    many: bool = False
    optional: bool = False

    @property
    def expected(self) -> str:
        """What an error says was expected."""
        one = (
            "one of " + ", ".join(self.base.__members__)
            if issubclass(self.base, IntEnum)
            else _WORDS.get(self.base, self.base.__name__)
        )
        return ("a list of: " if self.many else "") + one + (" or None" if self.optional else "")

    def take(self, value: Any) -> Any:
        """`value` as this type.

        Raises:
            TypeError: it cannot be one.
        """
        if value is None and self.optional:
            return None
        if not self.many:
            return _one(self.base, value)
        if isinstance(value, str) and self.base in (int, float):
            return _numbers_of(self.base, value)
        if isinstance(value, str) or not isinstance(value, Iterable):
            return (_one(self.base, value),)
        return tuple(_one(self.base, entry) for entry in value)


def _numbers_of(base: type, text: str) -> tuple[Any, ...]:
    """The numbers of a text with spaces between, as older scripts have lists: slice_points="0 784 794"."""
    try:
        return tuple(base(word) for word in text.split())
    except ValueError:
        raise TypeError from None


_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}


def _one(base: type, value: Any) -> Any:
    if type(value) is base:
        return value
    take = _TAKE.get(base)
    if take is not None:
        return take(value)
    if issubclass(base, IntEnum):
        return _member(base, value)
    if isinstance(value, base):
        return value
    raise TypeError


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _number(value: Any) -> float:
    # NumPy's scalars and 0-d arrays are numbers too, and so has every number a __float__.
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError
    return float(value)


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise TypeError


def _words(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError


_TAKE: Mapping[type, Callable[[Any], Any]] = {int: _whole, float: _number, bool: _truth, str: _words}


def _member(base: type[IntEnum], value: Any) -> IntEnum:
    try:
        return base[value] if isinstance(value, str) else base(_whole(value))
    except (KeyError, ValueError):
        raise TypeError from None


def _field_type(hint: Any) -> FieldType:
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType) and NoneType in arguments:
        return _field_type(next(one for one in arguments if one is not NoneType))._replace(optional=True)
    if get_origin(hint) is tuple:
        return FieldType(arguments[0], many=True)
    return FieldType(hint)


# Names of annotations that are no fields; their modules import them for the type checker alone.
_TYPING_ONLY = {"Iterable": Iterable, "Iterator": Iterator, "Mapping": Mapping}


@cache
def field_types(cls: type, root: type = object) -> Mapping[str, FieldType]:
    """The fields that `cls` and its bases below `root` declare, in order of declaration from the base up."""
    hints = get_type_hints(cls, localns=_TYPING_ONLY)
    names = dict.fromkeys(
        name
        for base in reversed(cls.__mro__)
        if base is not root and issubclass(base, root)
        for name in get_annotations(base)
    )
    return {
        name: _field_type(hints[name]) for name in names if get_origin(hints[name]) is not ClassVar and name != "where"
    }


def annotation_of(cls: type, name: str) -> str:
    """A field's annotation as it is written."""
    annotations = next(found for base in cls.__mro__ if name in (found := get_annotations(base)))
    return str(annotations[name])


_Init = TypeVar("_Init", bound=Callable[..., None])


def shows_options(init: _Init) -> _Init:
    """An `__init__` whose `**unknown`, which only serves to refuse keywords by name, is not shown by help()."""
    signature = inspect.signature(init)
    kept = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    cast("Any", init).__signature__ = signature.replace(parameters=kept)
    return init


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keyword arguments that are no fields.

    Raises:
        ConfigurationError: there are some; each is named with the nearest field.
    """
    known = tuple(known)
    shown = ", ".join(known) or "none"
    problems = [
        f"{what} has no field '{name}'{nearest(name, known) or ';'} its fields are {shown}"
        for name in given
        if name not in known
    ]
    if problems:
        raise ConfigurationError(problems)


def take_all(what: str, types: Mapping[str, FieldType], values: Mapping[str, Any]) -> dict[str, Any]:
    """Bring values to their fields' types.

    Raises:
        WrongType: a value does not fit; every such field is named with its value and what was expected.
    """
    taken: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in values.items():
        try:
            taken[name] = types[name].take(value)
        except (TypeError, ValueError, OverflowError):  # of other libraries' numbers, and of integers past any float
            problems.append(f"{what}.{name} is {_shown(value)}; expected {types[name].expected}")
    if problems:
        raise WrongType(problems)
    return taken


def take_list(what: str, given: Any, one: type | tuple[type, ...], expected: str, *, every: bool = True) -> list[Any]:
    """Several things of a kind, or a single one, as a list.

    Args:
        what: The field.
        given: Its value.
        one: What a single thing is.
        expected: What an error says was expected.
        every: Check each of several.

    Raises:
        WrongType: it is neither one nor several of these.
    """
    if isinstance(given, one):
        return [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise WrongType(f"{what} is {_shown(given)}; expected {expected}")
    several = list(cast("Iterable[Any]", given))
    if (
        every
        and (wrong := next((i for i, entry in enumerate(several) if not isinstance(entry, one)), None)) is not None
    ):
        raise WrongType(f"{what}[{wrong}] is {_shown(several[wrong])}; expected {expected}")
    return several


def _by_position(what: str, types: Mapping[str, FieldType], given: Mapping[str, Any]) -> list[str]:
    """What to write where a value that was given by position does not fit the field there but a later one."""
    names = list(types)
    for name, value in given.items():
        if _fits(types[name], value):
            continue
        for later in names[names.index(name) + 1 :]:
            if _fits(types[later], value):
                order = f"its fields are {', '.join(names)}, in this order"
                return [f"{order}: name them, as in {what}({later}={_shown(value)})"]
    return []


def _fits(kind: FieldType, value: Any) -> bool:
    try:
        kind.take(value)
    except TypeError:
        return False
    return True


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # of an integer of thousands of digits, or whatever a class of the user's raises
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def described(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass of `cls`; see `described_openly`."""
    return _described(cls, frozen=True)


@dataclass_transform(field_specifiers=(dataclasses.field,))
def described_openly(cls: type[_T]) -> type[_T]:
    """Make a dataclass that refuses unknown keywords and wrong types as the rest of a description does.

    It gets an attribute `where`: file:line:column for a value that came from a text, else None. Two values that
    differ in it alone are equal.

    Raises:
        ConfigurationError: when an object is made, naming every unknown keyword or every value of a wrong type.
    """
    return _described(cls, frozen=False)


def _described(cls: type[_T], frozen: bool) -> type[_T]:
    made: Any = dataclasses.dataclass(frozen=frozen)(cls)
    plain_init = made.__init__
    names = [field.name for field in dataclasses.fields(made)]

    def __init__(self: Any, *values: Any, where: str | None = None, **named: Any) -> None:  # noqa: N807  # it becomes the class's own
        refuse_unknown(cls.__name__, named, names)
        if len(values) > len(names):
            raise ConfigurationError(
                f"{cls.__name__} has {len(names)} fields ({', '.join(names)}) and got {len(values)} values"
            )
        given = dict(zip(names, values, strict=False))
        twice = [name for name in given if name in named]
        if twice:
            raise ConfigurationError(f"{cls.__name__} got '{twice[0]}' twice, by position and by name")
        types = field_types(cls)
        try:
            taken = take_all(cls.__name__, types, given | named)
        except WrongType as error:
            raise WrongType([*error.problems, *_by_position(cls.__name__, types, given)]) from None
        plain_init(self, **taken)
        object.__setattr__(self, "where", where)

    __init__.__doc__ = plain_init.__doc__
    # What help() and editors show; the parameters of `__init__` itself say nothing.
    shown = inspect.signature(plain_init)
    where_parameter = inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    signature: Any = shown.replace(parameters=[*shown.parameters.values(), where_parameter])
    cast("Any", __init__).__signature__ = signature
    made.__init__ = __init__
    made.where = None
    return made
