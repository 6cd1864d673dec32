"""Checks a description of readers, all of which it knows, without opening a file."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from descend.arguments import check_bool, check_integer, check_number, check_string, collect
from descend.arguments.leniency import Deviation, refused
from descend.data.description import ROLES, DataReader, Reader
from descend.data.formats import FORMATS
from descend.data.transforms import RESCALES, Transform
from descend.errors import ConfigurationError, nearest
from descend.lazy import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from descend.data.reader_protocol import Format

__all__ = ["check", "known_readers"]

COMMON = frozenset(
    {
        "name",
        "role",
        "shuffle",
        "validation_fraction",
        "tournament_fraction",
        "absolute_sample_count",
        "first_n",
        "fraction_of_data_to_use",
        "gan_labelling",
        "gan_label_value",
        "transforms",
        "where",
    }
)
HELD_OUT = {"validate": "validation_fraction", "tournament": "tournament_fraction"}
FRACTIONS = (*HELD_OUT.values(), "fraction_of_data_to_use")


def check(description: DataReader) -> None:
    """Check a description before anything is opened.

    Raises:
        ConfigurationError: with every problem found: an unknown role or reader, two readers of one role, a value of the
            wrong type or out of range, a field that the reader does not use, a transform that is impossible.
    """
    problems = [*_whole(description), *(text for reader in description.reader for text in _one(reader))]
    if problems:
        raise ConfigurationError(problems)


def _whole(description: DataReader) -> Iterator[str]:
    place = f"{description.where}: " if description.where else ""
    if not description.reader:
        yield f"{place}the data reader has no reader; add one with a name and a role, such as {_options(ROLES)}"
    if problem := check_integer("workers", description.workers, 0):
        yield f"{place}{problem}"
    elif description.workers:
        for reader in description.reader:
            if reader.name in ("python", "python_dataset") and getattr(getattr(reader, reader.name), "workers", 0) > 1:
                yield f"{reader}: it has workers of its own, and so has the data reader; set one of them"
    for setting in ("max_par_io_size", "requires_data_set_metadata"):
        problem = f"{place}{setting} of the data reader has no effect"
        if getattr(description, setting) and refused(Deviation.SETTING_WITHOUT_EFFECT, problem):
            yield f"{problem}; remove it"
    counts = Counter(reader.role for reader in description.reader)
    for role, count in counts.items():
        if count > 1:
            yield f"{place}{count} readers have the role '{role}'; each role can have only one"
    for reader in description.reader:
        for role, fraction in HELD_OUT.items():
            if getattr(reader, fraction) and role in counts:
                problem = f"{reader}: {fraction} makes a reader of the role '{role}', and there is one"
                if refused(Deviation.HELD_OUT_BESIDE_READER, problem):
                    yield f"{problem}; remove one of them"


def _one(reader: Reader) -> Iterator[str]:
    problems = _types(reader) or [*_names(reader), *_amounts(reader)]  # a wrong type cannot be compared
    yield from (f"{reader}: {problem}" for problem in problems)
    rescaled = ""
    for transform in reader.transforms:
        name = type(transform).__name__
        place = replace(reader, where=getattr(transform, "where", None) or reader.where)
        yield from (f"{place}, transform {name}: {problem}" for problem in _transform(transform, rescaled))
        rescaled = rescaled or (name if isinstance(transform, RESCALES) else "")


def _types(described: Reader | Transform) -> list[str]:
    checked = ((f.name, getattr(described, f.name), _CHECKS.get(type(f.default))) for f in fields(described))
    return [problem for name, value, check_type in checked if check_type and (problem := check_type(name, value))]


_CHECKS: Mapping[type, Callable[[str, object], str | None]] = {
    str: check_string,
    bool: check_bool,
    int: check_integer,
    float: check_number,
}


def _names(reader: Reader) -> Iterator[str]:
    readers, not_here = known_readers()
    if reader.role not in ROLES:
        yield f"role '{reader.role}' does not exist; the roles are {_options(ROLES)}{nearest(reader.role, ROLES)}"
    if reader.name in not_here:
        yield f"LBANN's reader '{reader.name}' is not available here: {not_here[reader.name]}"
    elif reader.name not in readers:
        options = [*readers, *not_here]
        yield f"there is no reader of this name; the readers are {_options(readers)}{nearest(reader.name, options)}"
    else:
        used = COMMON | readers[reader.name].uses
        own = _options(sorted(readers[reader.name].uses)) or "none"
        for field in fields(reader):
            if field.name in used or getattr(reader, field.name) == field.default:
                continue
            problem = f"{field.name} is set and this reader does not use it"
            if refused(Deviation.SETTING_WITHOUT_EFFECT, f"{reader}: {problem}"):
                yield f"{problem}; remove it (its own fields: {own})"


def _amounts(reader: Reader) -> Iterator[str]:
    for name in FRACTIONS:
        yield from collect(check_number(name, getattr(reader, name), at_least=0, at_most=1))
    counts = ("absolute_sample_count", "first_n", "num_samples", "num_labels", "num_image_srcs", "max_files_to_load")
    for name in (*counts, "skip_rows", "skip_cols", "sequence_length"):
        yield from collect(check_integer(name, getattr(reader, name), 0))
    if reader.gan_label_value and (reader.gan_label_value != 1 or not reader.gan_labelling):
        yield f"gan_label_value must be 0 or 1, and needs gan_labelling: true; got {reader.gan_label_value}"
    if reader.fraction_of_data_to_use and reader.absolute_sample_count:
        yield (
            f"fraction_of_data_to_use is {reader.fraction_of_data_to_use} and absolute_sample_count is "
            f"{reader.absolute_sample_count}; set one of the two, or neither for all samples"
        )
    if reader.role != "train":
        for name in HELD_OUT.values():
            if getattr(reader, name):
                problem = f"{name} is set, and only a reader of the role 'train' can hold out samples"
                if refused(Deviation.HELD_OUT_BESIDE_READER, f"{reader}: {problem}"):
                    yield problem
    elif reader.validation_fraction + reader.tournament_fraction >= 1:
        yield "validation_fraction and tournament_fraction leave nothing to train on; their sum must be less than 1"


def _transform(transform: Any, rescaled: str) -> Iterator[str]:
    """Problems of a transform; `rescaled` names the first one before it that changed the range of values, if any."""
    if not isinstance(transform, Transform):
        yield f"{transform!r} is not a transform of descend.data"
        return
    yield from _types(transform) or transform.problems()
    if transform.needs_pixels and rescaled:
        yield f"it needs pixels of 0 to 255 and comes after {rescaled}; put it before"


def _options(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# ---- all readers that a description can name


@cache
def known_readers() -> tuple[Mapping[str, Format], Mapping[str, str]]:
    """The readers by name, with LBANN's where its annex is; and why readers of LBANN's are not available, by name."""
    return {**FORMATS, **(registered("lbann_readers") or {})}, registered("refused_lbann_readers") or {}
