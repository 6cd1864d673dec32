"""The weights to evaluate and to export, where a rule trains at another point: schedule-free SGD and AdamW.

    training point y    what the parameters hold while training; gradients are taken there
    average x           what the method's guarantees are about; a function of y and of the rule's state

`Optimizer.averaged()` exchanges y for x within a block, `Optimizer.eval()` until `Optimizer.train()`.
Source: Defazio et al. 2024, "The Road Less Scheduled", https://arxiv.org/abs/2405.15682
"""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from descend.errors import RuleError, warn
from descend.optim.engine.step_inputs import TensorUpdate, local, named_entries, template
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import Entry

__all__ = ["EvaluationMode", "averages", "averaging_updates", "saved_averages"]


def averages(rule: Rule) -> bool:
    """Whether the weights to evaluate under a rule are others than those that it trains."""
    return type(rule).averaged is not Rule.averaged


def averaging_updates(
    groups: Sequence[Mapping[str, Any]],
    settings: Sequence[GroupSettings],
    names: Sequence[Sequence[str]],
    state: Mapping[Tensor, Entry],
) -> list[TensorUpdate]:
    """The parameters, updated at least once, whose average is another point than they are."""
    return [
        TensorUpdate(name, i, p, p, common, state[p])
        for i, (group, common, called) in enumerate(zip(groups, settings, names, strict=True))
        if averages(common.rule)
        for p, name in zip(group["params"], called, strict=True)
        if "step" in state.get(p, {})
    ]


@torch.no_grad()
def saved_averages(
    state: Mapping[str, Any], weights: Mapping[str, Tensor], rule_class: Callable[[str], type[Rule] | None]
) -> dict[str, Tensor]:
    """The averages of parameters whose training points are in a checkpoint; nothing for rules without one.

    Args:
        state: The optimizer's state as a checkpoint has it: `groups` with the options and the names of their weights,
            and `weights`, what is remembered of each by its name.
        weights: The training points by name.
        rule_class: The class of a rule by its name; None where it is not known.
    """
    found: dict[str, Tensor] = {}
    for group in state.get("groups", ()):
        kind = rule_class(str(group.get("rule")))
        if kind is None or kind.averaged is Rule.averaged:
            continue
        rule: Rule = kind(**{one.name: group[one.name] for one in fields(cast("Any", kind)) if one.name in group})
        for name in group["weights"]:
            entry, p = state["weights"].get(name, {}), weights.get(name)
            if p is None or "step" not in entry:
                continue
            form = template(rule, p)
            kept = form._replace(**{key: entry[key] for key in named_entries(form)})
            found[name] = rule.averaged(entry.get("master", p), kept).to(p.dtype)
    return found


class EvaluationMode:
    """Whether the parameters hold their averages, and the training point meanwhile.

    Attributes:
        in_block: Within `averaged()`.
        is_on: Between `eval()` and `train()`.
        trained: While it is on, the training point of each parameter.
    """

    def __init__(self) -> None:
        self.in_block = False
        self.is_on = False
        self.trained: dict[Tensor, Tensor] = {}

    def require_training(self, title: str, what: str) -> None:
        """Raise RuleError where the parameters hold averages, naming what cannot be done now."""
        if self.in_block:
            raise RuleError(f"{title}: {what} within averaged(), where the weights are not those that are trained")
        if self.is_on:
            raise RuleError(
                f"{title}: {what} after eval(), while the weights are the averages to evaluate; call the optimizer's "
                "train() first, as model.train()"
            )

    @contextlib.contextmanager
    def block(self, updates: Sequence[TensorUpdate]) -> Generator[None]:
        """Exchange the weights within a `with` block; afterwards they are the same bits as before."""
        trained = _exchange(updates)
        self.in_block = True
        try:
            yield
        finally:
            self.in_block = False
            with torch.no_grad():
                for update in updates:
                    local(update.param.detach()).copy_(trained[update.param])

    def turn_on(self, updates: Sequence[TensorUpdate]) -> None:
        """Exchange the weights until `turn_off`."""
        self.trained = _exchange(updates)
        self.is_on = True

    @torch.no_grad()
    def turn_off(self, updates: Iterable[TensorUpdate], title: str) -> None:
        """Put the training point back. Weights written meanwhile stay, and a warning names them."""
        written: list[str] = []
        for update in updates:
            trained = self.trained.pop(update.param, None)
            if trained is None:
                continue
            p = local(update.param.detach())
            now = p.clone()
            p.copy_(trained)
            if not torch.equal(_average(update).to(p.dtype), now):
                p.copy_(now)
                written.append(update.name)
        for p, trained in self.trained.items():  # of groups that were taken out meanwhile
            local(p.detach()).copy_(trained)
        self.resume({})
        if written:
            more = f" and {len(written) - 5} more" if len(written) > 5 else ""
            warn(
                f"{title}: {', '.join(map(repr, written[:5]))}{more} changed between eval() and train(); training "
                "continues from what was written there, not from the training point before eval()"
            )

    def resume(self, trained: Mapping[Tensor, Tensor]) -> None:
        """Take over a mode that was saved: on, with these training points, or off without any."""
        self.trained = dict(trained)
        self.is_on = bool(trained)


@torch.no_grad()
def _exchange(updates: Iterable[TensorUpdate]) -> dict[Tensor, Tensor]:
    """Put the averages into the parameters.

    Returns:
        What they held before, this rank's part where they are distributed.
    """
    trained: dict[Tensor, Tensor] = {}
    for update in updates:
        p = local(update.param.detach())
        trained[update.param] = p.clone()
        p.copy_(_average(update))
    return trained


def _average(update: TensorUpdate) -> Tensor:
    return update.settings.rule.averaged(update.weights(), update.state())
