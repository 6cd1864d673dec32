"""State dicts: what is written, and how a loaded one is checked whole before any of it is copied.

State belongs to names. Where both sides have names the order does not matter; where one has none, position decides,
and shapes are compared either way.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor

from descend.arguments import shown
from descend.errors import RuleError
from descend.machine import home
from descend.optim.engine.evaluation import averages
from descend.optim.engine.settings import COMMON_KEYS, COUNTERS, constants, group_rule, number, resolve
from descend.optim.engine.state import State, StateEntry
from descend.optim.engine.step_inputs import LOW_PRECISION, distribute_like, local, named_entries, template, wrap_like
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Collection, Iterator, Sequence

__all__ = ["load", "load_torch", "pack", "saved_state", "write_counters"]

# Keys of a group whose values are not saved: functions and texts. The keys are, since torch.distributed.checkpoint's
# flattened form is loaded by asking for each key of the group.
UNSAVED = ("schedule", "reasons", "dense_only")
UNLOADED = ("params", "param_names", "rule", "evaluating", *UNSAVED, *COUNTERS, *COMMON_KEYS)
TRAINED = "trained"  # the entry with the training point, in a state of eval()

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


class StateSlot(Protocol):
    """What saving needs of an optimizer."""

    title: str
    on_nonfinite: str
    param_groups: list[dict[str, Any]]
    state: Any
    updates: int
    skipped: int
    seed: int


def pack(holder: StateSlot, torch_dict: dict[str, Any]) -> dict[str, Any]:
    """Torch's structure with our counters in each group, the rule by its name and the constants in force."""
    for i, group in enumerate(torch_dict["param_groups"]):
        with contextlib.suppress(RuleError):  # what makes no sense is refused when it is loaded
            # A constant may have two names; which of them was set cannot be read from the file, so both are written.
            known = constants(group_rule(group, f"{holder.title}, group {i}"))
            group.update({key: value for key, value in known.items() if key in group})
        group["rule"] = type(group["rule"]).__name__
        group.update({key: None for key in UNSAVED if key in group})
    entries = torch_dict["state"].items()
    torch_dict["state"] = {
        key: dict(entry) if isinstance(entry, StateEntry) else entry
        for key, entry in entries
        if entry or not isinstance(entry, StateEntry)
    }
    return torch_dict


def write_counters(holder: StateSlot, groups: Iterable[dict[str, Any]], *, evaluating: bool) -> None:
    """Write into groups what is saved with each of them: the counters, and whether `eval()` is in force."""
    for group in groups:
        group.update({name: getattr(holder, name) for name in COUNTERS})
        if isinstance(group.get("rule"), Rule) and averages(group["rule"]):
            group["evaluating"] = evaluating


def saved_state(
    state: defaultdict[Tensor, Any], groups: Sequence[Mapping[str, Any]], trained: Mapping[Tensor, Tensor]
) -> defaultdict[Tensor, Any]:
    """The state without tensors of groups that were taken out, for which torch would want numbers.

    Args:
        state: Of the optimizer.
        groups: Its groups.
        trained: Training points that are saved as an entry of their parameter.
    """
    owned = {p for group in groups for p in group["params"]}
    held: list[tuple[Any, Any]] = list(state.items())
    kept = {p: entry for p, entry in held if not isinstance(p, Tensor) or p in owned}
    if len(kept) == len(held) and not trained:
        return state
    return State(
        {p: {**entry, TRAINED: wrap_like(trained[p], p)} if p in trained else entry for p, entry in kept.items()}
    )


@dataclass(frozen=True)
class LoadedEntry:
    """One tensor's part of a state dict."""

    entry: Mapping[str, Any]
    group: int


def _groups(state_dict: Any, title: str) -> Sequence[Mapping[str, Any]]:
    """The groups of what should be a state dict, whose parts fit together."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        keys = ", ".join(map(repr, state_dict)) if isinstance(state_dict, Mapping) else ""
        held = f"a dict with the keys {keys or 'none'}" if isinstance(state_dict, Mapping) else repr(state_dict)
        raise RuleError(f"{title}: a state dict has the keys 'state' and 'param_groups' and this is {held[:200]}")
    groups, entries = state_dict["param_groups"], state_dict["state"]
    problems = [*_broken_groups(groups)] or [*_broken_entries(entries, groups)]
    if problems:
        raise RuleError([f"{title}: this state dict is broken; nothing was changed:", *problems])
    return groups


def _broken_groups(groups: Any) -> Iterator[str]:
    if not isinstance(groups, (list, tuple)):
        yield f"  'param_groups' must be a list of groups, got {type(groups).__name__}"
        return
    broken = list(_broken_lists(groups))
    yield from broken
    if broken:
        return
    yield from (f"  weights {key!r} appear twice" for key in _twice(key for g in groups for key in g["params"]))
    names = [name for group in groups for name in group.get("param_names", ())]
    yield from (f"  two weights are called {name!r}" for name in _twice(names))


def _broken_lists(groups: Iterable[Any]) -> Iterator[str]:
    for i, group in enumerate(groups):
        params = group.get("params") if isinstance(group, Mapping) else None
        if not isinstance(params, (list, tuple)):
            yield f"  group {i} must be a dict with a list 'params' of numbers"
            continue
        names = group.get("param_names", params)
        if not isinstance(names, (list, tuple)) or len(names) != len(params):
            yield f"  group {i} has {len(params)} weights, and as many 'param_names' are wanted as they are: {names!r}"
        elif not all(isinstance(key, (int, str)) for key in params):
            yield f"  group {i} must be a dict with a list 'params' of numbers, and has {params!r}"
        elif names is not params and not all(isinstance(name, str) for name in names):
            yield f"  'param_names' of group {i} must be texts, got {shown(names)}"


def _twice(items: Iterable[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [item for item in items if item in seen or seen.add(item)]


def _broken_entries(entries: Any, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not isinstance(entries, Mapping):
        yield f"  'state' must be a dict, got {type(entries).__name__}"
        return
    known = {key for group in groups for key in group["params"]}
    for key, entry in entries.items():
        if _is_users_own(key, known):
            continue
        if not isinstance(entry, Mapping):
            yield f"  the state of weights {key!r} must be a dict, got {type(entry).__name__}"
        elif key not in known:
            yield f"  there is a state of weights {key!r}, which are in no group"


def _is_users_own(key: object, known: Collection[object]) -> bool:
    """Whether something is filed in the state under a key that names no parameter; it is kept as it is."""
    return key not in known and not isinstance(key, int)


def _found(state_dict: Mapping[str, Any], names: Sequence[Sequence[str]], by_name: bool) -> dict[str, LoadedEntry]:
    """The saved parts by the name they will be looked up with."""
    groups = state_dict["param_groups"]
    if not by_name:
        flat = [name for called in names for name in called]
        keys = [(key, i) for i, group in enumerate(groups) for key in group["params"]]
        missing = [f"saved weights {n}" for n in range(len(flat), len(keys))]
        return {
            name: LoadedEntry(state_dict["state"].get(key, {}), i)
            for name, (key, i) in zip([*flat, *missing], keys, strict=False)
        }
    return {
        name: LoadedEntry(state_dict["state"].get(key, {}), i)
        for i, group in enumerate(groups)
        for key, name in zip(group["params"], group["param_names"], strict=True)
    }


def _members(holder: StateSlot, names: Sequence[Sequence[str]]) -> Iterator[tuple[str, Tensor, Mapping[str, Any]]]:
    for group, called in zip(holder.param_groups, names, strict=True):
        for p, name in zip(group["params"], called, strict=True):
            yield name, p, group


def _form(value: object) -> str:
    """`(3, 4)`, with what is out of the ordinary about the tensor."""
    if not isinstance(value, Tensor):
        return repr(value)
    odd = [str(value.dtype)] if value.is_complex() or not value.is_floating_point() else []
    odd += [str(value.layout)] if value.layout is not torch.strided else []
    odd += ["without values"] if value.is_meta else []
    return " ".join([f"{tuple(value.shape)}", *odd])


def _misfits(
    name: str, rule: Rule, p: Tensor, entry: Mapping[str, Any], *, may_be_nan: bool
) -> Iterator[tuple[str, str, str]]:
    """Rows (weights, expected, found) for entries that do not fit; a tensor without any update yet has none."""
    if not entry:
        return
    wanted = named_entries(template(rule, p))
    if p.dtype in LOW_PRECISION and "master" in entry:
        wanted["master"] = p
    if TRAINED in entry and averages(rule):
        wanted[TRAINED] = p
    for key, like in wanted.items():
        held = entry.get(key)
        if not _fits(held, like):
            yield f"{name}.{key}", f"{tuple(like.shape)}", "nothing" if held is None else _form(held)
        elif not may_be_nan and _has_nan(held):
            yield f"{name}.{key}", f"{tuple(like.shape)} of numbers", "NaN"
    for key in entry:
        if key not in wanted and key not in ("step", "master"):
            yield f"{name}.{key}", "nothing", _form(entry[key])
    if not _is_count(entry.get("step")):
        yield f"{name}.step", "a step count", "nothing" if "step" not in entry else repr(entry["step"])


def _fits(held: object, like: Tensor) -> TypeGuard[Tensor]:
    """Whether a saved tensor can take the place of one like this, if cast."""
    return (
        isinstance(held, Tensor)
        and held.shape == like.shape
        and held.is_floating_point() == like.is_floating_point()
        and held.is_complex() == like.is_complex()
        and held.layout is torch.strided
        and not held.is_meta
    )


def _has_nan(x: Tensor) -> bool:
    # Of a distributed tensor no rank sees all, and one that stops alone would leave the others waiting.
    return not hasattr(x, "device_mesh") and bool(x.isnan().any())


def _is_count(value: object) -> bool:
    if isinstance(value, Tensor):
        value = float(value) if value.numel() == 1 and not value.is_complex() and not value.is_meta else None
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _table(title: str, rows: Sequence[tuple[str, str, str]], remedy: str) -> RuleError:
    lines = [("weights", "expected", "found"), *rows[:40]]
    wide = [max(len(row[i]) for row in lines) for i in range(2)]
    text = [f"  {row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]}" for row in lines]
    more = [f"  and {len(rows) - 40} more"] if len(rows) > 40 else []
    return RuleError([f"{title} cannot take over this state; nothing was changed:", *text, *more, remedy])


def load(
    holder: StateSlot, state_dict: Mapping[str, Any], names: Sequence[Sequence[str]], *, strict: bool
) -> dict[Tensor, Tensor]:
    """Check all of a state dict, then copy it.

    Groups without names take over the names of a state whose groups all have some, as torch does: what depends on a
    name (noise) then continues as in the run that was saved.

    Returns:
        The training points of a state that was saved after `eval()`.
    """
    groups = _groups(state_dict, holder.title)
    if any("updates" not in group for group in groups):
        raise RuleError(
            f"{holder.title}: this state was not written by a descend optimizer; a torch optimizer's goes through "
            "load_torch_state"
        )
    counters = {name: _counter(holder.title, groups, name) for name in COUNTERS}
    by_name = all("param_names" in group for group in [*groups, *holder.param_groups])
    found = _found(state_dict, names, by_name)
    chosen = [_options(called, found, groups) for called in names]
    rows = list(_rows(holder, names, found, groups, chosen, strict))
    if rows:
        raise _table(
            holder.title,
            rows,
            "load a state of the same rule and weights; strict=False starts missing weights without state",
        )
    for i, called in enumerate(names):
        _check_options(holder, i, called, found, groups)
    for group, options in zip(holder.param_groups, chosen, strict=True):
        if options:
            group.update(options)
            group["rule"] = group_rule(group, holder.title)
    entries = {name: part.entry for name, part in found.items()}
    if any(group.get("evaluating") for group in groups) and not any(TRAINED in entry for entry in entries.values()):
        raise RuleError(
            f"{holder.title}: this state was saved after eval() and lacks the point of training; call the optimizer's "
            "train() before saving, or eval() before loading through torch.distributed.checkpoint"
        )
    known = {key for group in groups for key in group["params"]}
    trained = _copy(holder, names, entries)
    holder.state.update({key: x for key, x in state_dict["state"].items() if _is_users_own(key, known)})
    for name, value in counters.items():
        setattr(holder, name, value)
    _adopt_names(holder, groups)
    return trained


def _adopt_names(holder: StateSlot, groups: Sequence[Mapping[str, Any]]) -> None:
    """Give groups without names those of a saved state, by position."""
    ours = holder.param_groups
    if any("param_names" in group for group in ours) or not all("param_names" in group for group in groups):
        return
    names = [name for group in groups for name in group["param_names"]]
    if len(names) == sum(len(group["params"]) for group in ours):
        left = iter(names)
        for group in ours:
            group["param_names"] = list(itertools.islice(left, len(group["params"])))


def _counter(title: str, groups: Sequence[Mapping[str, Any]], name: str) -> int:
    """One of `COUNTERS`, which every group holds alike."""
    value = groups[0].get(name) if groups else 0
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and name != "seed"):
        raise RuleError(f"{title}: '{name}' of the state dict must be an integer, got {shown(value)}")
    return value


def _rows(
    holder: StateSlot,
    names: Sequence[Sequence[str]],
    found: Mapping[str, LoadedEntry],
    groups: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    strict: bool,
) -> Iterator[tuple[str, str, str]]:
    may_be_nan = holder.on_nonfinite == "allow"
    for (name, p, group), options in zip(_members(holder, names), _repeated(chosen, names), strict=True):
        part = found.get(name)
        if part is None:
            if strict:
                yield name, "state", "nothing"
            continue
        ours, theirs = _kind(group), _kind(groups[part.group])
        if ours != theirs:
            yield name, ours, theirs
        else:  # the saved constants are in force from now on, and say what the rule remembers
            rule = group_rule({**group, **options}, f"{holder.title}, saved options")
            yield from _misfits(name, rule, p, part.entry, may_be_nan=may_be_nan)
    known = {name for called in names for name in called}
    if strict:
        yield from ((name, "nothing", "state") for name in found if name not in known)


def _repeated(of_groups: Sequence[Any], names: Sequence[Sequence[str]]) -> Iterator[Any]:
    """What is said of a group, once for each of its members."""
    for item, called in zip(of_groups, names, strict=True):
        yield from [item] * len(called)


def _kind(group: Mapping[str, Any]) -> str:
    """`Adam, decay coupled`: another rule or another form of decay is another optimizer."""
    rule = group.get("rule")
    return f"{rule if rule is None or isinstance(rule, str) else type(rule).__name__}, decay {group.get('decay')}"


def _plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in UNLOADED}


def _sources(called: Sequence[str], found: Mapping[str, LoadedEntry]) -> list[int]:
    """The saved groups that the members of a group were in."""
    return sorted({found[name].group for name in called if name in found})


def _options(
    called: Sequence[str], found: Mapping[str, LoadedEntry], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The saved options of a group's members."""
    sources = _sources(called, found)
    return _plain_options(groups[sources[0]]) if sources else {}


def _check_options(
    holder: StateSlot,
    i: int,
    called: Sequence[str],
    found: Mapping[str, LoadedEntry],
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse options that make no sense, or that differ between the members of group i."""
    sources = _sources(called, found)
    saved = [_plain_options(groups[source]) for source in sources]
    if any(options != saved[0] for options in saved[1:]):
        raise RuleError(
            f"{holder.title}: weights of group {i} come from saved groups {', '.join(map(str, sources))}, whose "
            "options differ; build the same groups as the saved optimizer had"
        )
    if saved:
        resolve({**holder.param_groups[i], **saved[0]}, f"{holder.title}, saved group {sources[0]}")


def _copy(
    holder: StateSlot, names: Sequence[Sequence[str]], found: Mapping[str, Mapping[str, Any]]
) -> dict[Tensor, Tensor]:
    """Replace the state by copies of saved entries.

    Returns:
        The training points among them.
    """
    fresh = {p: _placed(found.get(name, {}), group, p) for name, p, group in _members(holder, names)}
    trained = {p: local(entry.pop(TRAINED)) for p, entry in fresh.items() if TRAINED in entry}
    holder.state.clear()
    holder.state.update({p: entry for p, entry in fresh.items() if entry})
    return trained


def _placed(entry: Mapping[str, Any], group: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """A copy of a saved entry in the kind and on the device that p's state has."""
    if not entry:
        return {}
    placed: dict[str, Any] = {"step": torch.tensor(float(entry["step"]), dtype=torch.float64, device="cpu")}
    for name, like in named_entries(template(group_rule(group, "saved group"), p)).items():
        placed[name] = distribute_like(entry[name].detach(), like).to(
            device=home(like.dtype, p), dtype=like.dtype, copy=True
        )
    if p.dtype in LOW_PRECISION:
        master = distribute_like(entry.get("master", p.detach()), p)
        placed["master"] = master.to(device=p.device, dtype=torch.float32, copy=True)
    if TRAINED in entry:
        placed[TRAINED] = distribute_like(entry[TRAINED].detach(), p).to(device=p.device, dtype=p.dtype, copy=True)
    return placed


def load_torch(holder: StateSlot, state_dict: Mapping[str, Any], names: Sequence[Sequence[str]]) -> None:
    """Translate the entries of torch's own optimizer, check them, then copy them."""
    groups = _groups(state_dict, holder.title)
    by_name = all("param_names" in group for group in [*groups, *holder.param_groups])
    parts = _found(state_dict, names, by_name)
    found: dict[str, dict[str, Any]] = {}
    rows: list[tuple[str, str, str]] = []
    for name, p, group in _members(holder, names):
        rule = group_rule(group, holder.title)
        part = parts.pop(name, None)
        if part is None:
            rows.append((name, "state", "nothing"))
            continue
        found[name] = _translated(part.entry, rule, p, groups[part.group], holder.title)
        rows.extend(_misfits(name, rule, p, found[name], may_be_nan=holder.on_nonfinite == "allow"))
    rows.extend((name, "nothing", "state") for name in parts)
    if rows:
        raise _table(holder.title, rows, "give the state of torch's optimizer of the same rule over the same weights")
    _copy(holder, names, found)
    holder.updates = max((int(entry["step"]) for entry in found.values() if entry), default=0)


def _translated(
    entry: Mapping[str, Any], rule: Rule, p: Tensor, group: Mapping[str, Any], title: str
) -> dict[str, Any]:
    theirs = TORCH_ENTRIES.get(type(rule).__name__, {})
    held = {name: value for name, value in entry.items() if value is not None}
    ours = {name: held.pop(theirs[name]) for name in named_entries(template(rule, p)) if theirs.get(name) in held}
    if not ours and not held:
        return {}
    if getattr(rule, "rate_inside", False) and isinstance(ours.get("b"), Tensor):  # torch's rate is outside
        ours["b"] = ours["b"] * number(group.get("lr"), "lr", f"{title}, torch's group")
    return {"step": held.pop("step", 1), **ours, **held}
