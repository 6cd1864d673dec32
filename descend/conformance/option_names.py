"""From the option names of an optimizer's author to the constants of the published rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.conformance.published import Published

__all__ = ["constants_of"]

# Constant of a published rule: names it goes by, the first that is there counts. "betas 0" is the first of betas.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "beta1": ("beta1", "betas 0", "b1", "momentum"),
    "beta2": ("beta2", "betas 1", "b2"),
    "beta": ("beta", "betas 0", "momentum"),
    "eps": ("eps", "epsilon", "eps_value"),
    "rho": ("rho", "alpha", "beta2"),
    "momentum": ("momentum", "betas 0", "beta"),
    "trust": ("trust", "trust_coefficient", "trust_coeff", "eta"),
    "psi": ("schedule_decay", "momentum_decay"),
    "initial": ("initial", "initial_accumulator_value"),
    "amsgrad": ("amsgrad", "ams_bound"),
    "eta_minus": ("eta_minus", "etas 0"),
    "eta_plus": ("eta_plus", "etas 1"),
    "step_min": ("step_min", "step_sizes 0"),
    "step_max": ("step_max", "step_sizes 1"),
    "eps1": ("eps1", "eps 0"),
    "eps2": ("eps2", "eps 1"),
    "shampoo_beta": ("shampoo_beta", "betas 1"),
    "beta2_decay": ("beta2_decay", "decay_rate"),
    "d": ("d", "clip_threshold"),
    "frequency": ("frequency", "precondition_frequency"),
    "first_moment": ("betas 0",),
    "adjust": ("adjust", "adjust_lr_fn"),
    "lamda1": ("lamda1", "lambda_1", "l1"),
    "hyper_learning_rate": ("hyper_learning_rate", "hypergrad_lr"),
}
_MAY_BE_NONE = ("eps1",)  # the machine precision then; any other None leaves the authors' value
_DECOUPLED = ("decoupled_weight_decay", "weight_decouple", "decoupled_decay", "decouple")


def constants_of(rule: Published, options: Mapping[str, Any]) -> dict[str, Any]:
    """The rule's constants as an optimizer's options say them; where they say nothing, the authors' own."""
    found = {name: _value(name, default, options) for name, default in rule.constants.items()}
    return {**found, "decay_form": _decay_form(str(rule.constants["decay_form"]), options)}


def _value(name: str, default: Any, options: Mapping[str, Any]) -> Any:
    for spelling in SPELLINGS.get(name, (name,)):
        word, _, place = spelling.partition(" ")
        if word not in options:
            continue
        value = options[word]
        if place and isinstance(value, (tuple, list)):
            value = value[int(place)]
        elif place or isinstance(value, (tuple, list)) != isinstance(default, tuple):
            continue
        if value is not None or default is None or name in _MAY_BE_NONE:
            return value
    return default


def _decay_form(default: str, options: Mapping[str, Any]) -> str:
    """Where weight decay stands: as an option says, else as in the published rule."""
    said = options.get("decay")
    if default == "own":
        return "own"
    if isinstance(said, str):
        return "decoupled" if said == "decoupled" else "coupled"
    stated = [bool(options[word]) for word in _DECOUPLED if word in options]
    return default if not stated else "decoupled" if stated[0] else "coupled"
