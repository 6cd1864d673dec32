"""The checkpoint of a run: parameters and buffers, and the state of every part by the part's name.

    save    {name: part.state_dict()} for each of `run.stateful_parts()`, tensors apart from plain values
    load    part.load_state_dict(...) for each of them

A new part of a run needs an entry in `Run.stateful_parts` and nothing here. Random numbers and the order of samples are
functions of the seed and the position, so nothing of them is kept. Times are kept beside the checkpoint, so that equal
runs give equal checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.arguments import shown
from descend.errors import DescendError, StorageError, table, warn
from descend.files import regular_file, unescape
from descend.runtime import Snapshot, flatten, unflatten, verify
from descend.runtime.checkpoint import optimizer_tensors_of, read_plain_state, weights_of
from descend.runtime.dtensor import copy_into, from_shard, is_sharded, local_region
from descend.runtime.rows import RESTART, ROWS, RowList, read_rows
from descend.runtime.safetensors_io import Region
from descend.train.module_state import tensors_of
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from descend.runtime.safetensors_io import TensorFiles
    from descend.train.run import Run

__all__ = [
    "LoadedCheckpoint",
    "as_storage_error",
    "capture",
    "check_weights",
    "load",
    "restore",
    "restore_weights",
]

_RESET = "pass weights_only=True (--weights-only) to start over with the weights that fit"


def capture(run: Run) -> Snapshot:
    """The run at this moment, between two steps. All ranks call it together."""
    parts = {name: part.state_dict() for name, part in run.stateful_parts().items()}
    tensors, plain = flatten(parts)
    facts = {"random_seed": run.seed, "settings": dict(run.config.settings)}
    return Snapshot(
        step=run.state.step,
        weights=run.control.evaluated.trained,
        optimizer=tensors,
        state={**facts, "parts": plain},
        times=run.state.times(),
        trained=frozenset(name for name, p in run.parameters.items() if p.requires_grad),
    )


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds, read and not yet given to any part.

    Attributes:
        checkpoint: Its folder.
        weights: Parameters and buffers by name.
        settings: What the run was set to.
        parts: The state of each part by its name; empty in a checkpoint of format 1.
    """

    checkpoint: Path
    weights: Mapping[str, torch.Tensor]
    settings: dict[str, Any]
    parts: dict[str, Any]


def load(checkpoint: Path, run: Run | None = None) -> LoadedCheckpoint:
    """Read a checkpoint.

    Args:
        checkpoint: Its folder.
        run: What is sharded there is read as shards, so that no rank holds whole tensors of it; all ranks of such a run
            call this together. None for whole tensors.

    Raises:
        StorageError: it is damaged, or was not written by this package.
    """
    now = {} if run is None else tensors_of(run.task.module)
    if run is not None and any(map(is_sharded, now.values())):
        run.communicator.on_rank_zero(lambda: verify(checkpoint))  # each rank reads a part of it alone
    else:
        verify(checkpoint)
    files, plain = weights_of(checkpoint), read_plain_state(checkpoint)
    weights = {unescape(name): _read_like(files, name, now.get(unescape(name))) for name in files}
    files = optimizer_tensors_of(checkpoint)
    tensors = {path: _read_like(files, path, now.get(_parameter_of(path))) for path in files}
    with as_storage_error(checkpoint):
        parts: Any = unflatten(plain.get("parts", {}), tensors)  # format 1 has none
        if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in cast("Any", parts).values()):
            raise TypeError(f"parts must be states by name, got {shown(parts)}")
        return LoadedCheckpoint(checkpoint, weights, dict(plain["settings"]), parts)


def _read_like(files: TensorFiles, name: str, tensor: torch.Tensor | None) -> torch.Tensor:
    """A tensor of a checkpoint; only this rank's shard of it, where `tensor` is sharded and of its shape."""
    if tensor is None or not is_sharded(tensor) or files.shape(name) != tuple(tensor.shape):
        return files.read(name)
    return from_shard(files.read(name, Region(*local_region(tensor))), tensor)


def _parameter_of(path: str) -> str:
    """The name of the parameter that an entry of the optimizer's state belongs to; empty for all other tensors."""
    parts = path.split("/")
    return unescape(parts[2]) if parts[:2] == ["optimizer", "weights"] and len(parts) > 3 else ""


class as_storage_error:  # noqa: N801  # used as a word of the `with` statement
    """Any error that the state of a checkpoint leads to is an error about the checkpoint.

    Args:
        checkpoint: Its folder.
        part: Whose state is loaded; None where nothing is changed yet.
        loaded: Parts that have their state already.
    """

    def __init__(self, checkpoint: Path, part: str | None = None, loaded: Sequence[str] = ()) -> None:
        self._checkpoint, self._part, self._loaded = checkpoint, part, loaded

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, DescendError):
            of = f" of '{self._part}'" if self._part else ""
            raise StorageError(
                f"{self._checkpoint} holds a state{of} that descend has not written ({type(error).__name__}: {error}); "
                f"{self._what_was_changed()}"
            ) from error

    def _what_was_changed(self) -> str:
        if self._part is None:
            return "nothing was changed"
        done = f"{', '.join(self._loaded)} had been loaded before it" if self._loaded else "no other part was loaded"
        return f"{done}, so the run is in no usable state: start it again from another checkpoint"


def restore(
    saved: LoadedCheckpoint,
    run: Run,
    keep_options: tuple[str, ...] = (),
    reset_optimizer: bool = False,
    times: Mapping[str, float] | None = None,
    row_seconds: Mapping[tuple[str, int, int], float] | None = None,
) -> None:
    """Bring a run to where a checkpoint was taken. All ranks call it together.

    Args:
        saved: What the checkpoint holds.
        run: What is brought there.
        keep_options: Options of the optimizer that stay as they are now.
        reset_optimizer: Leave the optimizer, and what goes with it, as it is.
        times: The durations that were noted with the checkpoint.
        row_seconds: Length of each epoch or evaluation that has a row, by mode, epoch and step.

    Raises:
        StorageError: the checkpoint is of other weights or another optimizer, or holds a state that was not written by
            this package.
    """
    check_weights(saved, run)
    if not saved.parts:
        raise StorageError(
            f"{saved.checkpoint} is of format 1, whose training state this version does not read; nothing was changed: "
            f"continue the run with descend 0.1, or {_RESET}"
        )
    parts = {
        name: part
        for name, part in run.stateful_parts().items()
        if not (reset_optimizer and part.resets_with_optimizer)
    }
    if "loss" not in saved.parts:  # which has none where the loss had no buffers
        parts.pop("loss", None)
    if missing := [name for name in parts if name not in saved.parts]:
        raise StorageError(
            f"{saved.checkpoint} has no state of '{missing[0]}', a part of this run: another version of descend wrote "
            f"it; nothing was changed: continue the run with that version, or {_RESET}"
        )
    if "optimizer" in parts:
        with as_storage_error(saved.checkpoint):
            for group in saved.parts["optimizer"]["groups"]:
                for option in keep_options:
                    group.pop(option, None)
    if "train" in parts:
        with as_storage_error(saved.checkpoint):
            saved.parts["train"]["history"] = _rows_of(saved, run)
    loaded: list[str] = []
    for name, part in parts.items():
        with as_storage_error(saved.checkpoint, name, loaded):
            part.load_state_dict(saved.parts[name])
        loaded.append(name)
    if reset_optimizer:
        run.state.samples_kept = 0  # their gradients were kept by a transform, which has started over
    with torch.no_grad():
        for name, tensor in tensors_of(run.task.module).items():
            copy_into(tensor, saved.weights[name])
    run.strategy.restored()
    run.state.load_times(times or {}, row_seconds or {})


def _rows_of(saved: LoadedCheckpoint, run: Run) -> list[dict[str, Any]]:
    """The rows of the history at a checkpoint: those of the run itself, or of the `metrics.jsonl` that goes with it.

    Warns:
        UserWarning: they are not there; those that can be read are taken.
    """
    history = saved.parts["train"]["history"]
    if isinstance(history, list):  # until format 3 they stood in the checkpoint
        return cast("list[dict[str, Any]]", history)
    if (own := run.state.history.at(history)) is not None:
        return [*own]
    files = [saved.checkpoint / ROWS, saved.checkpoint.absolute().parents[1] / ROWS]  # beside a copy, and of a run
    found = [[row for row in _read_or_none(file) if row["mode"] != RESTART] for file in files]
    for rows in found:
        if (whole := RowList(rows).at(history)) is not None:
            return whole
    step = saved.parts["train"]["contexts"][Mode.TRAIN.value]["step"]
    kept = [row for row in found[0] or found[1] if row["step"] <= step][: history["rows"]]
    if run.communicator.is_rank_zero:
        warn(
            f"{files[1]} no longer holds the {history['rows']:,} rows that belong to {saved.checkpoint.name}: the "
            f"history of the run begins with the {len(kept):,} that can be read; all else continues as it was"
        )
    return kept


def _read_or_none(file: Path) -> list[dict[str, Any]]:
    try:
        return read_rows(regular_file(file))
    except OSError:
        return []


def restore_weights(saved: LoadedCheckpoint, run: Run) -> None:
    """Take the weights and buffers that fit by name and shape, in the types of now, and nothing else.

    Warns:
        UserWarning: with a table of those that do not fit.

    Raises:
        StorageError: none fits.
    """
    now = tensors_of(run.task.module)
    fitting = [name for name, tensor in now.items() if name in saved.weights and _shaped(saved.weights[name], tensor)]
    rows = [
        (name, _form(now.get(name)), _form(saved.weights.get(name)))
        for name in {**now, **saved.weights}
        if name not in fitting
    ]
    if not fitting:
        raise StorageError(table(f"{saved.checkpoint} has no weights that fit:", rows, "nothing was changed"))
    if rows:
        remedy = "these begin as they are; all others are those of the checkpoint"
        warn("\n".join(table("weights that are not taken over:", rows, remedy)))
    with torch.no_grad():
        for name in fitting:
            copy_into(now[name], saved.weights[name])


def _shaped(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.is_complex() == b.is_complex()


def check_weights(saved: LoadedCheckpoint, run: Run) -> None:
    """Compare names, shapes and types with the module's, all at once.

    Raises:
        StorageError: a table of those that differ.
    """
    now = tensors_of(run.task.module)
    rows = [
        (name, _form(now.get(name)), _form(saved.weights.get(name)))
        for name in {**now, **saved.weights}
        if _form(now.get(name)) != _form(saved.weights.get(name))
    ]
    if rows:
        what = f"{saved.checkpoint} holds other weights than this model; nothing was changed:"
        raise StorageError(table(what, rows, _RESET))


def _form(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
