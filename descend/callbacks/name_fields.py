"""Checks the fields of callbacks. A list of names is one string with spaces; an empty string means all names.

A field has the same name and meaning in every callback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend import arguments
from descend.arguments import check_number
from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, MissingExtra, nearest
from descend.train import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from descend.train import Callback

__all__ = ["MODE_WORDS", "at_least", "modes_of", "problems", "require", "require_extra", "require_samples", "words"]

_FIELDS: Mapping[str, str] = {
    "weights": "weights",
    "output_name": "weights",
    "layers": "layer",
    "disable_layers": "layer",
    "layers_1": "layer",
    "layers_2": "layer",
    "source_layers": "layer",
    "destination_layers": "layer",
    "prediction": "layer",
    "label": "layer",
    "image_source_layer_name": "layer",
    "accuracy_layer_name": "layer",
    "metric": "metric",
    "monitor": "metric",
}

_MODES = {
    "train": Mode.TRAIN,
    "training": Mode.TRAIN,
    "validate": Mode.VALIDATION,
    "validation": Mode.VALIDATION,
    "test": Mode.TEST,
    "testing": Mode.TEST,
    "tournament": Mode.TOURNAMENT,
}

# LBANN's words for the modes, in its files and log lines.
MODE_WORDS: Mapping[Mode, str] = {
    Mode.TRAIN: "training",
    Mode.VALIDATION: "validation",
    Mode.TEST: "testing",
    Mode.TOURNAMENT: "tournament",
}


def words(text: str) -> tuple[str, ...]:
    """The names in a string."""
    return tuple(text.split())


def modes_of(text: str) -> frozenset[Mode]:
    """The modes in a string; all of them where it is empty.

    Raises:
        ConfigurationError: there is no such mode.
    """
    if unknown := [word for word in words(text) if word not in _MODES]:
        raise ConfigurationError(f"there is no execution mode '{unknown[0]}'; there are {', '.join(_MODES)}")
    return frozenset(_MODES[word] for word in words(text)) or frozenset(Mode)


def at_least(callback: object, least: float, *fields: str) -> None:
    """Refuse numbers below `least`.

    Raises:
        ConfigurationError: every such field with its value.
    """
    checked = (check_number(name, getattr(callback, name), at_least=least, finite=False) for name in fields)
    arguments.require(checked, where=type(callback).__name__)


def require(callback: Callback, *fields: str) -> None:
    """Refuse empty fields.

    Raises:
        ConfigurationError: every field that is empty.
    """
    missing = [f"{type(callback).__name__} needs {name}=" for name in fields if not getattr(callback, name)]
    if missing:
        raise ConfigurationError(missing)


def require_samples(callback: Callback, modes: Collection[Mode]) -> None:
    """Refuse a callback for a mode without samples.

    Args:
        callback: The callback.
        modes: The modes that the run has samples for.

    Raises:
        ConfigurationError: it observes none of them.
    """
    if not callback.looks_at or not set(callback.looks_at).isdisjoint(modes):
        return
    where = getattr(callback, "where", None)
    what, roles = _any_of(callback.looks_at), _any_of(f"'{Mode(mode).role}'" for mode in callback.looks_at)
    problem = f"{f'{where}: ' if where else ''}{type(callback).__name__} needs {what} samples and this run has none"
    if refused(Deviation.NO_SAMPLES_TO_WATCH, problem):
        raise ConfigurationError(
            f"{problem}: give a reader the role {roles}{_of_fit(callback.looks_at)}, or remove the callback"
        )


def _of_fit(modes: Iterable[str]) -> str:
    """What `descend.fit` calls the samples of these modes."""
    names = {Mode.VALIDATION: "valid=", Mode.TEST: "test=", Mode.TOURNAMENT: "tournament="}
    if said := [names[Mode(mode)] for mode in modes if Mode(mode) in names]:
        return f" (of fit: {' or '.join(said)})"
    return ""


def require_extra(callback: Callback) -> None:
    """Refuse a callback that needs a library which is not installed.

    Raises:
        MissingExtra: it does; the message says what to install.
    """
    if problem := callback.missing_extra():
        where = getattr(callback, "where", None)
        raise MissingExtra(f"{f'{where}: ' if where else ''}{problem}")


def _any_of(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _is_field(callback: Any, field: str) -> bool:
    """Whether it is a field of one of our callbacks; a user's class may use the name for anything."""
    own = __name__.partition(".")[0]
    kinds = [kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == own]
    return any(field in vars(kind).get("__annotations__", {}) for kind in kinds)


def _named(field: str, text: str) -> tuple[str, ...]:
    """The names in a field. A metric may have spaces in its name, and stands behind its mode in `monitor`."""
    if field == "monitor":
        name = text.partition("/")[2]
        return () if name == "objective" else (name,)
    return words(text) if field != "metric" else (text,) * bool(text)


def problems(callbacks: Iterable[Any], known: Mapping[str, Iterable[str]]) -> list[str]:
    """The problem with each unknown name in the fields of callbacks.

    Args:
        callbacks: The callbacks of a run.
        known: All names of each kind, by "layer", "weights" and "metric"; a missing kind is not checked.
    """
    return [
        f"{f'{callback.where}: ' if getattr(callback, 'where', None) else ''}{type(callback).__name__}.{field} names a "
        f"{kind} '{name}' that does not exist{nearest(name, known[kind])}"
        for callback in callbacks
        for field, kind in _FIELDS.items()
        if kind in known and _is_field(callback, field) and isinstance(text := getattr(callback, field, None), str)
        for name in _named(field, text)
        if name not in known[kind]
    ]
