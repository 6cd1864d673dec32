"""All that a run depends on, taken at a moment between two steps and given back.

Weights and buffers are saved under their own names; everything else is here: the optimizer's state by weights' names,
where each mode stands, the pass that is under way with the sums it has gathered, training time, and the rows so far.
Random numbers and the order of samples are functions of the seed and the position, so nothing of them has to be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from descend.errors import StorageError
from descend.runtime import flatten, optimizer_state, read_state, read_weights, restore_optimizer, unflatten
from descend.train import ExecutionContext, Mode
from descend.train.groups import set_apart
from descend.train.loop import Pass

if TYPE_CHECKING:
    from pathlib import Path

    from descend.train.loop import Session

__all__ = ["restore", "take"]


def take(session: Session) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The session's state beside weights and buffers: tensors by name, and plain values fit for JSON."""
    under_way = session.under_way
    rows = session.history if under_way is None else session.history[: under_way.rows_before]
    nested = {
        "optimizer": optimizer_state(session.optimizer, _names(session)),
        "contexts": {mode.value: context.state() for mode, context in session.contexts.items()},
        "began": session.began and session.began.state(),
        "under_way": under_way and under_way.state(),
        "seconds": session.seconds,
        "values": session.values,
        "history": rows,
        "asked_to_stop": session.asked_to_stop,
        "callbacks": session.callbacks.state(),
        "micro_batch_size": session.micro_batch_size,
        "skipped_in_a_row": session.skipped_in_a_row,
        "loss_scale": session.numerics.scaler.state_dict() if session.numerics.scaler else None,
        "algorithm": session.algorithm_state,
    }
    return flatten(nested)


_PARTS = (
    "optimizer",
    "contexts",
    "began",
    "under_way",
    "seconds",
    "values",
    "history",
    "asked_to_stop",
    "callbacks",
    "micro_batch_size",
    "skipped_in_a_row",
    "loss_scale",
    "algorithm",
)


def restore(
    checkpoint: Path, session: Session, keep_options: tuple[str, ...] = (), fresh_optimizer: bool = False
) -> None:
    """Bring a session to where a checkpoint was taken.

    Args:
        checkpoint: Its folder.
        session: What is brought there.
        keep_options: Options of the optimizer that stay as they are now.
        fresh_optimizer: Leave the optimizer as it is.

    Raises:
        StorageError: the checkpoint is of other weights or another optimizer. Nothing was changed then.
    """
    weights, (tensors, plain) = read_weights(checkpoint), read_state(checkpoint)
    _check_weights(checkpoint, weights, session)
    state = unflatten({key: plain[key] for key in _PARTS if key in plain}, tensors)
    if not fresh_optimizer:
        _group_as_saved(session, state["optimizer"]["groups"])
        restore_optimizer(session.optimizer, _names(session), state["optimizer"], keep_options)
    with torch.no_grad():
        for name, tensor in _tensors(session).items():
            tensor.copy_(weights[name])
    session.contexts = {Mode(name): ExecutionContext.from_state(context) for name, context in state["contexts"].items()}
    session.began = state["began"] and ExecutionContext.from_state(state["began"])
    session.under_way = state["under_way"] and Pass.from_state(state["under_way"])
    session.seconds = state["seconds"]
    session.values = state["values"]
    session.history = state["history"]
    session.skipped_in_a_row = state["skipped_in_a_row"]
    if session.adaptive:
        session.micro_batch_size = state["micro_batch_size"]
    if session.numerics.scaler and state["loss_scale"]:
        session.numerics.scaler.load_state_dict(state["loss_scale"])
    session.asked_to_stop = state["asked_to_stop"]
    session.algorithm_state = {} if fresh_optimizer else state.get("algorithm", {})
    session.callbacks.load_state(state["callbacks"])


def _group_as_saved(session: Session, groups: list[dict[str, Any]]) -> None:
    """Cut the optimizer's groups where a callback had cut them, so that each weights object gets its own options."""
    parameters = dict(session.task.module.named_parameters())
    for group in groups:
        set_apart(session.optimizer, [parameters[name] for name in group["weights"] if name in parameters])


def _names(session: Session) -> dict[torch.Tensor, str]:
    return {p: name for name, p in session.task.module.named_parameters()}


def _tensors(session: Session) -> dict[str, torch.Tensor]:
    module = session.task.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _check_weights(checkpoint: Path, weights: dict[str, torch.Tensor], session: Session) -> None:
    """Compare names, shapes and types with the module's, all at once."""
    now = {name: _form(tensor) for name, tensor in _tensors(session).items()}
    saved = {name: _form(tensor) for name, tensor in weights.items()}
    rows = [
        f"    {name:<40} now: {now.get(name, 'not there'):<20} saved: {saved.get(name, 'not there')}"
        for name in {**now, **saved}
        if now.get(name) != saved.get(name)
    ]
    if rows:
        raise StorageError([f"{checkpoint} holds other weights than this model:", *rows, "nothing was changed"])


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
