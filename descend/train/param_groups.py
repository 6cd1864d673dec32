"""Options of an optimizer per parameter: groups are split so that parameters with other options have their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

__all__ = [
    "current_learning_rates",
    "exchange_parameters",
    "group_learning_rates",
    "options_of",
    "set_each",
    "set_option",
    "split_groups",
]

_BETAS = ("beta1", "beta2")
_SHOWN_GROUPS = 32


def split_groups(optimizer: torch.optim.Optimizer, weights: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
    """The groups that hold `weights` and nothing else; groups that hold others as well are split in two."""
    wanted = {id(p) for p in weights}
    was_split = False
    for group in list(optimizer.param_groups):
        inside = [id(p) in wanted for p in group["params"]]
        if any(inside) and not all(inside):
            optimizer.param_groups.append(_split(group, inside))
            was_split = True
    if was_split and hasattr(optimizer, "regrouped"):
        optimizer.regrouped()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # our own optimizers
    return [group for group in optimizer.param_groups if group["params"] and id(group["params"][0]) in wanted]


def _split(group: dict[str, Any], inside: list[bool]) -> dict[str, Any]:
    """Move the marked parameters out of `group`; returns them as a group with the same options."""
    other = dict(group)
    for key in ("params", "param_names"):
        if key in group:
            members = list(zip(group[key], inside, strict=True))
            other[key] = [member for member, taken in members if taken]
            group[key] = [member for member, taken in members if not taken]
    return other


def exchange_parameters(
    optimizer: torch.optim.Optimizer,
    before: Mapping[str, torch.Tensor],
    now: Mapping[str, torch.Tensor],
    beside: Mapping[str, str],
) -> None:
    """Give an optimizer the parameters that a module has now; those that are new begin without state.

    Args:
        optimizer: The optimizer.
        before: The module's parameters before, by name.
        now: Those of now. One that has the name of another takes its place in its group.
        beside: For names that are new: the name of the parameter whose group they join, behind it.
    """
    names = {id(p): name for name, p in before.items()}
    added: dict[str, list[str]] = {}
    for name in now:
        if name not in before:
            added.setdefault(beside[name], []).append(name)
    for group in optimizer.param_groups:
        members = [names[id(p)] for p in group["params"]]
        members = [each for name in members for each in (name, *added.get(name, ())) if each in now]
        group["params"] = [now[name] for name in members]
        if "param_names" in group:
            group["param_names"] = members
    kept = {id(p) for p in now.values()}
    for p in before.values():
        if id(p) not in kept:
            optimizer.state.pop(p, None)
    if hasattr(optimizer, "regrouped"):
        optimizer.regrouped()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # our own optimizers


def set_option(optimizer: torch.optim.Optimizer, weights: Iterable[torch.Tensor], option: str, value: Any) -> None:
    """Set an option such as "lr" for `weights`; all other parameters keep their value."""
    for group in split_groups(optimizer, weights):
        _store(group, option, value)


def set_each(optimizer: torch.optim.Optimizer, values: Mapping[torch.Tensor, Any], option: str) -> None:
    """Set an option of each of these parameters to its own value."""
    groups = _single(optimizer)
    if any(id(p) not in groups for p in values):
        for p in values:
            split_groups(optimizer, [p])
        groups = _single(optimizer)
    for p, value in values.items():
        _store(groups[id(p)], option, value)


def _single(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The groups of one parameter, by the id of that parameter."""
    return {id(group["params"][0]): group for group in optimizer.param_groups if len(group["params"]) == 1}


def _value(group: Mapping[str, Any], option: str) -> Any:
    """An option of a group; torch's optimizers have β₁ and β₂ as one option `betas`."""
    if option in _BETAS and option not in group and "betas" in group:
        return group["betas"][_BETAS.index(option)]
    return group.get(option)


def _store(group: dict[str, Any], option: str, value: Any) -> None:
    if option in _BETAS and option not in group and "betas" in group:
        betas = list(group["betas"])
        betas[_BETAS.index(option)] = value
        group["betas"] = tuple(betas)
    else:
        group[option] = value


def options_of(optimizer: torch.optim.Optimizer, option: str) -> dict[int, Any]:
    """The current value for each parameter, by its `id`."""
    return {id(p): _value(group, option) for group in optimizer.param_groups for p in group["params"]}


def current_learning_rates(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    """The learning rate of the next step for each parameter, by its `id`; that of the schedule if there is one."""
    found: dict[int, float] = {}
    for group in optimizer.param_groups:
        schedule = group.get("schedule")
        rate = schedule(cast("Any", optimizer).updates) if schedule else group.get("lr", 1.0)
        found.update({id(p): float(rate) * float(group.get("lr_mult", 1.0)) for p in group["params"]})
    return found


def group_learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate of each group as rows and logs have it: that of the last update, `lr_mult` included.

    Returns:
        `learning_rate` of an optimizer with one group; of several `learning_rate/NAME`, NAME being the group's option
        "name" or its number. Of more than 32 groups, as where each parameter has one, only the smallest and the largest
        rate, `learning_rate/min` and `learning_rate/max`. Groups without a rate are left out.
    """
    rates: dict[str, float] = {}
    for number, group in enumerate(optimizer.param_groups):
        if group.get("lr") is not None and not callable(group["lr"]):
            rate = float(group["lr"]) * float(group.get("lr_mult", 1.0))
            rates[str(group.get("name", number))] = rate
    if len(optimizer.param_groups) == 1:
        return dict(zip(["learning_rate"], rates.values(), strict=False))
    if len(rates) > _SHOWN_GROUPS:
        rates = {"min": min(rates.values()), "max": max(rates.values())}
    return {f"learning_rate/{name}": rate for name, rate in rates.items()}
