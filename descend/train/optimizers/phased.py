"""Several optimizers over parts of one module as one optimizer, of which one makes each update.

The task, which computes the losses, says by `begin` which one; only its parameters require gradients until its step.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from descend.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

__all__ = ["PhasedOptimizer"]


class PhasedOptimizer(torch.optim.Optimizer):
    """The optimizers of the phases of a run; see `descend.Phase`.

    State and groups are those of all of them, one after the other, so that a checkpoint, a learning-rate callback and a
    log see one optimizer.

    Args:
        parts: An optimizer for each phase by its name; no parameter is in two of them.
    """

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        # torch's own constructor would make groups of its own; this makes what else it has, such as hooks.
        self.__setstate__({"parts": dict(parts), "defaults": {}, "_current": next(iter(parts))})

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.parts: dict[str, torch.optim.Optimizer]
        self._current: str
        self._owners = {id(p): part for part in self.parts.values() for p in _parameters(part)}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The groups of all parts."""
        return _Groups(self._owners, [group for part in self.parts.values() for group in part.param_groups])

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The state of all parts by parameter."""
        return {p: entry for part in self.parts.values() for p, entry in part.state.items()}

    def begin(self, name: str) -> None:
        """Let this part make the next update: only its parameters require gradients until then."""
        self._current = name
        for other, part in self.parts.items():
            for p in _parameters(part):
                p.requires_grad_(other == name)

    def release(self) -> None:
        """Let all parameters require gradients, as before."""
        for part in self.parts.values():
            for p in _parameters(part):
                p.requires_grad_(True)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of the parameters of the part that was begun, here or on the ranks that have samples."""
        held = [name for name, part in self.parts.items() if any(p.grad is not None for p in _parameters(part))]
        loss = self.parts[held[0] if len(held) == 1 else self._current].step(closure)
        self.release()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch's; a step that made no update is over, too."""
        self.release()
        for part in self.parts.values():
            part.zero_grad(set_to_none)

    @contextlib.contextmanager
    def averaged(self) -> Generator[None]:
        """See `descend.optim.Optimizer.averaged`; all parts at once."""
        with contextlib.ExitStack() as stack:
            for part in self.parts.values():
                if isinstance(part, Optimizer):
                    stack.enter_context(part.averaged())
            yield

    def regrouped(self) -> None:
        """See `descend.optim.Optimizer.regrouped`."""
        for part in self.parts.values():
            if hasattr(part, "regrouped"):
                part.regrouped()  # pyright: ignore[reportAttributeAccessIssue]  # one of ours

    def state_dict(self) -> dict[str, Any]:
        """The state of all parts in torch's form; parameters are numbered through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for part in self.parts.values():
            own = part.state_dict()
            state.update({number + first: entry for number, entry in own["state"].items()})
            groups += [{**group, "params": [i + first for i in group["params"]]} for group in own["param_groups"]]
            first += len(_parameters(part))
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part what `state_dict` took from it."""
        groups, first = list(state_dict["param_groups"]), 0
        for part in self.parts.values():
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            numbers = range(first, first + len(_parameters(part)))
            part.load_state_dict(
                {
                    "state": {i - first: entry for i, entry in state_dict["state"].items() if i in numbers},
                    "param_groups": [{**group, "params": [i - first for i in group["params"]]} for group in own],
                }
            )
            first = numbers.stop


class _Groups(list[dict[str, Any]]):
    """The groups of all parts; one that is appended, as where a callback splits a group, is of the part it came from.

    Args:
        owners: The part of each parameter by its id.
        groups: The groups.
    """

    def __init__(self, owners: Mapping[int, torch.optim.Optimizer], groups: list[dict[str, Any]]) -> None:
        super().__init__(groups)
        self._owners = owners

    def append(self, group: dict[str, Any]) -> None:
        """See above."""
        super().append(group)
        self._owners[id(group["params"][0])].param_groups.append(group)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
