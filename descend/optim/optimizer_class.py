"""Makes the named optimizer of a rule: a subclass of `Optimizer` with the rule's fields as options.

Adam = optimizer_class(rules.Adam, lr=1e-3)
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.arguments.strict_keywords import canonical_names
from descend.errors import RuleError
from descend.optim.engine.settings import aliases_of, describe_options, rule_fields, unknown_option
from descend.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.optim.rules.base import Rule

__all__ = ["face", "optimizer_class"]

# Names of options in descriptions such as `descend.Adam(learn_rate=...)`, which optimizers take as well.
_DESCRIPTION_NAMES = {"learn_rate": "lr", "init_learning_rate": "lr", "decay_rate": "rho"}


def optimizer_class(
    rule: type[Rule],
    *,
    name: str | None = None,
    lr: float | None = None,
    weight_decay: float = 0.0,
    decay: str = "coupled",
    doc: str = "",
    **constants: Any,
) -> type[Optimizer]:
    """The named optimizer of a rule: `Adam = optimizer_class(rules.Adam, lr=1e-3)`.

    Args:
        rule: The rule; its fields become keyword options with their defaults.
        name: Name of the class, that of the rule unless given.
        lr: Default learning rate; None makes it a required option.
        weight_decay: Default decay.
        decay: Default form of the decay.
        doc: How this optimizer differs from the rule, e.g. "Adam with decoupled decay".
        constants: Other defaults for the rule's fields.

    Returns:
        A subclass of `Optimizer` with its own signature and docstring. Bind it to `name` in the calling module, so that
        it can be pickled.
    """
    title = name or rule.__name__
    options = _signature(rule, lr, weight_decay, decay, constants)
    aliases = {
        alias: own
        for alias, own in _DESCRIPTION_NAMES.items()
        if own in options.parameters and alias not in options.parameters
    }

    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        kwargs = canonical_names(title, kwargs, aliases, RuleError)
        given = _bound(title, rule, options, args, kwargs)
        params = given.pop("params")
        own = {key: given.pop(key) for key in rule_fields(rule)}
        for alias, names in aliases_of(rule).items():
            own |= _spread(title, alias, names, given.pop(alias), kwargs)
        Optimizer.__init__(self, params, cast("Any", rule)(**own), **given)

    cast("Any", init).__signature__ = options  # what inspect.signature reads
    init.__name__, init.__qualname__ = "__init__", f"{title}.__init__"
    body = {
        "__init__": init,
        "__doc__": _docstring(rule, doc),
        "__module__": _caller(),  # so that pickling finds the class where it is bound
        "__signature__": options.replace(parameters=list(options.parameters.values())[1:]),
        "rule_class": rule,
    }
    return cast("type[Optimizer]", type(title, (Optimizer,), body))


face = optimizer_class  # the name of earlier releases


def _caller() -> str:
    """Name of the module that called `optimizer_class`."""
    frame = inspect.currentframe()
    return frame.f_back.f_back.f_globals["__name__"] if frame and frame.f_back and frame.f_back.f_back else __name__


def _signature(
    rule: type[Rule], lr: float | None, weight_decay: float, decay: str, constants: Mapping[str, Any]
) -> inspect.Signature:
    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    required = {f.name for f in fields(cast("Any", rule))} - set(_defaults(rule)) - set(constants)
    for key in constants:
        if key not in rule_fields(rule):
            raise RuleError(unknown_option(rule.__name__, key, rule))
    base = inspect.signature(Optimizer.__init__).parameters
    defaults = {"lr": inspect.Parameter.empty if lr is None else lr, "weight_decay": weight_decay, "decay": decay}
    own = [
        inspect.Parameter(key, keyword, default=inspect.Parameter.empty if key in required else value)
        for key, value in {**rule_fields(rule), **constants}.items()
    ]
    aliases = [inspect.Parameter(key, keyword, default=None) for key in aliases_of(rule)]
    engine = [
        p.replace(kind=keyword, default=defaults.get(key, p.default))
        for key, p in base.items()
        if key not in ("self", "params", "rule", "lr")
    ]
    first = [
        inspect.Parameter("self", either),
        inspect.Parameter("params", either),
        inspect.Parameter("lr", either, default=defaults["lr"]),
    ]
    return inspect.Signature([*first, *own, *aliases, *engine])


def _defaults(rule: type[Rule]) -> list[str]:
    return [p.name for p in inspect.signature(rule).parameters.values() if p.default is not inspect.Parameter.empty]


def _bound(
    title: str, rule: type[Rule], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name, defaults filled in, or an error that names the option and the nearest good one."""
    known = signature.parameters
    wrong = [unknown_option(title, key, rule, more=known) for key in kwargs if key not in known]
    if wrong:
        raise RuleError(wrong)
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as problem:
        many = "beside params and lr, give every option by its name" if len(args) > 2 else str(problem)
        raise RuleError(f"{title}: {many}. Its options are {describe_options(rule)}") from None
    bound.apply_defaults()
    return {key: value for key, value in bound.arguments.items() if key != "self"}


def _spread(title: str, alias: str, names: tuple[str, ...], values: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """`betas=(0.9, 0.95)` as beta1 and beta2."""
    if values is None:
        return {}
    both = [name for name in names if name in given]
    if both:
        raise RuleError(f"{title}: {alias} and {', '.join(both)} say the same; give one of them")
    if not isinstance(values, (tuple, list)) or len(values) != len(names):
        raise RuleError(f"{title}: {alias} must hold {len(names)} numbers, ({', '.join(names)}), got {shown(values)}")
    return dict(zip(names, values, strict=True))


def _docstring(rule: type[Rule], doc: str) -> str:
    equations = getattr(sys.modules.get(rule.__module__), "__doc__", "") or ""
    parts = [doc, inspect.cleandoc(rule.__doc__ or ""), inspect.cleandoc(equations)]
    return "\n\n".join(part for part in parts if part)
