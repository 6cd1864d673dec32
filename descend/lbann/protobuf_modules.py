"""The modules `callbacks_pb2`, `lbann_pb2` and so on: the messages of each file of the schema, made when asked for.

All are classes of the schema's one descriptor pool. The same files are entered into Protobuf's default pool as well,
where `google.protobuf.text_format` looks for the types of packed messages.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from descend.graph.text.schema import SCHEMA, pool
from descend.lbann.core.messages import enumerations

__all__ = ["FILES", "module"]

FILES: Final = (
    "callbacks",
    "data_coordinator",
    "datatype",
    "layers",
    "lbann",
    "metrics",
    "model",
    "objective_functions",
    "operators",
    "optimizers",
    "reader",
    "trainer",
    "training_algorithm",
    "transforms",
    "weights",
)
_OURS: Final = "descend/lbann/"  # before the names of files in the default pool, where others may have a model.proto


@cache
def module(file: str) -> ModuleType:
    """The module of a file of the schema, such as "layers"; also importable as `descend.lbann.layers_pb2`.

    Attributes are its messages, the classes of its enumerations, and their values.
    """
    _enter_into_default_pool()
    name = f"{__package__}.{file}_pb2"
    made = ModuleType(name, f"The messages of {file}.proto, package lbann_data.")
    found: Any = pool().FindFileByName(f"{file}.proto")
    made.__dict__["DESCRIPTOR"] = found
    for message, descriptor in found.message_types_by_name.items():
        made.__dict__[message] = _message_class(descriptor)
    for enum, members in enumerations(file).items():
        made.__dict__[enum] = members
        made.__dict__.update({member.name: int(member) for member in members})
    sys.modules[name] = made
    return made


def _message_class(descriptor: Any) -> Any:
    """The class of a message; its inner messages are attributes, which Protobuf in pure Python leaves out."""
    made: Any = message_factory.GetMessageClass(descriptor)
    for inner in descriptor.nested_types:
        if not hasattr(made, inner.name):
            setattr(made, inner.name, _message_class(inner))
    return made


@cache
def _enter_into_default_pool() -> None:
    for needed in ("any", "wrappers"):
        importlib.import_module(f"google.protobuf.{needed}_pb2")
    default: Any = descriptor_pool.Default()
    for file in descriptor_pb2.FileDescriptorSet.FromString(SCHEMA.read_bytes()).file:
        if file.package != "lbann_data":
            continue
        file.name = _OURS + file.name
        renamed = [name if name.startswith("google/") else _OURS + name for name in file.dependency]
        del file.dependency[:]
        file.dependency.extend(renamed)
        try:
            default.AddSerializedFile(file.SerializeToString())
        except TypeError:  # an installed LBANN has entered its own messages, which then serve
            return
