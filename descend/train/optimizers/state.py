"""The state of an optimizer as a part of a checkpoint, by the names of parameters; sharded as these are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from descend.runtime import optimizer_state, restore_optimizer
from descend.runtime.dtensor import full_tensor, is_sharded, shard_like
from descend.train.optional_classes import is_sharded_optimizer
from descend.train.param_groups import split_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OptimizerState", "unsharded"]


class OptimizerState:
    """Takes and gives back the state of an optimizer, whatever the number of ranks and the order of its groups.

    Args:
        optimizer: Any torch optimizer.
        module: Whose parameters it updates.
    """

    resets_with_optimizer: ClassVar[bool] = True

    def __init__(self, optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
        self._optimizer, self._parameters = optimizer, dict(module.named_parameters())
        self._names: dict[torch.Tensor, str] = {p: name for name, p in self._parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        """See `descend.runtime.optimizer_state`; on ranks other than zero, some entries may be missing."""
        state = optimizer_state(self._optimizer, self._names)
        if is_sharded_optimizer(self._optimizer):
            state = self._optimizer.consolidate(state)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the optimizer a state; groups are split where a callback had split them.

        Raises:
            StorageError: it is of other parameters. Nothing was changed then.
        """
        for group in state_dict["groups"]:
            split_groups(
                self._optimizer, [self._parameters[name] for name in group["weights"] if name in self._parameters]
            )
        if is_sharded_optimizer(self._optimizer):
            state_dict = self._optimizer.local_part(state_dict)
        restore_optimizer(self._optimizer, self._names, self._sharded(state_dict))

    def _sharded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with entries sharded as their parameters are."""
        entries: dict[str, Any] = dict(state["weights"])
        for name, p in self._parameters.items():
            if is_sharded(p) and name in entries:
                entries[name] = {
                    key: shard_like(value, p) if isinstance(value, torch.Tensor) and value.shape == p.shape else value
                    for key, value in entries[name].items()
                }
        return {**state, "weights": entries}


def unsharded(values: Any) -> Any:
    """Nested values with whole tensors, on the CPU of every rank, in the places of sharded ones."""
    if isinstance(values, dict):
        return {key: unsharded(value) for key, value in cast("dict[str, Any]", values).items()}
    return full_tensor(values).cpu() if is_sharded(values) else values
