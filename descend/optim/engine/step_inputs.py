"""From what torch holds to one task a tensor: which tensors take part in this step, with which gradient and state.

absent gradient   nothing happens to the weights: no moment, no count, no decay
zero gradient     momentum and decay act as they do for any other value
frozen            untouched, and no state is ever made
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.errors import RuleError, Unsupported
from descend.machine import home

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

    from descend.optim.engine.settings import GroupSettings
    from descend.optim.rules.base import Rule

__all__ = [
    "LOW_PRECISION",
    "PLAIN_TYPES",
    "Entry",
    "TensorUpdate",
    "aligned",
    "check_gradient",
    "distribute_like",
    "ensure_state",
    "is_dense",
    "is_sparse",
    "local",
    "move_state",
    "named_entries",
    "names_of",
    "open_entry",
    "open_states",
    "rows_of",
    "span_of",
    "tasks_of",
    "template",
    "wrap_like",
]

# Weights too coarse to take small updates: they are updated in float32 and rounded once a step.
LOW_PRECISION = (torch.bfloat16, torch.float16)

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # a subclass such as DTensor may keep its memory elsewhere

Entry = dict[str, Any]

# Of some elements of a tensor, the index in each of its first dimensions.
Indices = tuple[torch.Tensor, ...]


def local(x: Tensor) -> Tensor:
    """This rank's part of a distributed tensor, or the tensor itself."""
    to_local = getattr(x, "to_local", None)
    return x if to_local is None else to_local()


def wrap_like(part: Tensor, like: Tensor) -> Tensor:
    """A tensor distributed as `like` is, with this part on this rank; the part itself where `like` is whole."""
    if not hasattr(like, "device_mesh"):
        return part
    whole = cast("Any", like)
    return type(whole).from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def distribute_like(x: Tensor, like: Tensor) -> Tensor:
    """x sharded among ranks as `like` is, or put together again; every rank has all of x where it is whole."""
    if hasattr(like, "device_mesh") and not hasattr(x, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = cast("Any", like).device_mesh, cast("Any", like).placements
        return distribute_tensor(x.to(mesh.device_type), mesh, placements, src_data_rank=None)
    if hasattr(x, "device_mesh") and not hasattr(like, "device_mesh"):
        return cast("Any", x).full_tensor()
    return x


def aligned(g: Tensor, p: Tensor) -> Tensor:
    """The gradient distributed as the weights are: what ranks still have to add up is added."""
    wanted = getattr(p, "placements", None)
    if wanted is None or getattr(g, "placements", wanted) == wanted:
        return g
    return cast("Any", g).redistribute(cast("Any", p).device_mesh, wanted)


_MAX_MADE = 2**20  # entries of weights whose state is made for a moment, to see its form


def template(rule: Rule, p: Tensor) -> Any:
    """The rule's state for weights like p, without memory: names, shapes and kinds of its entries."""
    dtype = torch.float32 if p.dtype in LOW_PRECISION else p.dtype
    if hasattr(p, "device_mesh"):
        return rule.init(torch.empty_like(p, dtype=dtype, device="meta"))
    try:
        return _template(rule, p.shape, dtype)
    except TypeError:  # a rule with a list among its constants cannot be a key
        return _form(rule, p.shape, dtype)


@functools.lru_cache(maxsize=4096)
def _template(rule: Rule, shape: torch.Size, dtype: torch.dtype) -> Any:
    # Asked for several times a step by rules that run tensor by tensor; making it takes longer than a small update.
    return _form(rule, shape, dtype)


def _form(rule: Rule, shape: torch.Size, dtype: torch.dtype) -> Any:
    if shape.numel() > _MAX_MADE:
        return rule.init(torch.empty(shape, dtype=dtype, device="meta"))
    # The first operation on the device "meta" imports SymPy, which takes longer than all else of a short run.
    form = rule.init(torch.zeros(shape, dtype=dtype, device="cpu"))
    if form is None:
        return None
    return form._replace(**{name: x.new_zeros(()).expand(x.shape) for name, x in named_entries(form).items()})


def named_entries(state: Any) -> dict[str, Tensor]:
    """The tensors of a rule's state by name; a rule without state has none."""
    held: dict[str, Any] = {} if state is None else state._asdict()
    return {name: value for name, value in held.items() if value is not None}


def open_entry(entry: Entry, rule: Rule, p: Tensor) -> None:
    """Make what the engine keeps of p: its step count, its float32 master and the rule's state."""
    with torch.no_grad():
        master = p.detach().to(torch.float32) if p.dtype in LOW_PRECISION else p.detach()
        made = {name: value.clone() for name, value in named_entries(rule.init(master)).items()}
        if master.dtype != p.dtype:
            made["master"] = master
    # Counted in float64, which is exact up to 2^53 steps; a tensor because torch's tools expect one.
    entry.update(step=torch.zeros((), dtype=torch.float64, device="cpu"), **made)


def move_state(entry: Entry, rule: Rule, p: Tensor) -> None:
    """Move and cast the state to where the weights went, e.g. by `model.to(device)` after construction."""
    kinds = {name: value.dtype for name, value in named_entries(template(rule, p)).items()}
    for name, value in entry.items():
        if name in kinds or name == "master":
            dtype = kinds.get(name) or value.dtype
            entry[name] = value.to(device=home(dtype, p), dtype=dtype)
    if p.dtype in LOW_PRECISION and "master" not in entry:
        entry["master"] = p.detach().to(torch.float32)
    if p.dtype not in LOW_PRECISION:
        entry.pop("master", None)


def span_of(p: Tensor) -> tuple[int, int]:
    """First byte and the byte past the last of the memory of p."""
    last = sum(stride * (size - 1) for stride, size in zip(p.stride(), p.shape, strict=True))
    return p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size()


def is_dense(p: Tensor) -> bool:
    """Whether p fills its memory without gaps, in any order of its dimensions."""
    start, end = span_of(p)
    return end - start == p.numel() * p.element_size()


def is_sparse(g: Tensor) -> bool:
    """Whether g holds some elements of a tensor only: whole rows, as of embeddings, or single elements."""
    return g.layout is torch.sparse_coo and g.sparse_dim() > 0


def rows_of(g: Tensor) -> Tensor:
    """A sparse gradient with whole rows, where g holds single elements of them; coalesced."""
    g = g.coalesce()
    if g.sparse_dim() == 1:
        return g
    rows = g.indices()[0].unique()
    return torch.sparse_coo_tensor(rows[None], g.to_dense()[rows], g.shape, is_coalesced=True)


def check_gradient(g: Tensor, p: Tensor, name: str, rule: Rule | None = None, dense_only: str | None = None) -> None:
    """Refuse a gradient that cannot be used, naming the weights.

    Args:
        g: The gradient.
        p: The weights.
        name: How they are called.
        rule: Their rule; None where gradients have to be dense, since the weights live among others.
        dense_only: Why these weights take no sparse gradients although the rule does.

    Raises:
        Unsupported: The gradient is sparse and `dense_only` says why there is no such update.
        RuleError: The gradient is sparse and the rule does not go by rows, or of another shape or on another device.
    """
    if g.layout is torch.strided and g.shape == p.shape and g.device == p.device:
        return  # nearly always, and asked of every tensor at every step
    if g.layout is not torch.strided and dense_only:
        raise Unsupported(f"'{name}' has a sparse gradient, and {dense_only}; build the embedding with sparse=False")
    if g.layout is torch.sparse_coo and g.sparse_dim() == 0:
        raise RuleError(f"'{name}' has a sparse gradient without any dimension, so without rows; make it dense")
    if g.layout is not torch.strided and not (rule is not None and rule.rowwise and is_sparse(g)):
        owner = f"which {type(rule).__name__} does not take" if rule is not None else "and had dense ones before"
        raise RuleError(
            f"'{name}' has a sparse gradient ({g.layout}), {owner}; build the embedding with sparse=False, or give "
            "these weights SGD, AdaGrad or Adam in a group of their own, which go by rows"
        )
    if g.shape != p.shape or g.device != p.device:
        raise RuleError(
            f"'{name}' is {tuple(p.shape)} on {p.device} and its gradient {tuple(g.shape)} on {g.device}; "
            "run backward again after moving or reshaping the weights"
        )


def ensure_state(entry: Entry, rule: Rule, p: Tensor, name: str) -> None:
    """Make the state of weights that are updated for the first time, else see that it fits and lies where they lie.

    Where nothing but the count was kept, as under SGD until a scheduler gave it a momentum, the state begins now.

    Raises:
        RuleError: The state was changed from outside: an entry is missing, not a tensor, or of another shape.
    """
    wanted = named_entries(template(rule, p))
    if "step" not in entry or (wanted and entry.keys() <= {"step", "master"}):
        held = {key: entry[key] for key in ("master",) if key in entry}
        open_entry(entry, rule, p)
        entry.update(held)
    for key, like in wanted.items():
        held = entry.get(key)
        if not isinstance(held, torch.Tensor) or held.shape != like.shape:
            found = "nothing" if held is None else f"{tuple(held.shape)}" if hasattr(held, "shape") else repr(held)
            raise RuleError(
                f"the state '{key}' of '{name}' must be a tensor of shape {tuple(like.shape)}, got {found}; an empty "
                "entry creates it again"
            )
    move_state(entry, rule, p)


@dataclass(frozen=True, slots=True)
class TensorUpdate:
    """One tensor that takes part in a step.

    Attributes:
        name: As the user named the weights, or "group i, weights j".
        group: Number of their group.
        param: The weights as torch holds them.
        gradient: Their gradient; only read.
        settings: What holds for their group.
        entry: `Optimizer.state[param]`: `step`, the rule's entries, and `master` for low precision.
    """

    name: str
    group: int
    param: Tensor
    gradient: Tensor
    settings: GroupSettings
    entry: Entry

    @property
    def count(self) -> int:
        """Updates of this tensor so far."""
        return int(self.entry["step"])

    def state(self) -> Any:
        """The rule's state as its named tuple, on this rank's part of the weights."""
        form = template(self.settings.rule, self.param)
        if form is None:
            return None
        return form._replace(**{name: local(self.entry[name]) for name in named_entries(form)})

    def weights(self, rows: Indices | None = None) -> Tensor:
        """The weights to update, or some elements of them, in the precision of the state.

        Where low-precision weights were written since the last step, the master takes the new values.
        """
        p = _rows(local(self.param.detach()), rows)
        master = self.entry.get("master")
        if master is None:
            return p
        master = _rows(local(master), rows)
        return master.copy_(torch.where(master.to(p.dtype) == p, master, p.to(master.dtype)))

    def write(self, new: Tensor, after: Any, rows: Indices | None = None) -> None:
        """Store the new weights and state, or some elements of them, in place and count the update."""
        entries = named_entries(after)
        places = {
            name: local(self.entry[name]) for name in (*entries, *(("master",) if "master" in self.entry else ()))
        }
        weights = local(self.param.detach())
        if rows is None:
            # What a rule returns may be what another place held: the weights as state, two entries that change places.
            held = {_memory(place) for place in (*places.values(), weights)}
            entries = {name: _apart(x, held - {_memory(places[name])}) for name, x in entries.items()}
            new = _apart(new, held - {_memory(places.get("master", weights))})
        for name, value in entries.items():
            if places[name] is not value:
                _put(places[name], value, rows)
        if "master" in places:
            _put(places["master"], new, rows)
        _put(weights, new, rows)
        self.entry["step"] += 1


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _apart(value: Tensor, held: set[int]) -> Tensor:
    """A new value, copied in place into memory that is held."""
    return value.clone() if _memory(value) in held else value


def _rows(x: Tensor, rows: Indices | None) -> Tensor:
    return x if rows is None else x[rows]


def _put(place: Tensor, value: Tensor, rows: Indices | None) -> None:
    """Copy a tensor, or some elements of it, to its place; a number stays one number."""
    if rows is None or not place.ndim:
        place.copy_(value)
    else:
        place.index_put_(rows, value.to(place.dtype))


def names_of(groups: list[dict[str, Any]]) -> list[list[str]]:
    """How each tensor of each group is called in errors, tables and state dicts."""
    return [
        list(group["param_names"])
        if "param_names" in group
        else [f"group {i}, weights {j}" for j in range(len(group["params"]))]
        for i, group in enumerate(groups)
    ]


def tasks_of(
    groups: list[dict[str, Any]],
    settings: list[GroupSettings],
    names: list[list[str]],
    state: Mapping[Tensor, Entry],
    without: Collection[int] = (),
) -> list[TensorUpdate]:
    """Every parameter that has a gradient and is not frozen, in the order of the groups.

    Args:
        groups: Torch's groups.
        settings: What holds for each.
        names: Of the tensors of each.
        state: What the engine keeps of each tensor.
        without: Identities of tensors that are left out.

    Raises:
        RuleError: A gradient is of a kind that cannot be used.
    """
    tasks: list[TensorUpdate] = []
    for i, (group, common, called) in enumerate(zip(groups, settings, names, strict=True)):
        for p, name in zip(group["params"], called, strict=True):
            g = p.grad
            if id(p) in without or g is None or not p.requires_grad:
                continue
            check_gradient(g, p, name, common.rule, group.get("dense_only"))
            if common.rule.whole_tensor and hasattr(p, "device_mesh"):
                raise RuleError(
                    f"'{name}' is distributed over ranks and {type(common.rule).__name__} needs whole matrices; give "
                    "it another rule in a group of its own, or keep it whole on every rank"
                )
            tasks.append(TensorUpdate(name, i, p, aligned(g, p), common, state[p]))
    return tasks


def open_states(tasks: list[TensorUpdate]) -> None:
    """Make the state of tensors that are updated for the first time; move it where the weights moved."""
    forms: dict[tuple[int, torch.Size, torch.dtype], dict[str, tuple[torch.Size, torch.dtype]]] = {}
    for task in tasks:
        p = task.param
        form = forms.get((id(task.settings), p.shape, p.dtype))
        if form is None:
            held = named_entries(template(task.settings.rule, p))
            form = {name: (x.shape, x.dtype) for name, x in held.items()}
            if p.dtype in LOW_PRECISION:
                form["master"] = (p.shape, torch.float32)
            forms[id(task.settings), p.shape, p.dtype] = form
        if not _is_open(task.entry, form, p):
            ensure_state(task.entry, task.settings.rule, p, task.name)


def _is_open(entry: Entry, form: Mapping[str, tuple[torch.Size, torch.dtype]], p: Tensor) -> bool:
    """Whether plain tensors of these shapes and precisions lie where p lies, so that `ensure_state` has nothing to do.

    Asked of every tensor at every step of a rule that runs tensor by tensor.
    """
    device = p.device
    for name, (shape, dtype) in form.items():
        x = entry.get(name)
        if type(x) is not torch.Tensor or x.shape != shape or x.dtype is not dtype or x.device != device:
            return False
    return "step" in entry and ("master" in entry) == ("master" in form)
