"""All that a run depends on, taken at a moment between two steps and given back.

Weights and buffers are saved under their own names; everything else is here: the optimizer's state by weights' names,
where each mode stands, the pass that is under way with the sums it has gathered, and the rows so far. Random numbers
and the order of samples are functions of the seed and the position, so nothing of them has to be kept. Times are kept
beside the checkpoint, so that equal runs give equal checkpoints.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.data import Batches
from descend.data.map_dataset import SampleReader
from descend.errors import DescendError, StorageError, table
from descend.runtime import Snapshot, flatten, optimizer_state, read_state, read_weights, restore_optimizer, unflatten
from descend.runtime.dtensor import copy_into, full_tensor, is_sharded, shard_like
from descend.train import ExecutionContext, Mode
from descend.train.callback import given_back, kept
from descend.train.param_groups import split_groups
from descend.train.session import EpochProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from descend.train.session import Session

__all__ = ["LoadedCheckpoint", "capture", "load", "restore", "restore_weights", "tensors_of"]

_RESET = "pass weights_only=True (--weights-only) to begin anew with the weights that fit"


def capture(session: Session, facts: Mapping[str, Any]) -> Snapshot:
    """This moment of a session.

    Args:
        session: The run.
        facts: Plain values to keep beside its state.
    """
    under_way = session.epoch_progress
    rows = session.history if under_way is None or under_way.reported else session.history[: under_way.rows_before]
    optimizer = optimizer_state(session.optimizer, _names(session))
    if session.sharding:
        optimizer = session.sharding.gathered(optimizer)
    nested = {
        "optimizer": {**optimizer, "weights": _put_together(optimizer["weights"], session.communicator.is_rank_zero)},
        "contexts": {mode.value: context.state() for mode, context in session.contexts.items()},
        "began": session.began and session.began.state(),
        "under_way": under_way and under_way.state(session.communicator),
        "values": session.values,
        "history": [{name: value for name, value in row.items() if name != "seconds"} for row in rows],
        "asked_to_stop": session.asked_to_stop,
        "callbacks": session.callbacks.state(),
        "modules": _extra_states(session.task.module),
        "micro_batch_size": session.micro_batch_size,
        "skipped_in_a_row": session.skipped_in_a_row,
        "loss_scale": session.numerics.scaler.state_dict() if session.numerics.scaler else None,
        "algorithm": session.algorithm_state,
        "vote": session.vote and session.vote.state(),
        "late": session.late and session.late.state(),
        "replaced_samples": _replaced(session),
    }
    tensors, plain = flatten(nested)
    return Snapshot(
        step=session.contexts[Mode.TRAIN].step,
        weights=_put_together(tensors_of(session), session.communicator.is_rank_zero),
        optimizer=tensors,
        state={**facts, **plain},
        times={
            "seconds": session.seconds + session.seconds_of_step(),
            "pass": under_way.seconds + session.seconds_of_step() if under_way else 0.0,
        },
        trained=frozenset(name for name, p in session.task.module.named_parameters() if p.requires_grad),
    )


def _put_together(values: Any, keep: bool) -> Any:
    """The same with whole tensors in the places of those that are cut up among ranks, on the rank that keeps them."""
    if isinstance(values, dict):
        return {key: _put_together(value, keep) for key, value in cast("dict[str, Any]", values).items()}
    if not is_sharded(values):
        return values
    found = full_tensor(values)
    return found.cpu() if keep else values


def _with_extra_state(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules that keep more than weights and buffers, as `get_extra_state` of torch gives it."""
    for name, part in module.named_modules():
        if type(part).get_extra_state is not torch.nn.Module.get_extra_state:
            yield name, part


def _extra_states(module: torch.nn.Module) -> dict[str, Any]:
    """What such modules keep; what is neither tensors nor plain values is left out, with a warning."""
    states: dict[str, Any] = {}
    for name, part in _with_extra_state(module):
        extra = kept(part.get_extra_state())
        try:
            flatten(extra)
        except StorageError as error:
            warnings.warn(
                f"the extra state of '{name}' ({type(part).__name__}) is not saved, so it begins anew when the run is "
                f"continued: {error}",
                stacklevel=2,
            )
        else:
            states[name] = extra
    return states


def _replaced(session: Session) -> dict[str, list[list[Any]]]:
    """Numbers of the samples of each mode that others stand for, on whatever rank, each with its reason."""
    replaced: dict[str, list[list[Any]]] = {}
    for mode, reader in _readers(session):
        of_all = session.communicator.all_gather_object(list(reader.bad.items()))
        replaced[mode.value] = [list(sample) for sample in sorted({(i, why) for bad in of_all for i, why in bad})]
    return replaced


def _readers(session: Session) -> Iterator[tuple[Mode, SampleReader]]:
    for mode, feed in session.data.items():
        if isinstance(feed, Batches) and isinstance(feed.reader, SampleReader):
            yield mode, feed.reader


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds, read and not yet given to anybody.

    Attributes:
        checkpoint: Its folder.
        weights: Weights and buffers by name.
        settings: What the run was set to.
        state: What `take` had taken.
    """

    checkpoint: Path
    weights: dict[str, torch.Tensor]
    settings: dict[str, Any]
    state: dict[str, Any]


def load(checkpoint: Path) -> LoadedCheckpoint:
    """Read a checkpoint.

    Raises:
        StorageError: it is damaged, or was not written by this package.
    """
    weights, (tensors, plain) = read_weights(checkpoint), read_state(checkpoint)
    with _as_storage_error(checkpoint):
        return LoadedCheckpoint(checkpoint, weights, dict(plain.pop("settings")), unflatten(plain, tensors))


class _as_storage_error:  # noqa: N801  # used as a word of the `with` statement
    """Whatever a state that nobody has written so leads to is an error about the checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, DescendError):
            raise StorageError(
                f"{self._checkpoint} holds a state that descend has not written ({type(error).__name__}: {error}); "
                "nothing was changed"
            ) from error


def restore(
    saved: LoadedCheckpoint,
    session: Session,
    keep_options: tuple[str, ...] = (),
    reset_optimizer: bool = False,
    times: Mapping[str, float] | None = None,
    row_seconds: Mapping[tuple[str, int, int], float] | None = None,
) -> None:
    """Bring a session to where a checkpoint was taken.

    Args:
        saved: What the checkpoint holds.
        session: What is brought there.
        keep_options: Options of the optimizer that stay as they are now.
        reset_optimizer: Leave the optimizer as it is.
        times: The durations that were noted with the checkpoint.
        row_seconds: Length of each pass that has a row, by mode, epoch and step.

    Raises:
        StorageError: the checkpoint is of other weights or another optimizer. Nothing was changed then.
    """
    check_weights(saved, session)
    state, times, row_seconds = saved.state, times or {}, row_seconds or {}
    with _as_storage_error(saved.checkpoint):
        contexts = {Mode(name): ExecutionContext.from_state(context) for name, context in state["contexts"].items()}
        began = state["began"] and ExecutionContext.from_state(state["began"])
        under_way = state["under_way"] and EpochProgress.from_state(state["under_way"], session.communicator)
        history = [_timed(row, row_seconds) for row in state["history"]]
        rest = {name: state[name] for name in ("values", "skipped_in_a_row", "asked_to_stop")}
        size, scale, callbacks = state["micro_batch_size"], state["loss_scale"], dict(state["callbacks"])
        modules = {name: given_back(extra) for name, extra in dict(state.get("modules", {})).items()}
        replaced = {
            mode: {int(i): str(why) for i, why in bad} for mode, bad in state.get("replaced_samples", {}).items()
        }
        algorithm = {} if reset_optimizer else dict(state["algorithm"])
        if not reset_optimizer:
            _group_as_saved(session, state["optimizer"]["groups"])
            optimizer = session.sharding.kept(state["optimizer"]) if session.sharding else state["optimizer"]
            restore_optimizer(session.optimizer, _names(session), _cut_up(optimizer, session), keep_options)
    with torch.no_grad():
        for name, tensor in tensors_of(session).items():
            copy_into(tensor, saved.weights[name])
    for name, module in _with_extra_state(session.task.module):
        if name in modules:
            module.set_extra_state(modules[name])
    session.contexts, session.began, session.epoch_progress, session.history = contexts, began, under_way, history
    session.values, session.skipped_in_a_row = rest["values"], rest["skipped_in_a_row"]
    session.asked_to_stop = rest["asked_to_stop"]
    session.seconds = times.get("seconds", 0.0)
    if under_way:
        under_way.seconds = times.get("pass", 0.0)
    if session.adaptive:
        session.micro_batch_size = size
    if session.numerics.scaler and scale:
        session.numerics.scaler.load_state_dict(scale)
    session.algorithm_state = algorithm
    if session.vote and state.get("vote") and not reset_optimizer:
        session.vote.load_state(state["vote"])
    if session.late and state.get("late"):
        session.late.load_state(state["late"])
    for mode, reader in _readers(session):
        reader.bad = replaced.get(mode.value, {})
    session.callbacks.load_state(callbacks)


def _cut_up(optimizer: Mapping[str, Any], session: Session) -> dict[str, Any]:
    """A saved state of the optimizer with entries cut up among ranks as their weights are."""
    weights: dict[str, Any] = dict(optimizer["weights"])
    for name, p in session.weights.items():
        if is_sharded(p) and name in weights:
            weights[name] = {
                key: shard_like(value, p) if isinstance(value, torch.Tensor) and value.shape == p.shape else value
                for key, value in weights[name].items()
            }
    return {**optimizer, "weights": weights}


def restore_weights(saved: LoadedCheckpoint, session: Session) -> None:
    """Take the weights and buffers that fit by name and shape, in the types of now, and nothing else.

    Warns:
        UserWarning: with a table of those that do not fit.

    Raises:
        StorageError: none fits.
    """
    now = tensors_of(session)
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
        warnings.warn("\n".join(table("weights that are not taken over:", rows, remedy)), stacklevel=2)
    with torch.no_grad():
        for name in fitting:
            copy_into(now[name], saved.weights[name])


def _shaped(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.is_complex() == b.is_complex()


def _timed(row: dict[str, Any], seconds: Mapping[tuple[str, int, int], float]) -> dict[str, Any]:
    """A row with its length, where that is known; rows that callbacks record have none."""
    if "samples" not in row:
        return row
    return {**row, "seconds": seconds.get((row["mode"], row["epoch"], row["step"]), float("nan"))}


def _group_as_saved(session: Session, groups: list[dict[str, Any]]) -> None:
    """Cut the optimizer's groups where a callback had cut them, so that each weights object gets its own options."""
    parameters = dict(session.task.module.named_parameters())
    for group in groups:
        split_groups(session.optimizer, [parameters[name] for name in group["weights"] if name in parameters])


def _names(session: Session) -> dict[torch.Tensor, str]:
    return {p: name for name, p in session.task.module.named_parameters()}


def tensors_of(session: Session) -> dict[str, torch.Tensor]:
    """Weights and buffers by name; a tensor under several names stands under the first."""
    module = session.task.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def check_weights(saved: LoadedCheckpoint, session: Session) -> None:
    """Compare names, shapes and types with the module's, all at once.

    Raises:
        StorageError: a table of those that differ.
    """
    now = tensors_of(session)
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
