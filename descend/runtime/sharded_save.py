"""Saves of sharded tensors: each rank writes its shards into files of its own, and reads them back.

    every rank     shards -> checkpoints/.step-N.shards.part/, flushed and compared
    rank zero      the checkpoint with everything else, and these files in it (`checkpoint.py`)

No rank gathers whole tensors. A save that is asynchronous writes the shards at once and the rest in the background.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import StorageError
from descend.files import escape
from descend.runtime.checkpoint import StagedShards, file_problems
from descend.runtime.checkpoint_manager import RETRY_SECONDS, first_not_finite
from descend.runtime.dtensor import is_sharded, local_shard
from descend.runtime.safetensors_io import own_shards, whole_tensors, write_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from descend.runtime.checkpoint_manager import Snapshot
    from descend.runtime.communicator import Communicator

    _ByKind = Mapping[str, Mapping[str, torch.Tensor]]  # tensors by name, of weights and of the optimizer

__all__ = ["stage_shards"]


def stage_shards(
    snapshot: Snapshot, communicator: Communicator, checkpoints: Path, label: Path | None = None
) -> Snapshot:
    """Write the sharded tensors of a snapshot. All ranks call it together.

    Args:
        snapshot: Of this rank; sharded tensors are DTensors.
        communicator: The ranks.
        checkpoints: The folder of the checkpoints, which all ranks see.
        label: Its path in messages, where that is another.

    Returns:
        The snapshot with files in the place of sharded tensors; the same one where nothing is sharded. Where a rank
        could not write, the snapshot says so, and no checkpoint will be made of it.
    """
    weights, optimizer = snapshot.weights, snapshot.optimizer
    if not any(map(is_sharded, (*weights.values(), *optimizer.values()))):
        return snapshot
    folder = StagedShards.folder_of(checkpoints, snapshot.step)
    of_weights = own_shards(weights)
    tensors = {"weights": {escape(name): x for name, x in of_weights.items()}, "optimizer": own_shards(optimizer)}
    trained = {name: local_shard(x) for name, x in of_weights.items() if name in snapshot.trained}
    sent: dict[str, Any] = {"files": {}, "problems": [], "not_finite": first_not_finite(trained)}
    label_here = folder if label is None else StagedShards.folder_of(label, snapshot.step)
    problem = communicator.on_rank_zero(lambda: _make_empty(folder, label_here))
    if not problem:
        with communicator.status.busy():  # another rank may have less to write
            sent |= _tried(folder, label_here, communicator, tensors)
    of_all: Sequence[dict[str, Any]] = communicator.all_gather_object(sent)
    problems = [problem] if problem else [text for one in of_all for text in one["problems"]]
    files = {name: facts for one in of_all for name, facts in one["files"].items()}
    not_finite = next((one["not_finite"] for one in of_all if one["not_finite"]), None)
    staged = StagedShards(folder, files, not_finite, problems)
    return replace(snapshot, weights=whole_tensors(weights), optimizer=whole_tensors(optimizer), shards=staged)


def _make_empty(folder: Path, label: Path) -> str:
    """Recreate the folder; returns what is wrong, or nothing."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir()
        folder.mkdir()
    except OSError as error:
        return f"cannot make {label}: {error.strerror or error}"
    return ""


def _tried(folder: Path, label: Path, communicator: Communicator, tensors: _ByKind) -> dict[str, Any]:
    """The files of this rank, or after four attempts the problems."""
    problems: list[str] = []
    for pause in (*RETRY_SECONDS, None):
        try:
            return {"files": _write_own(folder, communicator, tensors)}
        except (OSError, StorageError) as error:
            found = error.problems if isinstance(error, StorageError) else [error.strerror or str(error)]
            problems = [f"rank {communicator.rank} cannot write its shards to {label}: {text}" for text in found]
            time.sleep(pause or 0.0)
    return {"problems": problems}


def _write_own(folder: Path, communicator: Communicator, tensors: _ByKind) -> dict[str, Any]:
    """Write the files of this rank and read them back; returns the facts of each by its name in a checkpoint."""
    written: dict[str, Any] = {}
    for kind, some in tensors.items():
        name = StagedShards.name_of(kind, communicator.rank, communicator.world_size)
        path = folder / Path(name).name
        path.unlink(missing_ok=True)  # of an attempt before
        if some:
            written[name] = write_shards(path, some)
            if problems := file_problems(folder, path.name, written[name]):
                raise StorageError(problems)
    return written
