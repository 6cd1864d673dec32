"""What options of the command line change in an experiment, before values are made of its message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descend.lbann.driver.command_line import CommandLine

__all__ = ["override"]

_ROLES = ("train", "validate", "test")
_TRAINER = ("mini_batch_size", "random_seed", "hydrogen_block_size")
_BY_ROLE = ("data_filedir", "data_filename", "label_filename", "sample_list")


def override(message: Any, line: CommandLine) -> None:
    """Write the values of options over those of a message, where it has the part that they belong to.

    Args:
        message: An LbannPB, changed in place.
        line: The command line.
    """
    if message.HasField("trainer"):
        _override_trainer(message.trainer, line)
    if message.HasField("model") and (epochs := line.get("num_epochs")) is not None:
        message.model.num_epochs = epochs
    for reader in message.data_reader.reader:
        _override_reader(reader, line)


def _override_trainer(trainer: Any, line: CommandLine) -> None:
    for name in _TRAINER:
        if (value := line.get(name)) is not None:
            setattr(trainer, name, value)
    if line.get("serialize_io") or line.get("disable_background_io_activity"):
        trainer.serialize_io = True
    checkpoints = [one.checkpoint for one in trainer.callback if one.HasField("checkpoint")]
    for checkpoint in checkpoints:
        for name in ("checkpoint_dir", "restart_dir"):
            if (folder := line.get(name)) is not None:
                setattr(checkpoint, name, folder)
    if line.get("restart_dir") and not checkpoints:
        trainer.callback.add().checkpoint.restart_dir = line.get("restart_dir")


def _override_reader(reader: Any, line: CommandLine) -> None:
    if (folder := line.get("data_filedir")) is not None:
        reader.data_filedir = folder
    if reader.role in _ROLES:
        for name in _BY_ROLE:
            if (value := line.get(f"{name}_{reader.role}")) is not None:
                setattr(reader, name, value)
    if (fraction := line.get("data_reader_fraction")) is not None:
        reader.fraction_of_data_to_use, reader.absolute_sample_count = fraction, 0
    if (count := line.get("absolute_sample_count")) is not None:
        reader.absolute_sample_count, reader.fraction_of_data_to_use = count, 0.0
    if (workers := line.get("num_io_threads")) is not None and reader.name in ("python", "python_dataset"):
        getattr(reader, reader.name).workers = workers
    if reader.name == "smiles":
        for option, name in (("vocab", "vocab_filename"), ("sequence_length", "sequence_length")):
            if (value := line.get(option)) is not None:
                setattr(reader, name, value)
    if line.get("keep_sample_order"):
        reader.sample_list_keep_order = True
