"""Checkpoints: plain files that are whole or are not there.

    checkpoints/step-N/
        weights.safetensors           every weight and buffer under its own name
        training/optimizer.safetensors     state of the optimizer
        training/state.json           contexts, counts, seed, and the rest of what is not a tensor
        manifest.json                 size and SHA-256 of each file above, written last

A checkpoint is written under another name, flushed, and renamed, so `step-N` is complete whenever it exists. Nothing
here is a pickle, and no byte depends on the time or the machine, so equal runs give equal files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any, cast

from descend.errors import StorageError
from descend.runtime.run_directory import write_beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

__all__ = ["newest_checkpoint", "read_state", "read_weights", "save_checkpoint", "verify"]

FORMAT_VERSION = 1


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write `folder/step-N`.

    Args:
        folder: The checkpoints folder of a run; made if it is not there.
        step: Updates applied so far.
        weights: Weights and buffers by name.
        optimizer: Tensors of the optimizer's state by name.
        state: Everything else, as plain JSON values.

    Returns:
        The checkpoint's folder.

    Raises:
        StorageError: it cannot be written; older checkpoints are untouched and nothing half-made is left.
    """
    from safetensors.torch import save_file

    target, beside = folder / f"step-{step}", folder / f".step-{step}.{os.getpid()}.part"
    aside = folder / f".step-{step}.old"
    try:
        _remove(beside)
        (beside / "training").mkdir(parents=True)
        save_file(_contiguous(weights), beside / "weights.safetensors")
        save_file(_contiguous(optimizer), beside / "training" / "optimizer.safetensors")
        text = json.dumps({"format_version": FORMAT_VERSION, "step": step, **state}, indent=2, sort_keys=True)
        write_beside(beside / "training" / "state.json", text + "\n")
        write_beside(beside / "manifest.json", json.dumps(_manifest(beside), indent=2, sort_keys=True) + "\n")
        for path in beside.rglob("*"):
            _flush(path)
        if target.exists():  # the same step, written before: it stays until the new one is in its place
            _remove(aside)
            target.replace(aside)
        beside.replace(target)
        _flush(folder)
        _remove(aside)
    except OSError as error:
        _remove(beside)
        if aside.exists() and not target.exists():
            aside.replace(target)
        raise StorageError(f"cannot write checkpoint {target}: {error.strerror or error}") from error
    return target


def _contiguous(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _flush(path: Path) -> None:
    """Ask the system to put a file or a folder's entries on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(folder: Path) -> dict[str, dict[str, str | int]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": _digest(p)} for p in files}


def verify(checkpoint: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        StorageError: a file is missing, of another size or of other content; all such files are named.
    """
    try:
        manifest = cast("dict[str, dict[str, str | int]]", json.loads((checkpoint / "manifest.json").read_text()))
    except (OSError, ValueError) as error:
        raise StorageError(f"{checkpoint} has no readable manifest.json, so it cannot be trusted: {error}") from error
    problems: list[str] = []
    for name, expected in manifest.items():
        path = checkpoint / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.stat().st_size != expected["bytes"]:
            problems.append(f"{path} has {path.stat().st_size:,} bytes where {int(expected['bytes']):,} were written")
        elif _digest(path) != expected["sha256"]:
            problems.append(f"{path} does not have the content that was written: its SHA-256 differs")
    if problems:
        raise StorageError([*problems, f"checkpoint {checkpoint} is damaged; use an older one"])


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The weights and buffers of a checkpoint by name, after it has been verified.

    Raises:
        StorageError: the checkpoint is damaged.
    """
    from safetensors.torch import load_file

    verify(checkpoint)
    return load_file(checkpoint / "weights.safetensors")


def read_state(checkpoint: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The rest of a checkpoint: tensors by name, and plain values. Verify it first.

    Raises:
        StorageError: it was written by a newer version of this package.
    """
    from safetensors.torch import load_file

    plain = cast("dict[str, Any]", json.loads((checkpoint / "training" / "state.json").read_text()))
    if plain["format_version"] > FORMAT_VERSION:
        raise StorageError(
            f"{checkpoint} has format {plain['format_version']} and this version reads up to {FORMAT_VERSION}: "
            "install a newer descend"
        )
    return load_file(checkpoint / "training" / "optimizer.safetensors"), plain


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a folder that is whole; None when the folder has none at all.

    Warns:
        UserWarning: for each newer one that is damaged, with what is wrong.

    Raises:
        StorageError: there are checkpoints and every one is damaged.
    """
    for aside in folder.glob(".step-*.old"):  # a process ended while it put a newer one of the same step in its place
        name = aside.name.removeprefix(".").removesuffix(".old")
        if not (folder / name).exists():
            aside.replace(folder / name)
    found = sorted(folder.glob("step-*"), key=_step_of, reverse=True)
    problems: list[str] = []
    for checkpoint in found:
        try:
            verify(checkpoint)
        except StorageError as error:
            problems.extend(error.problems)
            warnings.warn(f"{error.problems[0]}; trying the checkpoint before it", stacklevel=2)
        else:
            return checkpoint
    if problems:
        raise StorageError([*problems, f"no checkpoint in {folder} is whole"])
    return None


def _step_of(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix("step-")
    return int(number) if number.isdecimal() else -1
