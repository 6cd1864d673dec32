"""The compiled schema, and what reading and writing ask of a message and its fields.

The descriptor set is data, so one file serves every protobuf runtime of the supported range. It is loaded on first
use into a pool of its own, so nothing is registered in protobuf's global pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["ANY", "PACKAGE", "SCHEMA", "FieldInfo", "MessageInfo", "message_info", "pool"]

PACKAGE: Final = "lbann_data."
SCHEMA: Final = Path(__file__).parents[1] / "schema" / "schema.binpb"
ANY: Final = "google.protobuf.Any"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Int64", "UInt64", "Int32", "UInt32", "Double", "Float", "Bool", "String")
)

_KINDS: Final = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_MESSAGE: "message",
}
_LABEL_REPEATED: Final = 3
RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """The schema's own descriptor pool.

    Raises:
        ConfigurationError: the schema has not been compiled.
    """
    if not SCHEMA.exists():
        raise ConfigurationError(
            f"the compiled schema {SCHEMA} is missing: install the package (pip install .), "
            "or run 'python hatch_build.py' in a checkout (it needs grpcio-tools and hatchling)"
        )
    found = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(SCHEMA.read_bytes()).file:
        found.Add(file)
    return found


@dataclass(frozen=True)
class FieldInfo:
    """What is asked of one field while reading or writing."""

    name: str
    kind: str  # a key of RANGES, or float, double, bool, string, bytes, enum, message
    repeated: bool
    is_map: bool
    oneof: str | None
    descriptor: FieldDescriptor

    @cached_property
    def message(self) -> MessageInfo:
        """The field's message; only for the kind message."""
        return _info(self.descriptor.message_type)

    @cached_property
    def enum(self) -> dict[str, int]:
        """Names and numbers; only for the kind enum."""
        found: Any = self.descriptor.enum_type
        return {value.name: value.number for value in found.values}

    @property
    def wrapped(self) -> bool:
        """Whether this is one of protobuf's wrapped scalars, whose absence differs from zero."""
        return self.kind == "message" and self.message.full_name in WRAPPERS

    @property
    def expected(self) -> str:
        """What an error says was expected."""
        if self.kind == "enum":
            return "one of " + ", ".join(self.enum)
        if self.kind == "message":
            return f"{self.name} {{ ... }}"
        return {"string": "a text in quotes", "bool": "true or false"}.get(self.kind, f"a number ({self.kind})")


class MessageInfo:
    """What is asked of one message while reading or writing.

    Attributes:
        name: Name within the package, such as "Layer.Convolution".
        envelope: Fields of which one holds the content, for a message that is a wrapping around one of several others.
        choice: The oneof of these fields, or None where the content is in a field `parameters`.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.full_name: str = descriptor.full_name
        self.name = self.full_name.removeprefix(PACKAGE)
        self.fields: dict[str, FieldInfo] = {field.name: _field(field) for field in descriptor.fields}
        self.envelope = self._content_fields()
        self.choice: str | None = next((self.fields[name].oneof for name in self.envelope), None)

    def new(self) -> Message:
        """An empty message."""
        return self._class()

    @cached_property
    def _class(self) -> type[Message]:
        return message_factory.GetMessageClass(self.descriptor)

    def _content_fields(self) -> frozenset[str]:
        """The fields of a oneof of messages, or the Any field named `parameters`."""
        choices = {name for name, field in self.fields.items() if field.oneof is not None}
        if choices and all(self.fields[name].kind == "message" for name in choices):
            return frozenset(choices)
        carried = self.fields.get("parameters")
        if carried is not None and carried.kind == "message" and carried.message.full_name == ANY:
            return frozenset(("parameters",))
        return frozenset()


@cache
def _info(descriptor: Descriptor) -> MessageInfo:
    return MessageInfo(descriptor)


def _field(descriptor: FieldDescriptor) -> FieldInfo:
    kind = _KINDS[descriptor.type]
    oneof = descriptor.containing_oneof
    return FieldInfo(
        name=descriptor.name,
        kind=kind,
        repeated=_is_repeated(descriptor),
        is_map=kind == "message" and _is_map_entry(descriptor.message_type),
        oneof=None if oneof is None else oneof.name,
        descriptor=descriptor,
    )


def _is_map_entry(descriptor: Any) -> bool:
    return bool(descriptor.GetOptions().map_entry)


def _is_repeated(descriptor: FieldDescriptor) -> bool:
    # `is_repeated` came with protobuf 6 and `label` goes with 7, so each runtime is asked in its own way.
    asked: Any = getattr(descriptor, "is_repeated", None)
    return bool(asked) if asked is not None else getattr(descriptor, "label", 0) == _LABEL_REPEATED


@cache
def message_info(name: str) -> MessageInfo | None:
    """The message of this name, within the package or by its full name, or None."""
    for full_name in (PACKAGE + name, name):
        try:
            return _info(pool().FindMessageTypeByName(full_name))
        except KeyError:
            continue
    return None
