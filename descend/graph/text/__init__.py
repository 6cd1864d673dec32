"""The text form of descriptions, and its binary twin. This folder alone knows Protobuf.

It is generic: it turns any object whose class names its message into that message and back by the names of fields,
given a table of classes, so it knows no layer and no callback.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import TextError, nearest
from descend.files import regular_file
from descend.graph.text.parser import MAX_BYTES, MAX_DEPTH, check_size, most_bytes, parse_text
from descend.graph.text.schema import MessageInfo, message_info, pool
from descend.graph.text.source_map import Parsed, SourceMap
from descend.graph.text.values import to_message, to_value

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Parsed",
    "parse",
    "parse_binary",
    "read",
    "render",
    "render_binary",
    "to_message",
    "to_value",
]


def parse(text: str | bytes, file: str = "<text>", message: str = "LbannPB") -> Parsed:
    """Read a text as a message of the schema.

    Args:
        text: The text, or its bytes in UTF-8.
        file: What errors call the text.
        message: Name of the message within the package.

    Raises:
        TextError: every problem of the text, in its order, each with file:line:column.
    """
    return parse_text(text, file, _known(message))


def parse_binary(data: bytes, file: str = "<binary>", message: str = "LbannPB") -> Parsed:
    """Read the binary form of a message. It has no places, so errors name the file alone.

    Raises:
        TextError: the bytes are not such a message.
    """
    check_size(len(data), file)
    found = _known(message).new()
    try:
        found.ParseFromString(data)
    except Exception as error:  # protobuf's own DecodeError is a different class in each of its implementations
        raise TextError(
            f"{file}: this is not the binary form of a {message}, or it is nested over {MAX_DEPTH} deep: {error}"
        ) from None
    return Parsed(found, SourceMap(file, ""), None)


def read(path: str | Path, message: str = "LbannPB") -> Parsed:
    """Read a file, as binary if its name says protobin, else as text.

    Raises:
        TextError: the file cannot be read, or what is wrong in it.
    """
    path = Path(path)
    try:
        streamed = str(path).startswith("/dev/")  # such as /dev/fd/63, which a shell has for the output of a command
        with (path if streamed else regular_file(path)).open("rb") as file:
            data = file.read(most_bytes() + 1)
        check_size(max(len(data), 0 if streamed else path.stat().st_size), str(path))
    except FileNotFoundError:
        raise TextError(f"{path}: there is no such file{_beside(path)}") from None
    except IsADirectoryError:
        hint = _weights_option(path) or _inside(path)
        raise TextError(f"{path}: this is a directory, and a file of text was expected{hint}") from None
    except OSError as error:
        raise TextError(f"{path}: cannot be read: {error.strerror or error}") from None
    if kind := _OTHER_KINDS.get(path.suffix.lower()):
        raise TextError(f"{path}: this is {kind} by its name, and a prototext was expected{_inside(path.parent)}")
    reader = parse_binary if "protobin" in path.name else parse
    return reader(data, str(path), message)


# Files that are given in the place of a prototext, each line of which would be an error.
_OTHER_KINDS = {
    ".md": "Markdown",
    ".py": "a Python script",
    ".toml": "TOML (a study is run by `descend study run`)",
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".onnx": "an ONNX model (descend.onnx reads it)",
    ".safetensors": "a file of weights (give a prototext, and --weights with the directory of the run)",
    ".html": "HTML",
}


def _weights_option(path: Path) -> str:
    """What to do with the directory of a run, or of one of its checkpoints."""
    if (path / "checkpoints").is_dir() or (path / "manifest.json").is_file():
        return "; it is of a run: give the prototext of its model, and this directory as --weights where that is taken"
    return ""


def _beside(path: Path) -> str:
    """The file of the same folder that may have been meant; the folder, where that is missing too."""
    if not path.parent.is_dir():
        return f", and no folder {path.parent}"
    return nearest(path.name, _texts_in(path.parent))


def _inside(path: Path) -> str:
    return f", such as {path / found[0]}" if (found := _texts_in(path)) else ""


def _texts_in(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir() if "proto" in one.suffix)
    except OSError:  # a folder whose names are not ours to see
        return []


def render(value: Any) -> str:
    """The text of a value or of a protobuf message."""
    from google.protobuf import text_format

    return text_format.MessageToString(
        _message(value),
        descriptor_pool=pool(),
        as_utf8=True,
        use_short_repeated_primitives=True,
        print_unknown_fields=False,
    )


def render_binary(value: Any) -> bytes:
    """The binary form of a value or of a protobuf message; equal values give equal bytes."""
    return _message(value).SerializeToString(deterministic=True)


def _message(value: Any) -> Message:
    return value if hasattr(value, "DESCRIPTOR") else to_message(value)


def _known(name: str) -> MessageInfo:
    info = message_info(name)
    if info is None:
        usual = ("LbannPB", "Model", "DataReader", "Trainer", "Optimizer")
        raise TextError(f"the schema has no message '{name}'{nearest(name, usual)}")
    return info
