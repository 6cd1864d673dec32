"""State dicts: what is written, and how a loaded one is checked whole before any of it is copied.

State belongs to names. Where both sides have names the order does not matter; where one has none, position decides,
and shapes are compared either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from descend.errors import RuleError
from descend.optim.engine.prepare import LOW_PRECISION, named_entries, spread, template
from descend.optim.engine.settings import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.optim.rules.base import Rule

__all__ = ["load", "load_torch", "pack"]

COUNTERS = ("updates", "skipped", "seed")
FUNCTIONS = ("rule", "schedule", "reasons")  # held in a group, and not to be loaded

_MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}

# What torch's own optimizers call the entries of our rules. torch's SGD counts no steps: its buffer exists from the
# first one on.
TORCH_ENTRIES: Mapping[str, Mapping[str, str]] = {
    "SGD": {"b": "momentum_buffer"},
    "NAG": {"b": "momentum_buffer"},
    "Adam": {**_MOMENTS, "v_max": "max_exp_avg_sq"},
    "AdamW": {**_MOMENTS, "v_max": "max_exp_avg_sq"},
    "Adamax": {"m": "exp_avg", "u": "exp_inf"},
    "Nadam": {**_MOMENTS, "product": "mu_product"},
    "RMSProp": {"n": "square_avg", "a": "grad_avg", "b": "momentum_buffer"},
    "AdaGrad": {"h": "sum"},
    "AdaDelta": {"E": "square_avg", "D": "acc_delta"},
    "Rprop": {"g": "prev", "delta": "step_size"},
    "Adafactor": {"row": "row_var", "column": "col_var", "V": "variance"},
    "Muon": {"b": "momentum_buffer"},
}


class Holder(Protocol):
    """What saving needs of an optimizer."""

    title: str
    param_groups: list[dict[str, Any]]
    state: Any
    updates: int
    skipped: int
    seed: int


def pack(holder: Holder, torch_dict: dict[str, Any]) -> dict[str, Any]:
    """Torch's structure with our counters in each group and the rule by its name."""
    counters = {name: getattr(holder, name) for name in COUNTERS}
    for group in torch_dict["param_groups"]:
        group["rule"] = type(group["rule"]).__name__
        group.pop("schedule")
        group.pop("reasons", None)
        group.update(counters)
    torch_dict["state"] = {key: dict(entry) for key, entry in torch_dict["state"].items() if entry}
    return torch_dict


@dataclass(frozen=True)
class Found:
    """One tensor's part of a state dict."""

    entry: Mapping[str, Any]
    group: int


def _groups(state_dict: Any, title: str) -> Sequence[Mapping[str, Any]]:
    """The groups of what should be a state dict."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        keys = ", ".join(map(repr, state_dict)) if isinstance(state_dict, Mapping) else ""
        held = f"a dict with the keys {keys or 'none'}" if isinstance(state_dict, Mapping) else repr(state_dict)
        raise RuleError(f"{title}: a state dict has the keys 'state' and 'param_groups' and this is {held[:200]}")
    return state_dict["param_groups"]


def _found(state_dict: Mapping[str, Any], names: Sequence[Sequence[str]], by_name: bool) -> dict[str, Found]:
    """The saved parts by the name they will be looked up with."""
    groups = state_dict["param_groups"]
    if not by_name:
        flat = [name for called in names for name in called]
        keys = [(key, i) for i, group in enumerate(groups) for key in group["params"]]
        missing = [f"saved weights {n}" for n in range(len(flat), len(keys))]
        return {
            name: Found(state_dict["state"].get(key, {}), i)
            for name, (key, i) in zip([*flat, *missing], keys, strict=False)
        }
    return {
        name: Found(state_dict["state"].get(key, {}), i)
        for i, group in enumerate(groups)
        for key, name in zip(group["params"], group["param_names"], strict=True)
    }


def _members(holder: Holder, names: Sequence[Sequence[str]]) -> Iterator[tuple[str, Tensor, Mapping[str, Any]]]:
    for group, called in zip(holder.param_groups, names, strict=True):
        for p, name in zip(group["params"], called, strict=True):
            yield name, p, group


def _shape(value: object) -> str:
    return f"{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _misfits(name: str, rule: Rule, p: Tensor, entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Rows (weights, expected, found) for entries that do not fit; a tensor without any update yet has none."""
    if not entry:
        return
    wanted = named_entries(template(rule, p))
    for key, value in wanted.items():
        held = entry.get(key)
        if not isinstance(held, Tensor) or held.shape != value.shape:
            yield f"{name}.{key}", _shape(value), "nothing" if held is None else _shape(held)
    for key in entry:
        if key not in wanted and key not in ("step", "master"):
            yield f"{name}.{key}", "nothing", _shape(entry[key])
    if "step" not in entry:
        yield f"{name}.step", "a step count", "nothing"


def _table(title: str, rows: Sequence[tuple[str, str, str]], remedy: str) -> RuleError:
    lines = [("weights", "expected", "found"), *rows[:40]]
    wide = [max(len(row[i]) for row in lines) for i in range(2)]
    text = [f"  {row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]}" for row in lines]
    more = [f"  and {len(rows) - 40} more"] if len(rows) > 40 else []
    return RuleError([f"{title} cannot take over this state; nothing was changed:", *text, *more, remedy])


def load(holder: Holder, state_dict: Mapping[str, Any], names: Sequence[Sequence[str]], *, strict: bool) -> None:
    """Check all of a state dict, then copy it."""
    groups = _groups(state_dict, holder.title)
    if any("updates" not in group for group in groups):
        raise RuleError(
            f"{holder.title}: this state was not written by a descend optimizer; a torch optimizer's goes through "
            "load_torch_state"
        )
    by_name = all("param_names" in group for group in [*groups, *holder.param_groups])
    found = _found(state_dict, names, by_name)
    rows = list(_rows(holder, names, found, groups, strict))
    if rows:
        raise _table(
            holder.title, rows, "load a state of the same rule and weights; strict=False starts missing weights anew"
        )
    options = [_options(holder, i, called, found, groups) for i, called in enumerate(names)]
    _copy(holder, names, {name: part.entry for name, part in found.items()})
    for group, chosen in zip(holder.param_groups, options, strict=True):
        group.update(chosen)
    for name in COUNTERS:
        setattr(holder, name, groups[0][name])


def _rows(
    holder: Holder,
    names: Sequence[Sequence[str]],
    found: Mapping[str, Found],
    groups: Sequence[Mapping[str, Any]],
    strict: bool,
) -> Iterator[tuple[str, str, str]]:
    known: set[str] = set()
    for name, p, group in _members(holder, names):
        known.add(name)
        part = found.get(name)
        if part is None:
            if strict:
                yield name, "state", "nothing"
            continue
        ours, theirs = _kind(group, type(group["rule"]).__name__), _kind(groups[part.group], groups[part.group]["rule"])
        if ours != theirs:
            yield name, ours, theirs
        else:
            yield from _misfits(name, settle(group, holder.title).rule, p, part.entry)
    if strict:
        yield from ((name, "nothing", "state") for name in found if name not in known)


def _kind(group: Mapping[str, Any], rule: str) -> str:
    """`Adam, decay coupled`: another rule or another form of decay is another optimizer."""
    return f"{rule}, decay {group['decay']}"


def _options(
    holder: Holder,
    i: int,
    called: Sequence[str],
    found: Mapping[str, Found],
    groups: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The saved options of the group that the members of group i were in."""
    skip = {"params", "param_names", *FUNCTIONS, *COUNTERS}
    sources = sorted({found[name].group for name in called if name in found})
    saved = [{key: value for key, value in groups[source].items() if key not in skip} for source in sources]
    if any(options != saved[0] for options in saved[1:]):
        raise RuleError(
            f"{holder.title}: weights of group {i} come from saved groups {', '.join(map(str, sources))}, whose "
            "options differ; build the same groups as the saved optimizer had"
        )
    return saved[0] if saved else {}


def _copy(holder: Holder, names: Sequence[Sequence[str]], found: Mapping[str, Mapping[str, Any]]) -> None:
    fresh = {p: _placed(found.get(name, {}), group, p) for name, p, group in _members(holder, names)}
    holder.state.clear()
    holder.state.update({p: entry for p, entry in fresh.items() if entry})


def _placed(entry: Mapping[str, Any], group: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """A copy of a saved entry in the kind and on the device that p's state has."""
    if not entry:
        return {}
    placed: dict[str, Any] = {"step": torch.tensor(float(entry["step"]), dtype=torch.float64)}
    for name, like in named_entries(template(group["rule"], p)).items():
        placed[name] = spread(entry[name].detach(), like).to(device=p.device, dtype=like.dtype, copy=True)
    if p.dtype in LOW_PRECISION:
        master = spread(entry.get("master", p.detach()), p)
        placed["master"] = master.to(device=p.device, dtype=torch.float32, copy=True)
    return placed


def load_torch(holder: Holder, state_dict: Mapping[str, Any], names: Sequence[Sequence[str]]) -> None:
    """Translate the entries of torch's own optimizer, check them, then copy them."""
    by_name = all("param_names" in group for group in [*_groups(state_dict, holder.title), *holder.param_groups])
    parts = _found(state_dict, names, by_name)
    found: dict[str, dict[str, Any]] = {}
    rows: list[tuple[str, str, str]] = []
    for name, p, group in _members(holder, names):
        wanted = list(named_entries(template(group["rule"], p)))
        part = parts.get(name)
        if part is None:
            rows.append((name, "state", "nothing"))
            continue
        found[name] = _translated(part.entry, wanted, TORCH_ENTRIES.get(type(group["rule"]).__name__, {}))
        rows.extend(_misfits(name, group["rule"], p, found[name]))
    if rows:
        raise _table(holder.title, rows, "give the state of torch's optimizer of the same rule over the same weights")
    _copy(holder, names, found)
    holder.updates = max((int(entry["step"]) for entry in found.values() if entry), default=0)


def _translated(entry: Mapping[str, Any], wanted: Sequence[str], theirs: Mapping[str, str]) -> dict[str, Any]:
    held = {name: value for name, value in entry.items() if value is not None}
    ours = {name: held.pop(theirs[name]) for name in wanted if theirs.get(name) in held}
    if not ours and not held:
        return {}
    return {"step": held.pop("step", 1), **ours, **held}
