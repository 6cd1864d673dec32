"""Other libraries' spellings: their names, arguments and defaults in, our optimizers with their arithmetic out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from descend.compat import authors, lbann_optimizers, optax, torch_optim
from descend.compat.mxnet import common, mxnet19, mxnet20, schedulers
from descend.compat.translation import Translation, build, call
from descend.errors import RuleError, Unsupported, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from descend.optim.optimizer import Optimizer
    from descend.optim.schedules import Schedule

__all__ = ["LIBRARIES", "from_library", "schedule_from_library"]

OPTIMIZERS: dict[str, tuple[Mapping[str, Callable[..., Translation]], Mapping[str, str]]] = {
    "mxnet-1.9": (mxnet19.OPTIMIZERS, mxnet19.REFUSED),
    "mxnet-2.0": (mxnet20.OPTIMIZERS, mxnet20.REFUSED),
    "torch": (torch_optim.OPTIMIZERS, torch_optim.REFUSED),
    "lbann": (lbann_optimizers.OPTIMIZERS, lbann_optimizers.REFUSED),
    "optax": (optax.OPTIMIZERS, optax.REFUSED),
    **authors.SOURCES,
}
LIBRARIES = tuple(OPTIMIZERS)


def _library(library: str) -> str:
    if library not in LIBRARIES:
        close = nearest(str(library), LIBRARIES) or ";"
        raise RuleError(f"no library {library!r}{close} known are {', '.join(LIBRARIES)}")
    return library


def _named(library: str, name: str) -> str:
    """The library's own spelling of a name, any case."""
    table, refused = OPTIMIZERS[_library(library)]
    _text(library, "an optimizer", name, table)
    if name in table:
        return name
    folded = {known.lower(): known for known in (*refused, *table)}
    found = folded.get(name.lower(), name)
    if found in refused:
        raise Unsupported(f"{library} {found}: {refused[found]}")
    if found not in table:
        raise RuleError(
            f"{library} has no optimizer '{name}'{nearest(name, table) or ';'} known are {', '.join(table)}"
        )
    return found


def _text(library: str, what: str, name: object, known: Iterable[str]) -> None:
    if not isinstance(name, str):
        raise RuleError(f"{library}: the name of {what} must be a string, got {name!r}; known are {', '.join(known)}")


def recipe_from_library(library: str, name: str, kwargs: Mapping[str, Any]) -> Translation:
    """The recipe behind `from_library`, for those who print or compare it."""
    found = _named(library, name)
    table, _ = OPTIMIZERS[library]
    if library.startswith("mxnet"):
        return common.recipe(library.removeprefix("mxnet-"), table, found, kwargs)
    return call(f"{library}'s {found}", table[found], kwargs)


def from_library(library: str, name: str, params: Iterable[Any], **kwargs: Any) -> Optimizer:
    """An optimizer given in another library's words, with that library's arithmetic.

    Args:
        library: One of `LIBRARIES`.
        name: The library's name of the optimizer.
        params: Tensors, (name, tensor) pairs, or groups with the library's own arguments in them.
        kwargs: The library's arguments. For MXNet also `lr_scheduler=(class name, arguments)`, `lr_mult` and `wd_mult`
            (a factor for each tensor, or a dict by index or name), and `batch_size` for gluon.Trainer's form.

    Raises:
        Unsupported: It is known and cannot be had here; the message says why.
        RuleError: A name or an argument is unknown, or a value is one that the library refuses.
    """
    _named(library, name)
    try:
        return build(f"{library} {name}", params, lambda own: recipe_from_library(library, name, {**kwargs, **own}))
    except RuleError as refused:
        raise RuleError(
            [_in_their_words(problem, f"{library} {name}", kwargs) for problem in refused.problems]
        ) from None


def _in_their_words(problem: str, title: str, kwargs: Mapping[str, Any]) -> str:
    """A problem that names an option of ours, with the library's argument that the value came from in front."""
    seen = problem.rpartition(", got ")[2]
    if any(re.search(rf"\b{re.escape(key)}\b", problem) for key in kwargs):
        return problem
    meant = [f"{key}={value!r}" for key, value in kwargs.items() if any(map(seen.startswith, _shown(value)))]
    return f"{title}({', '.join(meant)}): {problem}" if meant else problem


def _shown(value: Any) -> list[str]:
    """A value, or each of several, as text for a message."""
    parts: list[Any] = [value, *value] if isinstance(value, (list, tuple)) else [value]
    whole = [part for part in parts if isinstance(part, int) and abs(part) < 1e300]  # further than a float goes is inf
    return [*map(repr, parts), *(repr(float(part)) for part in whole)]


def schedule_from_library(library: str, name: str, **kwargs: Any) -> Schedule:
    """A learning-rate schedule given in another library's words.

    Args:
        library: "mxnet-1.9", "mxnet-2.0", "torch" or "optax".
        name: The library's name, for example "FactorScheduler", "CosineAnnealingLR", "warmup_cosine_decay_schedule".
        kwargs: The library's arguments. torch's schedulers get their optimizer's rate as `lr`. MXNet's take
            `optimizer_learning_rate`, the rate of an optimizer that the scheduler was attached to.

    Returns:
        A function of the number of updates already applied. MXNet's num_update is that number plus 1.

    Raises:
        Unsupported: The library has no schedules of this kind.
        RuleError: A name or an argument is unknown, or a value is one that the library refuses.
    """
    if _library(library).startswith("mxnet"):
        _text(library, "a schedule", name, schedulers.SCHEDULERS)
        return schedulers.scheduler(name, **kwargs)
    tables: dict[str, tuple[Mapping[str, Callable[..., Schedule]], Mapping[str, str]]] = {
        "torch": (torch_optim.SCHEDULES, torch_optim.REFUSED_SCHEDULES),
        "optax": (optax.SCHEDULES, optax.REFUSED_SCHEDULES),
    }
    if library not in tables:
        raise Unsupported(f"{library} has no schedules of its own; descend.optim.schedules has")
    table, refused = tables[library]
    _text(library, "a schedule", name, table)
    if name in refused:
        raise Unsupported(f"{library} {name}: {refused[name]}")
    if name not in table:
        raise RuleError(f"{library} has no schedule '{name}'{nearest(name, table) or ';'} known are {', '.join(table)}")
    return call(f"{library}'s {name}", table[name], kwargs)
