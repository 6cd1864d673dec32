"""Checks the parameters of groups, each of a kind that can be trained and there once, and follows them between steps.

A user may take groups out, or put other parameters into a group (as FSDP and `model.to` do). Then the layout of the
arenas, the checks of the parameters and the remembered learning rates of schedules no longer hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from descend.arguments import shown
from descend.errors import RuleError
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.step_inputs import PLAIN_TYPES, is_dense, names_of, span_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.settings import GroupSettingsReader

__all__ = ["PLAIN_TYPES", "GroupTracker", "check", "has_values", "is_dense", "listed", "unpack"]

TRAINABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def listed(params: Any, title: str) -> list[Any]:
    """What an optimizer is made over, as a list of weights or of groups.

    Raises:
        RuleError: It is empty, unordered, or no list of anything.
    """
    problem = None
    if isinstance(params, Tensor):
        problem = "is one tensor; give a list, e.g. [weights] or model.named_parameters()"
    elif isinstance(params, torch.nn.Module) and not isinstance(params, torch.nn.ParameterList):
        problem = "is a module; give its named_parameters()"
    elif isinstance(params, Mapping):
        problem = "is a dict; give its items() if it holds weights by name, or a list of groups"
    elif isinstance(params, (set, frozenset)):
        problem = "is a set, whose order changes from run to run; give a list"
    elif isinstance(params, str) or not isinstance(params, Iterable) or getattr(params, "shape", None) == ():
        problem = f"must be a list of weights, got {shown(params)}"
    if problem:
        raise RuleError(f"{title}: params {problem}")
    found = list(cast("Iterable[Any]", params))
    if not found:
        raise RuleError(f"{title}: the list of weights is empty; was model.parameters() used up before?")
    return found


def unpack(group: Any, where: str) -> dict[str, Any]:
    """A group with its weights as a list, and their names apart where they were given.

    Raises:
        RuleError: "params" is missing, unordered, or only some weights have names.
    """
    if not isinstance(group, Mapping):
        raise RuleError(f"{where} must be a dict as the groups before it are, got {_described(group)}")
    if "params" not in group:
        raise RuleError(f"{where} needs the key 'params' and has {', '.join(map(repr, group))}")
    params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
    if isinstance(params, (set, frozenset)):
        raise RuleError(f"{where}: params is a set, whose order changes from run to run; give a list")
    if isinstance(params, Mapping):
        raise RuleError(f"{where}: params is a dict; give its items() if it holds weights by name")
    if isinstance(params, str) or not isinstance(params, Iterable) or getattr(params, "shape", None) == ():
        raise RuleError(f"{where}: params must be a list of weights, got {shown(params)}")
    members = list(cast("Iterable[Any]", params))
    named = [isinstance(member, tuple) for member in members]
    for i, member in enumerate(members):
        if named[i] and (len(member) != 2 or isinstance(member[0], Tensor)):
            raise RuleError(f"{where}: weights {i} must be a tensor, or its name and the tensor")
    if any(named) and not all(named):
        raise RuleError(f"{where}: weights {named.index(False)} has no name and others have; name all or none")
    fresh = dict(group)
    fresh["params"] = [member[1] for member in members] if any(named) else members
    if any(named):
        fresh["param_names"] = [str(member[0]) for member in members]
    return fresh


def _described(item: object) -> str:
    return f"a tensor of shape {tuple(item.shape)}" if isinstance(item, Tensor) else repr(item)


def has_values(groups: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]], title: str) -> None:
    """Refuse weights that are a shape alone, which cannot be updated.

    Raises:
        RuleError: Names the first of them.
    """
    for group, called in zip(groups, names, strict=True):
        for p, name in zip(group["params"], called, strict=True):
            if p.is_meta:
                raise RuleError(
                    f"{title}: '{name}' is on the meta device and has no values; build the optimizer after "
                    "model.to_empty(device=...), which makes other tensors"
                )


def check(groups: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]], title: str) -> None:
    """Refuse tensors that cannot be trained or that appear twice, all problems at once.

    Raises:
        RuleError: Names every place.
    """
    for i, (group, called) in enumerate(zip(groups, names, strict=True)):
        if len(group["params"]) != len(called):
            raise RuleError(
                f"{title}, group {i}: holds {len(group['params'])} weights and held {len(called)} when it was made; "
                "use add_param_group, or call regrouped() after cutting or joining groups"
            )
    places = [
        (p, name, f"'{name}' (group {i})" if "param_names" in group else f"{name}")
        for i, (group, called) in enumerate(zip(groups, names, strict=True))
        for p, name in zip(group["params"], called, strict=True)
    ]
    problems = [f"{title}: {text}" for p, _, place in places for text in _kind(p, place)]
    if not problems:
        problems = [f"{title}: {text}" for text in _twice(places)]
    if len({"param_names" in group for group in groups if group["params"]}) > 1:
        problems.append(f"{title}: some groups have names and others have none; name all or none")
    if problems:
        raise RuleError(problems)


def _kind(p: Any, place: str) -> Iterator[str]:
    if not isinstance(p, Tensor):
        yield f"{place} must be a tensor, got {type(p).__name__}"
    elif is_lazy(p):
        yield f"{place} has no shape yet: run the lazy module once, then build the optimizer"
    elif p.is_complex():
        yield f"{place} is {p.dtype}: train torch.view_as_real of it, pairs of reals"
    elif p.is_floating_point() and p.dtype not in TRAINABLE:
        yield f"{place} is {p.dtype}, in which nothing can be computed; train bfloat16 or float32 weights and cast them"
    elif not p.is_floating_point():
        yield f"{place} is {p.dtype} and only floating-point weights can be trained; make it a buffer of the module"
    elif not (p.is_leaf or p.retains_grad):
        yield f"{place} is computed from other tensors (not a leaf) and gets no gradient; detach it first"
    elif p.layout is not torch.strided:
        yield f"{place} is stored as {p.layout}; gradients alone may be sparse, so train p.to_dense()"
    elif any(stride == 0 and size > 1 for stride, size in zip(p.stride(), p.shape, strict=True)):
        yield f"{place} is expanded: several of its elements share memory; give it memory of its own with .clone()"


def _twice(places: Sequence[tuple[Tensor, str, str]]) -> Iterator[str]:
    first: dict[int, str] = {}
    called: dict[str, str] = {}
    for p, name, place in places:
        if id(p) in first:
            yield f"the same weights appear twice, {first[id(p)]} and {place}; keep one"
        elif name in called:
            yield f"two tensors are called '{name}', {called[name]} and {place}; names must differ"
        first.setdefault(id(p), place)
        called.setdefault(name, place)
    yield from _overlaps([(p, place) for p, _, place in places if id(p) in first])


def _overlaps(places: Sequence[tuple[Tensor, str]]) -> Iterator[str]:
    """Pairs of different tensors over the same memory. Interleaved ones, with gaps, are left alone."""
    unique = {id(p): (p, place) for p, place in places}.values()
    spans = sorted(
        (*span_of(p), place)
        for p, place in unique
        if type(p) in PLAIN_TYPES
        and p.layout is torch.strided
        and p.numel()
        and p.device.type != "meta"
        and is_dense(p)
    )
    for (_, end, one), (start, _, two) in itertools.pairwise(spans):
        if start < end:
            yield f"{one} and {two} share memory; train one of them"


class GroupTracker:
    """The parameters of each group at the last step.

    Args:
        title: Name of the optimizer in error messages.
        settings: Reads the settings of the groups, and remembers learning rates by number of the group.
        names: Of each parameter of each group, in messages and state dicts.

    Attributes:
        settings: The same.
        names: The same.
        lists: The parameters of each group at the last step.
        meshes: Device meshes of the distributed ones, each once, in the order of the parameters.
    """

    def __init__(self, title: str, settings: GroupSettingsReader, names: Sequence[list[str]] = ()) -> None:
        self._title = title
        self.settings = settings
        self.names = list(names)
        self.lists: list[TensorList] = []
        self.meshes: list[Any] = []
        self._adds_many = False

    @contextmanager
    def adding_many(self) -> Generator[None]:
        """Within this block `check_added` does nothing: to check all groups at each of n would take n² steps."""
        self._adds_many = True
        try:
            yield
        finally:
            self._adds_many = False

    def check_added(self, groups: list[dict[str, Any]]) -> None:
        """Check groups of which some are new, and name them.

        Raises:
            RuleError: A parameter cannot be trained, or is there twice.
        """
        if not self._adds_many:
            names = names_of(groups)
            check(groups, names, self._title)
            self.names = names

    def rename(self, groups: list[dict[str, Any]]) -> None:
        """Take the names from the groups, for groups that were cut, joined or loaded on purpose."""
        self.names = names_of(groups)
        self.settings.forget_schedules()

    def follow(self, groups: list[dict[str, Any]], scanner: GradientScanner) -> bool:
        """Compare the groups with those of the last step, and check and name them again where they differ.

        Returns:
            Whether they hold the same parameters as at the last step.

        Raises:
            RuleError: A list of parameters without names changed its length, or a parameter cannot be trained.
        """
        if len(self.names) == len(groups) and self._hold_the_same(groups, scanner):
            return True
        names = names_of(groups)
        if len(names) == len(self.names):
            named = ["param_names" in group for group in groups]
            names = [now if known else before for known, now, before in zip(named, names, self.names, strict=True)]
        if self.lists or len(names) != len(self.names):
            self.settings.forget_schedules()  # they are remembered by number of the group
        check(groups, names, self._title)
        self.names = names
        return False

    def _hold_the_same(self, groups: Sequence[Mapping[str, Any]], scanner: GradientScanner) -> bool:
        same = scanner.same
        return len(groups) == len(self.lists) and all(
            same(group["params"], known) for group, known in zip(groups, self.lists, strict=True)
        )

    def remember(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Take the parameters of the groups as those of the last step.

        Raises:
            RuleError: A parameter has no values yet, as on the meta device.
        """
        has_values(groups, self.names, self._title)
        self.lists = [TensorList(group["params"]) for group in groups]
        meshes = [getattr(p, "device_mesh", None) for known in self.lists for p in known.tensors]
        self.meshes = [mesh for mesh in dict.fromkeys(meshes) if mesh is not None]
