"""Experiments as files: prototext, its binary form, and from one to the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.graph import text
from descend.graph.text.schema import message_info
from descend.graph.text.values import set_field

if TYPE_CHECKING:
    import os

    from google.protobuf.message import Message

    from descend.experiment import Experiment

__all__ = ["bin2text", "experiment_message", "generic_load", "save_prototext", "text2bin", "to_experiment"]


def experiment_message(**parts: Any) -> Message:
    """The message of an experiment: trainer, model, data_reader, optimizer, each an object or a message.

    Raises:
        ConfigurationError: a part that an experiment has not, or a value of a wrong type.
    """
    info = message_info("LbannPB")
    assert info is not None
    found = info.new()
    for name, value in parts.items():
        if name not in info.fields:
            raise ConfigurationError(f"an experiment has no part '{name}'{nearest(name, info.fields)}")
        if value is not None:
            set_field(found, "experiment", name, value)
    return found


def to_experiment(trainer: Any, model: Any, data_reader: Any, optimizer: Any) -> Experiment:
    """The same as a value of `descend`, for `descend.run` in this process.

    Args:
        trainer: A trainer, or its message; `model`, `data_reader` and `optimizer` likewise.

    Raises:
        ConfigurationError: a value that has no place in an experiment.
        TextError: everything that this package refuses in it.
    """
    from descend.experiment.text import classes

    message = experiment_message(trainer=trainer, model=model, data_reader=data_reader, optimizer=optimizer)
    return text.to_value(message, classes())


def save_prototext(filename: str | os.PathLike[str], binary: bool = False, **parts: Any) -> None:
    """Write an experiment, or some of its parts, to a file.

    Args:
        filename: The file; replaced if it exists.
        binary: Whether it is Protobuf's binary form.
        parts: trainer, model, data_reader, optimizer: objects with `export_proto`, or messages.

    Raises:
        ConfigurationError: a part that an experiment has not, or a value of a wrong type.
        StorageError: the file cannot be written.
    """
    _write(filename, experiment_message(**parts), binary)


def generic_load(filename: str | os.PathLike[str]) -> Message:
    """The experiment of a file, binary if its name says protobin.

    Raises:
        TextError: every problem of the text, with file:line:column.
    """
    return text.read(Path(filename)).message


def text2bin(input_file: str | os.PathLike[str], output_file: str | os.PathLike[str]) -> None:
    """Write the binary form of a prototext.

    Raises:
        TextError: every problem of the text, with file:line:column.
        StorageError: the file cannot be written.
    """
    data = Path(input_file).read_bytes()
    _write(output_file, text.parse(data, str(input_file)).message, binary=True)


def bin2text(input_file: str | os.PathLike[str], output_file: str | os.PathLike[str]) -> None:
    """Write the prototext of a binary form.

    Raises:
        TextError: the file is none.
        StorageError: the file cannot be written.
    """
    data = Path(input_file).read_bytes()
    _write(output_file, text.parse_binary(data, str(input_file)).message, binary=False)


def _write(filename: str | os.PathLike[str], message: Message, binary: bool) -> None:
    from descend.runtime.run_directory import write_beside

    write_beside(Path(filename), text.render_binary(message) if binary else text.render(message))
