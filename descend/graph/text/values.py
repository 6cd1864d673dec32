"""Values from messages and messages from values, field by field, by their names.

A value is an object whose class says `message: ClassVar[str]`, the message's name within the package, and whose
attributes are named like the message's fields. Classes come as a table, so this module knows none of them.

    repeated field          tuple
    map                     dictionary
    wrapped scalar          the scalar, or None where it is not set
    message                 an object of the class that the table gives for it, or None
    envelope                the content's object; other fields of the envelope are attributes of it too. An envelope is
                            a message around one of several others: a oneof of messages (Layer, Optimizer, Callback,
                            ...), or an Any field named `parameters` (Operator, TrainingAlgorithm)
    Any                     the content's object
    not set                 not passed, so the class's own default, which is zero

A class may say otherwise with two hooks, `from_fields(fields) -> value` (a class method) and `to_fields() -> fields`.
A class with an attribute `where` receives file:line:column of its message.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.unknown_fields import UnknownFieldSet

from descend.errors import ConfigurationError, TextError, nearest
from descend.graph.text.schema import ANY, FieldInfo, MessageInfo, message_info
from descend.graph.text.source_map import Parsed, SourceMap, TextPosition
from descend.machine import gc_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.message import Message

__all__ = ["fields_of", "set_field", "to_message", "to_value"]


def to_value(parsed: Parsed | Message, classes: Mapping[str, type]) -> Any:
    """The value of a message.

    Args:
        parsed: What was read, or a protobuf message.
        classes: For each message's name within the package, the class of its value.

    Raises:
        TextError: messages that have no class, and everything that the classes refuse, each with its place.
    """
    if not isinstance(parsed, Parsed):
        parsed = Parsed(parsed, SourceMap("<message>", ""), None)
    maker = _Maker(parsed.source, classes)
    with gc_paused():
        value = maker.value(parsed.message, parsed.place)
    if maker.problems:
        raise TextError(maker.problems)
    return value


class _Maker:
    """Makes values and gathers what is wrong with them. Messages nest to 100 at most, so recursion is safe."""

    def __init__(self, source: SourceMap, classes: Mapping[str, type]) -> None:
        self.source = source
        self.classes = classes
        self.problems: list[str] = []

    def value(self, message: Message, place: TextPosition | None) -> Any:
        info = _info(message)
        if info.full_name == ANY:
            return self._unpacked(message, place)
        fields = self._fields(message, info, place)
        if info.envelope and info.name not in self.classes:
            return self._content(message, info, fields, place)
        return self._make(info.name, fields, place)

    def _fields(self, message: Message, info: MessageInfo, place: TextPosition | None) -> dict[str, Any]:
        """The fields that are set, but for the content of an envelope without a class of its own."""
        if place is None:
            self._refuse_unknown(message, info)
        bare_envelope = info.envelope if info.name not in self.classes else frozenset[str]()
        places = place.by_field() if place is not None else {}
        return {
            descriptor.name: self._field(info.fields[descriptor.name], value, places.get(descriptor.name, ()))
            for descriptor, value in message.ListFields()
            if descriptor.name not in bare_envelope
        }

    def _field(self, field: FieldInfo, value: Any, places: Iterable[int | TextPosition]) -> Any:
        if field.is_map:
            return {key: _scalar(field.message.fields["value"], entry) for key, entry in value.items()}
        if field.kind != "message":
            return tuple(_scalar(field, entry) for entry in value) if field.repeated else _scalar(field, value)
        if field.wrapped:
            return value.value
        stands = [part if isinstance(part, TextPosition) else None for part in places]
        if field.repeated:
            stands += [None] * (len(value) - len(stands))
            made = [self.value(entry, stand) for entry, stand in zip(value, stands, strict=True)]
            return tuple(one for one in made if one is not None)  # what could not be made is reported
        return self.value(value, stands[0] if stands else None)

    def _content(self, message: Message, info: MessageInfo, fields: dict[str, Any], place: TextPosition | None) -> Any:
        """The value inside an envelope; the envelope's own fields are handed to it."""
        chosen = _chosen(message, info)
        if chosen is None:
            known = ", ".join(sorted(info.envelope)[:12]) + (", ..." if len(info.envelope) > 12 else "")
            self._problem(place, f"this {info.name} {_called(fields)}says nothing of its kind; it needs one of {known}")
            return None
        inner: Message = getattr(message, chosen)
        stand = next((part for name, part in place.parts if name == chosen), None) if place is not None else None
        inner_place = stand if isinstance(stand, TextPosition) else None
        if _info(inner).full_name == ANY:
            unpacked = self._unpack(inner, place)
            if unpacked is None:
                return None
            inner, inner_place = unpacked, _only_part(inner_place)
        inner_info = _info(inner)
        own = self._fields(inner, inner_info, inner_place)
        return self._make(inner_info.name, fields | own, place)

    def _unpacked(self, message: Message, place: TextPosition | None) -> Any:
        inner = self._unpack(message, place)
        return None if inner is None else self.value(inner, _only_part(place))

    def _unpack(self, message: Any, place: TextPosition | None) -> Message | None:
        name = message.type_url.rpartition("/")[2]
        info = message_info(name) if name else None
        if info is None:
            self._problem(place, f"an Any holds '{message.type_url}', which is not a message of the schema")
            return None
        inner = info.new()
        try:
            inner.ParseFromString(message.value)
        except Exception as error:  # protobuf's own DecodeError is a different class in each of its implementations
            self._problem(place, f"an Any of type {info.name} cannot be read: {error}")
            return None
        return inner

    def _make(self, name: str, fields: dict[str, Any], place: TextPosition | None) -> Any:
        cls = self.classes.get(name)
        if cls is None:
            self._problem(place, f"{name} is part of the format and has no use here")
            return None
        where = self._where(place)
        if where is not None and _tells_where(cls):
            fields["where"] = where
        try:
            make = getattr(cls, "from_fields", None)
            return cls(**fields) if make is None else make(fields)
        except ConfigurationError as error:
            self.problems += [
                problem if problem.startswith(self.source.file) else f"{where or self.source.file}: {problem}"
                for problem in error.problems
            ]
            return None

    def _refuse_unknown(self, message: Message, info: MessageInfo) -> None:
        """A binary form may hold fields that the schema does not know, which would be lost without a word."""
        unknown = sorted({field.field_number for field in UnknownFieldSet(message)})
        if unknown:
            numbers = ", ".join(map(str, unknown))
            self.problems.append(
                f"{self.source.file}: {info.name} holds fields that the schema does not know, of number {numbers}"
            )

    def _problem(self, place: TextPosition | None, problem: str) -> None:
        self.problems.append(f"{self._where(place) or self.source.file}: {problem}")

    def _where(self, place: TextPosition | None) -> str | None:
        return None if place is None else self.source.at(place.offset)


def _chosen(message: Message, info: MessageInfo) -> str | None:
    """The field of an envelope that holds its content."""
    if info.choice is not None:
        return message.WhichOneof(info.choice)
    return next((name for name in info.envelope if message.HasField(name)), None)


def _only_part(place: TextPosition | None) -> TextPosition | None:
    part = place.parts[0][1] if place is not None and place.parts else None
    return part if isinstance(part, TextPosition) else None


def _info(message: Message) -> MessageInfo:
    found = message_info(message.DESCRIPTOR.full_name)
    if found is None:
        raise ConfigurationError(f"{message.DESCRIPTOR.full_name} is not a message of the schema")
    return found


def _called(fields: Mapping[str, Any]) -> str:
    return f"'{fields['name']}' " if "name" in fields else ""


def _tells_where(cls: type) -> bool:
    return hasattr(cls, "where")


def _scalar(field: FieldInfo, value: Any) -> Any:
    return _shortest(value) if field.kind == "float" else value


def _shortest(value: float) -> float:
    """The number of fewest digits that is this float32: 0.1, not 0.10000000149011612."""
    if value != value or value in (float("inf"), float("-inf")):
        return value
    packed = struct.pack("f", value)
    return next(short for digits in range(6, 10) if struct.pack("f", short := float(f"{value:.{digits}g}")) == packed)


def to_message(value: Any, envelope: str | None = None) -> Message:
    """The protobuf message of a value.

    Args:
        value: The value.
        envelope: Name of the message around it, such as "Layer"; None for its own alone.

    Raises:
        ConfigurationError: a field holds what its message cannot.
    """
    name = envelope or value.message
    info = message_info(name)
    if info is None:
        raise ConfigurationError(f"{type(value).__name__} names a message '{name}' that is not in the schema")
    message = info.new()
    _put(message, info, value)
    return message


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a value by name, as its message wants them."""
    hook = getattr(value, "to_fields", None)
    if hook is not None:
        return hook()
    stored = (field.name for field in dataclasses.fields(value) if field.init and field.name != "where")
    return {name: getattr(value, name) for name in stored}


def _fill(message: Message, info: MessageInfo, value: Any, fields: dict[str, Any]) -> None:
    """Set the fields of `message`."""
    what = type(value).__name__
    for name, entry in fields.items():
        if name not in info.fields:
            raise ConfigurationError(
                f"{what}.{name} is not a field of the message {info.name}{nearest(name, info.fields)}"
            )
        if entry is not None:
            set_field(message, what, name, entry)


def set_field(message: Message, what: str, name: str, entry: Any) -> None:
    """Set one field of a message, to a value or to a message.

    Args:
        message: The message.
        what: What it describes, for errors.
        name: A field that it has.
        entry: The value; not None.

    Raises:
        ConfigurationError: the value has no place there.
    """
    field = _info(message).fields[name]
    try:
        _set(message, field, entry)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ConfigurationError(f"{what}.{name} is {entry!r}; expected {field.expected} ({error})") from None


def _set(message: Message, field: FieldInfo, entry: Any) -> None:
    target: Any = getattr(message, field.name) if field.repeated or field.kind == "message" else None
    if field.is_map:
        target.update(entry)
    elif field.kind != "message":
        if field.repeated:
            target.extend(entry)
        else:
            setattr(message, field.name, entry)
    elif field.wrapped:
        target.value = entry
        target.SetInParent()
    elif field.repeated:
        for one in entry:
            _put(target.add(), field.message, one)
    else:
        target.SetInParent()
        _put(target, field.message, entry)


def _put(target: Any, info: MessageInfo, value: Any) -> None:
    """Write `value` into a message of the type that its place expects, in an envelope where that is one.

    A value may be such a message itself.
    """
    if (given := getattr(value, "DESCRIPTOR", None)) is not None and info.full_name != ANY:
        if given.full_name != info.full_name:
            raise TypeError(f"a {given.full_name} has no place in a {info.name}")
        target.MergeFromString(value.SerializeToString())
        return
    if info.full_name == ANY:
        target.Pack(value if hasattr(value, "DESCRIPTOR") else to_message(value), deterministic=True)
        return
    inner = message_info(value.message)
    if inner is None or inner is info:
        _fill(target, info, value, fields_of(value))
        return
    chosen = _content_field(info, inner)
    if chosen is None:
        raise TypeError(f"a {value.message} has no place in a {info.name}")
    fields = fields_of(value)
    # A content's field may be called what the envelope calls that content, as in Transform.scale.scale.
    outer = info.fields.keys() - info.envelope
    _fill(target, info, value, {name: entry for name, entry in fields.items() if name in outer})
    own = {name: entry for name, entry in fields.items() if name not in outer}
    content: Any = getattr(target, chosen)
    if info.fields[chosen].message.full_name == ANY:
        packed = inner.new()
        _fill(packed, inner, value, own)
        content.Pack(packed, deterministic=True)
    else:
        content.SetInParent()
        _fill(content, inner, value, own)


def _content_field(info: MessageInfo, inner: MessageInfo) -> str | None:
    """The field of an envelope that holds messages of the type `inner`."""
    for name in info.envelope:
        if info.fields[name].message in (inner, message_info(ANY)):
            return name
    return None
