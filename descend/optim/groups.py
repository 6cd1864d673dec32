"""Which parameters are decayed, scaled and trained: groups from rules over names, layers and shapes.

    no_decay(model)                     two groups: biases, norms and other vectors are not decayed
    layerwise(model, factor=0.75)       a learning rate for each layer, lower towards the input
    train_only(model, ["*.lora_*"])     freezes all others
    split(model, undecayed=..., ...)    any groups

    groups = descend.optim.groups.split(model, undecayed=["bias", "norm"], unscaled=["dims<=1"])
    optimizer = descend.optim.LAMB(groups, lr=2e-3, weight_decay=0.01)
    print(descend.optim.explain(optimizer))

The groups of `no_decay` and `layerwise` are for optimizers of any library, and have names, by which rows of a run and
loggers call their learning rates.

Decay and layer-wise scaling are excluded apart from each other, since recipes do. A rule is one of

    "bias"       weights whose own name is `bias`, begins with `bias_` or ends in `_bias`, as those of nn.LSTM and of
                 nn.MultiheadAttention do
    "norm"       weights of a normalization layer; needs the model
    "dims<=1"    weights with at most so many dimensions; also <, ==, >=, >
    "*.head.*"   weights whose whole name matches, with * for any text, ? for any letter and [...] for a choice

A rule that matches nothing is an error, since a recipe that silently excludes nothing is another recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from descend.arguments import check_number, require
from descend.arguments.parameter_filter import ParameterInfo, matches
from descend.arguments.strict_keywords import strict_keywords
from descend.errors import RuleError, nearest
from descend.torch_private import norm_class

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["layerwise", "no_decay", "split", "train_only"]

_NORM_LAYERS = (
    norm_class(),
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


_OWN_KEYS = ("params", "param_names", "reasons")


@dataclass(frozen=True)
class Named:
    """Weights with what rules look at.

    Attributes:
        name: Their whole name.
        weights: The tensor.
        layer: The layer that owns them, where a model was given.
    """

    name: str
    weights: Tensor
    layer: nn.Module | None


@strict_keywords()
def split(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    *,
    undecayed: Sequence[str] = (),
    unscaled: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Groups for an optimizer, with names.

    Args:
        model: The model, or names and tensors; frozen weights are left out.
        undecayed: Rules for weights without weight decay.
        unscaled: Rules for weights that LARS, LAMB and their like do not scale.
        options: For further rules, options of the weights that they match, e.g. `{"*.head.*": {"lr_mult": 10.0}}`;
            where several match, the later one's options hold.

    Returns:
        One group for each set of options, in the order of first appearance; `group["reasons"]` says for each of its
        weights which rules decided, and `explain` prints it.

    Raises:
        RuleError: A rule matches nothing, "norm" is used without the model, or nothing is trainable.
    """
    for what, given in (("undecayed", undecayed), ("unscaled", unscaled), ("options", options or {})):
        _check_rules(what, given)
    named = _named(model)
    if not named:
        raise RuleError("split: nothing is trainable; every weight is frozen, or the model has none")
    rules: list[tuple[str, Mapping[str, Any]]] = [
        *((rule, {"weight_decay": 0.0}) for rule in undecayed),
        *((rule, {"scaled": False}) for rule in unscaled),
        *(options or {}).items(),
    ]
    problems = [problem for rule, _ in rules if (problem := _complaint(rule, named)) is not None]
    if problems:
        raise RuleError(problems)
    return _grouped(named, rules)


@strict_keywords()
def no_decay(
    model: nn.Module | Iterable[tuple[str, Tensor]], *, weight_decay: float | None = None, also: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Two groups, "decayed" and "undecayed"; one of them is left out where it would be empty.

        optimizer = torch.optim.AdamW(descend.optim.groups.no_decay(model), lr=1e-3, weight_decay=0.05)

    Not decayed are biases, weights of normalization layers, everything else of at most one dimension, what the model
    itself names in a method `no_weight_decay()`, as timm's models do, and `also`.

    Args:
        model: The model, or names and tensors; frozen weights are left out.
        weight_decay: That of the decayed group; None leaves it to the optimizer.
        also: Further rules, see the top of this file.

    Raises:
        RuleError: A rule of `also` matches nothing, or nothing is trainable.
    """
    require(check_number("weight_decay", weight_decay, at_least=0, also=(None,)), where="no_decay", error=RuleError)
    named = _checked(model, "no_decay", also=also)
    own = _named_by_the_model(model) if isinstance(model, nn.Module) else set[str]()
    rules = ("bias", "norm", "dims<=1", *also)
    decayed: dict[str, Any] = {"params": [], "name": "decayed"}
    if weight_decay is not None:
        decayed["weight_decay"] = weight_decay
    undecayed: dict[str, Any] = {"params": [], "name": "undecayed", "weight_decay": 0.0}
    for one in named:
        spared = one.name in own or any(_matches(rule, one) for rule in rules)
        (undecayed if spared else decayed)["params"].append((one.name, one.weights))
    return [group for group in (decayed, undecayed) if group["params"]]


@strict_keywords()
def layerwise(
    model: nn.Module,
    factor: float,
    *,
    lr: float | None = None,
    layers: Sequence[str] | None = None,
    undecayed: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A group for each layer, whose learning rate is `factor` times that of the layer above it.

        groups = descend.optim.groups.layerwise(model, 0.75, lr=1e-3, undecayed=["dims<=1"])
        optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.05)

    Layers are the entries of the longest list of layers with weights: a `ModuleList` or `Sequential` in the model, or
    the model's own children. What is registered before that list (embeddings) is one layer below it, and what comes
    after (the head) one above.

    Args:
        model: The model; frozen weights are left out.
        factor: Above 0; 1 gives all layers the same rate.
        lr: The rate of the uppermost layer, for an optimizer of any library; groups then have an "lr". None gives them
            an "lr_mult" instead, for optimizers of `descend.optim`, where the rate may be a schedule.
        layers: Rules of the layers, the lowest first, such as `["embed.*", "blocks.0.*", "blocks.1.*", "head.*"]`; a
            weight is of the first layer that matches it.
        undecayed: Rules for weights without weight decay, which then are groups of their own.

    Returns:
        Groups named "layer 0", "layer 0, undecayed", "layer 1" and so on, the lowest first.

    Raises:
        RuleError: `factor` or `lr` is not a number above 0; a rule matches nothing; `layers` leaves weights out; none
            is trainable.

    Source: Clark et al. 2020, https://arxiv.org/abs/2003.10555
    """
    require(
        check_number("factor", factor, above=0),
        check_number("lr", lr, above=0, also=(None,)),
        where="layerwise",
        error=RuleError,
    )
    named = _checked(model, "layerwise", layers=layers or (), undecayed=undecayed)
    depths = _depths(model, named) if layers is None else _depths_by(layers, named)
    top = max(depths)
    found: dict[tuple[int, bool], dict[str, Any]] = {}
    for depth, one in zip(depths, named, strict=True):
        spared = any(_matches(rule, one) for rule in undecayed)
        part = factor ** (top - depth)
        rate = {"lr_mult": part} if lr is None else {"lr": lr * part}
        fresh = {"params": [], "name": f"layer {depth}{', undecayed' * spared}", **rate}
        group = found.setdefault((depth, spared), {**fresh, **({"weight_decay": 0.0} if spared else {})})
        group["params"].append((one.name, one.weights))
    return [found[key] for key in sorted(found)]


@strict_keywords()
def train_only(model: nn.Module, rules: Sequence[str]) -> list[str]:
    """Freeze all weights of a model but those that a rule matches, which are trained from now on.

        descend.optim.groups.train_only(model, ["*.lora_*", "head.*"])

    Frozen weights have no gradient, and no state of an optimizer that is made afterwards.

    Args:
        model: The model; `requires_grad` of its weights is set.
        rules: See the head of this file.

    Returns:
        Names of the weights that are trained.

    Raises:
        RuleError: A rule matches nothing, or something that cannot have a gradient; nothing was changed then.
    """
    named = _checked(model, "train_only", frozen=True, rules=rules)
    if not rules:
        raise RuleError("train_only: rules is empty, so nothing would be trained")
    chosen = [any(_matches(rule, one) for rule in rules) for one in named]
    for one, trained in zip(named, chosen, strict=True):
        if trained and not (one.weights.is_floating_point() or one.weights.is_complex()):
            raise RuleError(f"train_only: '{one.name}' is of type {one.weights.dtype} and cannot be trained")
    for one, trained in zip(named, chosen, strict=True):
        one.weights.requires_grad_(trained)
    return [one.name for one, trained in zip(named, chosen, strict=True) if trained]


def _checked(
    model: nn.Module | Iterable[tuple[str, Tensor]], where: str, *, frozen: bool = False, **rules: Sequence[str]
) -> list[Named]:
    """The weights of a model with their names; every rule matches some of them."""
    for what, given in rules.items():
        _check_rules(what, given, where)
    named = _named(model, where, frozen)
    if not named:
        raise RuleError(f"{where}: nothing is trainable; every weight is frozen, or the model has none")
    every = [rule for given in rules.values() for rule in given]
    if problems := [f"{where}: {problem}" for rule in every if (problem := _complaint(rule, named)) is not None]:
        raise RuleError(problems)
    return named


def _named_by_the_model(model: nn.Module) -> set[str]:
    """Names of weights in the `no_weight_decay()` of a model and of modules in it."""
    found: set[str] = set()
    for place, part in model.named_modules():
        asked = getattr(part, "no_weight_decay", None)
        if callable(asked):
            names = cast("Iterable[str]", asked())
            found.update(f"{place}.{name}" if place else name for name in names)
    return found


def _depths(model: nn.Module, named: Sequence[Named]) -> list[int]:
    """The layer of each weight by the longest list of layers."""
    lists = [
        (place, [name for name, part in held.named_children() if next(part.parameters(), None) is not None])
        for place, held in model.named_modules()
        if held is model or isinstance(held, (nn.ModuleList, nn.Sequential))
    ]
    place, names = max(lists, key=lambda entry: len(entry[1]))
    prefix = f"{place}." if place else ""
    number = {f"{prefix}{name}": i + 1 for i, name in enumerate(names)}
    depths: list[int] = []
    above = 0
    for name in (one.name for one in named):
        entry = prefix + name.removeprefix(prefix).partition(".")[0]
        inside = number.get(entry) if name.startswith(prefix) else None
        above = len(number) + 1 if inside or above else 0
        depths.append(inside or above)
    used = {depth: i for i, depth in enumerate(sorted(set(depths)))}  # counted from 0, without gaps
    return [used[depth] for depth in depths]


def _depths_by(layers: Sequence[str], named: Sequence[Named]) -> list[int]:
    """The layer of each weight by rules."""
    depths = [next((i for i, rule in enumerate(layers) if _matches(rule, one)), -1) for one in named]
    if left := [one.name for one, depth in zip(named, depths, strict=True) if depth < 0]:
        raise RuleError(f"layerwise: {len(left)} weights are of none of the layers, e.g. '{left[0]}'; add a rule")
    return depths


def _check_rules(what: str, rules: Any, where: str = "split") -> None:
    """Refuse what is not a list of rules, or for "options" no dict by rule."""
    fitting = isinstance(rules, Mapping) if what == "options" else isinstance(rules, Iterable)
    if isinstance(rules, str) or not fitting:
        wanted = "a dict from rules to options" if what == "options" else 'a list of rules, e.g. ["bias"],'
        raise RuleError(f"{where}: {what} must be {wanted}, got {rules!r}")
    for rule in rules:
        if not isinstance(rule, str):
            raise RuleError(f"{where}: a rule is a text such as 'bias' and one of {what} is {rule!r}")
        if what == "options" and not isinstance(rules[rule], Mapping):
            raise RuleError(f"split: the options of '{rule}' must be a dict, got {rules[rule]!r}")
        if what == "options" and (taken := [key for key in _OWN_KEYS if key in rules[rule]]):
            raise RuleError(f"split: '{taken[0]}' of '{rule}' is not an option; split writes it itself")


def _named(model: nn.Module | Iterable[tuple[str, Tensor]], where: str = "split", frozen: bool = False) -> list[Named]:
    if not isinstance(model, nn.Module):
        pairs = list(cast("Iterable[Any]", model.items() if isinstance(model, Mapping) else model))
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor) for pair in pairs):
            raise RuleError(f"{where}: rules look at names; give the model, or its named_parameters()")
        return [Named(name, p, None) for name, p in pairs if frozen or p.requires_grad]
    layers = dict(model.named_modules())
    weights = [(name, p) for name, p in model.named_parameters() if frozen or p.requires_grad]
    return [Named(name, p, layers[name.rpartition(".")[0]]) for name, p in weights]


def _matches(rule: str, one: Named) -> bool:
    own = one.name.rpartition(".")[2]
    is_bias = own == "bias" or own.startswith("bias_") or own.endswith("_bias")
    return matches(rule, ParameterInfo(one.name, one.weights.ndim, is_bias, isinstance(one.layer, _NORM_LAYERS)))


def _complaint(rule: str, named: Sequence[Named]) -> str | None:
    """What is wrong with a rule that matches nothing."""
    if any(_matches(rule, one) for one in named):
        return None
    if rule == "norm" and all(one.layer is None for one in named):
        return "rule 'norm' looks at layers: give the model itself, not its named_parameters()"
    close = nearest(rule, [one.name for one in named])
    return f"rule '{rule}' matches none of the {len(named)} weights{close or ','} e.g. '{named[0].name}'"


def _grouped(named: Sequence[Named], rules: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    groups: list[tuple[dict[str, Any], dict[str, Any]]] = []  # options and the group that has them
    for one in named:
        matching = [(rule, said) for rule, said in rules if _matches(rule, one)]
        options = {key: value for _, said in matching for key, value in said.items()}
        group = next((group for have, group in groups if have == options), None)
        if group is None:
            group = {"params": [], "reasons": [], **options}
            groups.append((options, group))
        group["params"].append((one.name, one.weights))
        group["reasons"].append("; ".join(_reason(rule, said) for rule, said in matching) or "defaults")
    return [group for _, group in groups]


def _reason(rule: str, said: Mapping[str, Any]) -> str:
    return f"{rule}: {', '.join(f'{key}={value}' for key, value in said.items())}"
