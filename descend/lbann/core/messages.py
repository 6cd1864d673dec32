"""Classes made from messages of the schema: keyword arguments are the fields, and an unset field is zero.

Objects are plain: scripts change their attributes as they like, and what they hold is checked when they are made and
again when they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import WrongType
from descend.graph.enums import Exported
from descend.graph.fields import FieldType, refuse_unknown
from descend.graph.text.schema import FieldInfo, MessageInfo, message_info, pool

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["FromMessage", "checked", "enumeration", "enumerations", "message_class", "new_message"]

_BASES: Mapping[str, type] = {
    "bool": bool,
    "string": str,
    "bytes": bytes,
    "float": float,
    "double": float,
    "int32": int,
    "int64": int,
    "uint32": int,
    "uint64": int,
}


class FromMessage(Exported):
    """Base of classes that are made from messages.

    Args:
        fields: The fields of the message; None is the same as leaving one out.

    Raises:
        ConfigurationError: an unknown field, a ValueError as well.
        WrongType: a value of a wrong type, a TypeError as well.
    """

    message: ClassVar[str]

    def __init__(self, **fields: Any) -> None:
        known = self.field_infos()
        refuse_unknown(type(self).__name__, fields, known)
        vars(self).update(dict.fromkeys(known))
        vars(self).update(checked(type(self).__name__, known, fields))

    @classmethod
    def field_infos(cls) -> Mapping[str, FieldInfo]:
        """The fields of the message, by name."""
        return _message(cls.message).fields

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them.

        Raises:
            WrongType: an attribute holds a value of a wrong type.
        """
        known = self.field_infos()
        return checked(type(self).__name__, known, {name: getattr(self, name) for name in known})

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def checked(what: str, known: Mapping[str, FieldInfo], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None, each as its field's type.

    Args:
        what: Whose fields they are, for errors.
        known: The fields by name.
        given: Values by the name of their field.

    Raises:
        WrongType: every value of a wrong type, with what was expected.
    """
    taken: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        try:
            taken[name] = _taken(known[name], value)
        except TypeError:
            problems.append(f"{what}.{name} is {value!r}; expected {known[name].expected}")
    if problems:
        raise WrongType(problems)
    return taken


def _taken(field: FieldInfo, value: Any) -> Any:
    if field.is_map:
        return {key: _scalar(field.message.fields["value"]).take(entry) for key, entry in dict(value).items()}
    if field.kind == "message" and not field.wrapped:
        if not field.repeated:
            return _inner(field, value)
        one = isinstance(value, (Mapping, str)) or not hasattr(value, "__iter__")
        return [_inner(field, entry) for entry in ([value] if one else value)]
    scalar = _scalar(field.message.fields["value"]) if field.wrapped else _scalar(field)
    return scalar._replace(many=field.repeated).take(value)


def _scalar(field: FieldInfo) -> FieldType:
    described: Any = field.descriptor
    return FieldType(enumeration(described.enum_type.full_name) if field.kind == "enum" else _BASES[field.kind])


def _inner(field: FieldInfo, value: Any) -> Any:
    """A message, an object that becomes one, or a dictionary of its fields."""
    if isinstance(value, Mapping):
        return message_class(field.message.name)(**value)
    if hasattr(value, "DESCRIPTOR") or isinstance(getattr(value, "message", None), str):
        return value
    raise TypeError


@cache
def message_class(name: str, base: type[FromMessage] = FromMessage, called: str = "") -> type[FromMessage]:
    """The class of a message.

    Args:
        name: Name of the message within the package, such as "Callback.CallbackPrint".
        base: What it derives from.
        called: Name of the class; the last part of the message's name without one.
    """
    short = called or name.rpartition(".")[2]
    fields = ", ".join(_message(name).fields) or "none"
    about = f"LBANN's message {name}. Fields, zero unless set: {fields}."
    return type(short, (base,), {"message": name, "__doc__": about, "__module__": base.__module__})


def _message(name: str) -> MessageInfo:
    found = message_info(name)
    assert found is not None, f"the schema has no message {name}"
    return found


@cache
def enumeration(full_name: str) -> type[IntEnum]:
    """The class of an enumeration, by its full name in the schema; that of the graph where it has one."""
    from descend.graph import enums

    short = full_name.rpartition(".")[2]
    if short in enums.__all__:
        return getattr(enums, short)
    found = pool().FindEnumTypeByName(full_name)
    made: Any = IntEnum(short, {value.name: value.number for value in found.values})
    return made


@cache
def enumerations(file: str) -> Mapping[str, type[IntEnum]]:
    """The enumerations of a file of the schema that stand outside of messages, by name."""
    found: Any = pool().FindFileByName(f"{file}.proto")
    return {name: enumeration(one.full_name) for name, one in found.enum_types_by_name.items()}


def new_message(name: str) -> Message:
    """An empty message of the schema."""
    return _message(name).new()
