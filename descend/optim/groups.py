"""Who is decayed and who is scaled: groups from rules over names, layers and shapes.

    groups = descend.optim.groups.split(model, undecayed=["bias", "norm"], unscaled=["dims<=1"])
    optimizer = descend.optim.LAMB(groups, lr=2e-3, weight_decay=0.01)
    print(descend.optim.explain(optimizer))

Decay and layer-wise scaling are excluded apart from each other, since recipes do. A rule is one of

    "bias"       weights whose own name is `bias`, begins with `bias_` or ends in `_bias`, as those of nn.LSTM and of
                 nn.MultiheadAttention do
    "norm"       weights of a normalization layer; needs the model
    "dims<=1"    weights with at most so many dimensions; also <, ==, >=, >
    "*.head.*"   weights whose whole name matches, with * for any text, ? for any letter and [...] for a choice

A rule that matches nothing is an error, since a recipe that silently excludes nobody is another recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from descend.errors import RuleError, nearest
from descend.parameter_filter import ParameterInfo, matches
from descend.torch_private import norm_class

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["split"]

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


def _check_rules(what: str, rules: Any) -> None:
    """Refuse what is no list of rules, or for "options" no dict by rule."""
    fitting = isinstance(rules, Mapping) if what == "options" else isinstance(rules, Iterable)
    if isinstance(rules, str) or not fitting:
        wanted = "a dict from rules to options" if what == "options" else 'a list of rules, e.g. ["bias"],'
        raise RuleError(f"split: {what} must be {wanted} and is {rules!r}")
    for rule in rules:
        if not isinstance(rule, str):
            raise RuleError(f"split: a rule is a text such as 'bias' and one of {what} is {rule!r}")
        if what == "options" and not isinstance(rules[rule], Mapping):
            raise RuleError(f"split: the options of '{rule}' must be a dict and are {rules[rule]!r}")
        if what == "options" and (taken := [key for key in _OWN_KEYS if key in rules[rule]]):
            raise RuleError(f"split: '{taken[0]}' of '{rule}' is no option; split writes it itself")


def _named(model: nn.Module | Iterable[tuple[str, Tensor]]) -> list[Named]:
    if not isinstance(model, nn.Module):
        pairs = list(cast("Iterable[Any]", model.items() if isinstance(model, Mapping) else model))
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor) for pair in pairs):
            raise RuleError("split: rules look at names; give the model, or its named_parameters()")
        return [Named(name, p, None) for name, p in pairs if p.requires_grad]
    layers = dict(model.named_modules())
    return [Named(name, p, layers[name.rpartition(".")[0]]) for name, p in model.named_parameters() if p.requires_grad]


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
