"""Looks at data before a run: what the fields hold, and what is wrong with them.

Up to `limit` samples of each role are read, chosen at random with a fixed seed where there are more. Problems are

    unreadable      a sample cannot be read
    missing         a field has NaN, NaT or an empty text
    infinite        a field has an infinite number
    out of range    a number is farther from the median than a thousand times the middle half of the values is wide
    constant        a field has the same value in all samples
    labels          integers that name classes are negative, or some between 0 and the largest one never come
    form            images of two roles differ in shape or type
    duplicate       samples have the same content
    leak            samples of two roles have the same content

The content of a sample is that of its fields without targets, and without integers and texts that are different in all
samples, since they number them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.description import ROLES
from descend.data.file_format import file_formats
from descend.data.files import read
from descend.data.order import key_of, permute
from descend.data.paths import files_of, is_path
from descend.data.reader_protocol import bytes_of_sample
from descend.data.survey.speed import samples_per_second
from descend.data.tables.arrow_columns import LENGTH
from descend.data.transformed import transform
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.files import FileReader
    from descend.data.reader_protocol import Array
    from descend.data.transforms import Transform

__all__ = ["FieldSummary", "Problem", "Survey", "readers_of", "survey"]

LIMIT = 20_000  # samples of a role that are read, unless another number is said
SHOWN_SAMPLES = 8
_AT_ONCE = 64
_BYTES_AT_ONCE = 2**27  # of samples, without their texts
_BYTES = 2**32  # of all samples that are read; fewer are where they are very large
_NUMBERS_AT_ONCE = 2**17
_VALUES = 1000  # different values of a field that are counted
_QUANTILE_VALUES = 10_000
_RANGE = 1000  # times the middle half
_HASHED_FIELDS = 64
_LISTED = 5  # samples in a problem
_TARGET_NAMES = ("label", "labels", "target", "targets", "y")


@dataclass(frozen=True)
class Problem:
    """Something that is probably wrong.

    Args:
        kind: One of those above.
        message: A sentence.
        role: Where it was found.
        field: Of the samples; empty where it is not one field.
        samples: Numbers of the first samples that have it.
        count: How many have it.
    """

    kind: str
    message: str
    role: str
    field: str = ""
    samples: tuple[int, ...] = ()
    count: int = 0


@dataclass
class FieldSummary:
    """What a field holds in the samples that were read; numbers over all entries of arrays.

    Attributes:
        shape: Of a sample.
        dtype: Of its entries.
        count: Entries that are there.
        missing: Entries that are NaN, NaT or an empty text.
        infinite: Entries that are infinite.
        minimum: Of those that are there and finite; of texts the shortest length, of complex numbers the magnitude.
        maximum: Likewise.
        numbers: How many finite numbers, or texts, there are.
        average: Their mean.
        spread: The sum of their squared distances from it.
        values: How often each value comes, of integers and texts that are one a sample; None if there are too many.
        some: Some of the values of numbers that are one a sample.
        classes: The text of 0, 1, ..., where the field is a class that was given as text.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    count: int = 0
    missing: int = 0
    infinite: int = 0
    minimum: Any = None
    maximum: Any = None
    numbers: int = 0
    average: float = 0.0
    spread: float = 0.0
    values: Counter[Any] | None = None
    some: list[float] = field(default_factory=list[float])
    classes: Sequence[str] = ()

    def add(self, found: Array, lengths: Array | None = None) -> NDArray[np.bool_]:
        """Count more samples; which of them have a missing entry. `lengths` are those of padded text."""
        if found.dtype.kind == "U":
            if lengths is not None and found.ndim == 2:
                return self._add_padded(found, lengths)
            there = found != ""
            self._extend(np.char.str_len(found).reshape(-1))
        elif found.dtype.kind in "mM":
            there = ~np.isnat(found)
            self._widen(found[there])
        else:
            whole = found.dtype.kind != "f"
            there = np.broadcast_to(np.True_, found.shape) if whole else ~np.isnan(found)
            finite = found.reshape(-1) if whole else found[np.isfinite(found)]
            finite = np.abs(finite) if finite.dtype.kind == "c" else finite  # complex numbers have no order
            self.infinite += int(there.sum()) - finite.size
            self._extend(finite)
            if found.ndim == 1 and len(self.some) < _QUANTILE_VALUES:
                self.some += finite.astype(np.float64).tolist()
        self.count += int(there.sum())
        self.missing += int((~there).sum())
        if self.values is not None:
            self.values.update(found.tolist())
            if len(self.values) > _VALUES:
                self.values = None
        return np.asarray((~there).reshape(len(found), -1).any(axis=1))

    def _add_padded(self, found: Array, lengths: Array) -> NDArray[np.bool_]:
        """Count lists of text."""
        inside = np.arange(found.shape[1]) < lengths[:, None]
        missing = (found == "") & inside
        self._extend(np.char.str_len(found[inside]))
        self.count += int((inside & ~missing).sum())
        self.missing += int(missing.sum())
        return np.asarray(missing.any(axis=1))

    def _extend(self, numbers: Array) -> None:
        if numbers.dtype == np.uint8 and numbers.size > _NUMBERS_AT_ONCE:  # pixels, of which there are many
            counts = np.zeros(256, np.int64)
            for start in range(0, numbers.size, _NUMBERS_AT_ONCE):
                counts += np.bincount(numbers[start : start + _NUMBERS_AT_ONCE], minlength=256)
            values = np.flatnonzero(counts)
            self._widen(values.astype(np.uint8))
            mean = float(values @ counts[values]) / numbers.size
            self._join(numbers.size, mean, float((values - mean) ** 2 @ counts[values]))
            return
        for start in range(0, numbers.size, _NUMBERS_AT_ONCE):
            self._extend_by(numbers[start : start + _NUMBERS_AT_ONCE])

    def _extend_by(self, numbers: Array) -> None:
        numbers = numbers.astype(np.float64) if numbers.dtype.kind in "bf" else numbers
        self._widen(numbers)
        wide = numbers.astype(np.float64)
        mean = float(wide.mean())
        self._join(wide.size, mean, float(((wide - mean) ** 2).sum()))

    def _join(self, count: int, mean: float, spread: float) -> None:
        """Add numbers, whose squared distances from their mean have the sum `spread`."""
        # Two parts are joined by their means, since sums of squares cancel where the mean is large. Source: Chan, Golub
        # and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115, equation 2.1
        before, apart = self.numbers, mean - self.average
        self.numbers += count
        self.average += apart * count / self.numbers
        self.spread += spread + apart**2 * before * count / self.numbers

    def _widen(self, some: Array) -> None:
        if some.size:
            low, high = some.min(), some.max()
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)

    @property
    def mean(self) -> float | None:
        """Of the finite numbers, or of the lengths of texts."""
        return self.average if self.numbers else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the finite numbers."""
        return (self.spread / self.numbers) ** 0.5 if self.numbers and self.dtype.kind != "U" else None


@dataclass
class Survey:
    """What was found in the data of all roles.

    Attributes:
        format: Of the files.
        counts: Number of samples of each role.
        read: How many of them were read.
        speed: Samples a second in random order, by one process with its threads; None where they cannot be read.
        transformed_speed: The same with transforms; None without any.
        fields: For each role its fields.
        samples: The first samples, each a field by name.
        texts: The text of packed tokens in these, where the data are text.
        left_out: Fields that cannot be read, with the reason.
        notes: Lines that a run begins with: what is skipped of the files, and what is suspicious in them.
        pixels: Fields that hold images.
        problems: What is probably wrong.
    """

    format: str
    counts: dict[str, int]
    read: dict[str, int]
    speed: float | None
    transformed_speed: float | None
    fields: dict[str, dict[str, FieldSummary]]
    samples: list[dict[str, Array]]
    texts: list[str]
    left_out: Mapping[str, str]
    notes: list[str]
    pixels: frozenset[str]
    problems: list[Problem]


def readers_of(source: Any, **options: Any) -> dict[str, FileReader]:
    """A reader for each role that files or folders are named after; for "train" alone where names say nothing.

    Raises:
        ConfigurationError: an option is wrong.
        DataError: the data cannot be read.
    """
    if not is_path(source) or "role" in options:
        reader = read(source, **options)
        return {reader.role: reader}
    files: dict[str, frozenset[Any]] = {}
    for role in ROLES:
        try:
            files[role] = frozenset(files_of(source, role))
        except DataError:  # no files of this role
            if role == "train":
                files[role] = frozenset()
    if len(set(files.values())) < 2 or len(files) < 2:
        train = read(source, **options)
        # Text has no such names, and takes long to be opened again.
        by_place = any(one.by_place for one in file_formats() if one.name == train.format)
        return {"train": train, **(_within(source, options) if by_place else {})}
    return {role: read(source, role=role, **options) for role, some in files.items() if some}


def _within(source: Any, options: Mapping[str, Any]) -> dict[str, FileReader]:
    """The readers of other roles, where arrays within a file, or some of its folders, are named after them."""
    found: dict[str, FileReader] = {}
    for role in reversed(ROLES):  # the rarest first: where it can be read as well, no names tell roles
        try:
            reader = read(source, role=role, **options)
        except DataError:
            continue
        if role == ROLES[-1]:
            return {}
        found[role] = reader
    return {role: found[role] for role in ROLES[1:] if role in found}


def survey(
    readers: Mapping[str, FileReader], limit: int = LIMIT, transforms: Sequence[Transform] = (), seconds: float = 0.1
) -> Survey:
    """Read samples of all roles and look at them.

    Args:
        readers: By role.
        limit: The most samples of each role.
        transforms: Of the first role's images, or of its one field; their speed is measured.
        seconds: For each measurement of a speed.

    Raises:
        ConfigurationError: the transforms do not fit.
    """
    first = next(iter(readers.values()))
    made = Survey(
        first.format,
        {role: len(reader) for role, reader in readers.items()},
        {},
        None,
        None,
        {},
        [],
        [],
        {name: why for reader in list(readers.values())[::-1] for name, why in reader.left_out.items()},
        list(dict.fromkeys(note for reader in readers.values() for note in reader.notes)),
        first.pixels,
        [],
    )
    contents: dict[str, _Contents] = {}
    for role, reader in readers.items():
        looked = contents[role] = _Contents()
        made.fields[role] = _looked_at(reader, role, limit, made, looked)
        made.problems += _of_fields(made.fields[role], role, _targets(reader))
    made.problems += _other_forms(readers)
    made.problems += _same_contents(readers, contents)
    made.speed = samples_per_second(first, seconds)
    if transforms:
        alone = next(iter(first.fields)) if len(first.fields) == 1 else None
        made.transformed_speed = samples_per_second(transform(first, transforms, alone), seconds)
    return made


def _targets(reader: FileReader) -> tuple[str, ...]:
    named = reader.target or tuple(name for name in reader.fields if name in _TARGET_NAMES)
    return named if len(named) < len(reader.fields) else ()


# ---- one role


@dataclass
class _Contents:
    """The hashes of the fields of samples."""

    ids: list[int] = field(default_factory=list[int])
    hashes: dict[str, list[bytes]] = field(default_factory=dict[str, "list[bytes]"])

    def add(self, ids: Sequence[int], values: Mapping[str, Array]) -> None:
        self.ids += ids
        for name in list(values)[:_HASHED_FIELDS]:
            rows = values[name]
            texts = rows.dtype.kind == "U"
            parts = (str(row).encode() if texts else _bytes_of(row) for row in rows)
            # Processors have instructions for this one, which makes it the fastest of `hashlib`.
            self.hashes.setdefault(name, []).extend(sha256(part).digest()[:8] for part in parts)


def _bytes_of(row: Any) -> memoryview:
    return np.ascontiguousarray(row).reshape(-1).view(np.uint8).data


def _blocks(count: int, limit: int, at_once: int) -> Iterator[NDArray[np.int64]]:
    """Numbers of the samples to read, in increasing order."""
    ids = np.arange(min(count, limit), dtype=np.int64)  # there may be more than fit into memory
    if count > limit:
        shown = ids[:SHOWN_SAMPLES]
        drawn = permute(ids[: max(0, limit - len(shown))], count, key_of("survey", 0))
        ids = np.unique(np.concatenate([shown[:limit], drawn]))
    for start in range(0, len(ids), at_once):
        yield ids[start : start + at_once]


def _looked_at(reader: FileReader, role: str, limit: int, made: Survey, looked: _Contents) -> dict[str, FieldSummary]:
    summaries = {
        name: FieldSummary(
            one.shape,
            one.dtype,
            values=Counter() if one.shape == () and one.dtype.kind in "iubU" else None,
            classes=reader.classes.get(name, ()),
        )
        for name, one in reader.fields.items()
    }
    missing: dict[str, list[int]] = {name: [] for name in summaries}
    unreadable: list[tuple[int, str]] = []
    size = max(1, bytes_of_sample(reader.fields))
    at_once = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // size))
    for ids in _blocks(len(reader), max(1, min(limit, _BYTES // size)), at_once):
        for some, values in _readable(reader, ids, unreadable):
            for name, summary in summaries.items():
                missing[name] += some[summary.add(values[name], values.get(name + LENGTH))].tolist()
            looked.add(some.tolist(), values)
            for row in range(min(len(some), SHOWN_SAMPLES - len(made.samples))):
                made.samples.append({name: values[name][row] for name in values})
                _note_text(reader, made)
    made.read[role] = len(looked.ids) + len(unreadable)
    made.problems += [
        Problem("unreadable", reason, role, samples=(sample,), count=len(unreadable))
        for sample, reason in unreadable[:_LISTED]
    ]
    for name, ids in missing.items():
        if ids:
            text = f"'{name}' is missing in {len(ids):,} of {len(looked.ids):,} samples"
            made.problems.append(Problem("missing", text, role, name, tuple(ids[:_LISTED]), len(ids)))
    return summaries


def _note_text(reader: FileReader, made: Survey) -> None:
    shown = getattr(reader.source, "shown", None)
    if reader.vocabulary is not None and shown is not None and "input" in made.samples[-1]:
        made.texts.append(shown(made.samples[-1]["input"]))


def _readable(
    reader: FileReader, ids: NDArray[np.int64], unreadable: list[tuple[int, str]]
) -> Iterator[tuple[NDArray[np.int64], dict[str, Array]]]:
    """The samples that can be read, at once or one by one."""
    try:
        yield ids, reader.read(ids)
    except DataError:
        for sample in ids:
            one = np.array([sample], dtype=np.int64)
            try:
                values = reader.read(one)
            except DataError as error:
                unreadable.append((int(sample), str(error)))
                continue
            yield one, values


# ---- problems


def _of_fields(fields: Mapping[str, FieldSummary], role: str, targets: Sequence[str]) -> list[Problem]:
    found: list[Problem] = []
    for name, one in fields.items():
        if one.infinite:
            found.append(Problem("infinite", f"'{name}' has {one.infinite:,} infinite numbers", role, name))
        if _is_constant(one):
            found.append(Problem("constant", f"'{name}' has the same value in all samples", role, name))
        if (text := _out_of_range(one)) is not None:
            found.append(Problem("out of range", f"'{name}' {text}", role, name))
        is_class = name in targets and one.values and one.dtype.kind == "i" and len(one.values) <= one.count / 2
        if is_class and (wrong := _wrong_labels(sorted(one.values or ()))):
            found.append(Problem("labels", f"'{name}' {wrong}", role, name))
    return found


def _other_forms(readers: Mapping[str, FileReader]) -> Iterator[Problem]:
    """Images of a role that have another shape or type than those of the first one."""
    (first, known), *others = readers.items()
    for role, reader in others:
        for name in sorted(reader.pixels & known.pixels):
            own, wanted = reader.fields[name], known.fields[name]
            if (own.shape, own.dtype) != (wanted.shape, wanted.dtype):
                text = f"'{name}' is {own.shape} of {own.dtype}, and {wanted.shape} of {wanted.dtype} for '{first}'"
                yield Problem("form", text, role, name)


def _is_constant(one: FieldSummary) -> bool:
    if one.missing or one.count < 2:
        return False
    if one.dtype.kind == "U":
        return one.values is not None and len(one.values) == 1
    return one.minimum is not None and bool(one.minimum == one.maximum) and not one.infinite


def _out_of_range(one: FieldSummary) -> str | None:
    if one.shape or one.dtype.kind != "f" or len(one.some) < 10 or one.maximum is None:
        return None
    low, median, high = np.quantile(one.some, [0.25, 0.5, 0.75])
    for extreme in (one.minimum, one.maximum):
        if high > low and abs(extreme - median) > _RANGE * (high - low):
            return f"goes to {extreme:.6g}, and half of its values are from {low:.6g} to {high:.6g}"
    return None


def _wrong_labels(values: Sequence[Any]) -> str | None:
    if values[0] < 0:
        return f"has the class {values[0]}; classes are counted from 0"
    absent = sorted(set(range(int(values[-1]) + 1)) - set(values)) if values[-1] < _VALUES else []
    if absent:
        listed = ", ".join(map(str, absent[:_LISTED])) + (", ..." if len(absent) > _LISTED else "")
        return f"goes to {values[-1]} and never is {listed}"
    return None


def _same_contents(readers: Mapping[str, FileReader], contents: Mapping[str, _Contents]) -> list[Problem]:
    """Duplicates within roles, and leaks between them."""
    left_out = {name for reader in readers.values() for name in _targets(reader)}
    left_out |= _numbering(readers, contents, left_out)
    places: dict[bytes, dict[str, list[int]]] = {}
    for role, looked in contents.items():
        names = [name for name in looked.hashes if name not in left_out]
        for sample, *parts in zip(looked.ids, *(looked.hashes[name] for name in names), strict=True):
            places.setdefault(b"".join(parts), {}).setdefault(role, []).append(sample)
    found: list[Problem] = []
    for role in contents:
        copies = [ids for by_role in places.values() if len(ids := by_role.get(role, [])) > 1]
        if copies:
            count = sum(len(ids) - 1 for ids in copies)
            text = f"{count:,} samples have the content of another one, such as samples {_listed(copies[0])}"
            found.append(Problem("duplicate", text, role, samples=tuple(copies[0][:_LISTED]), count=count))
    roles = list(contents)
    for place, role in enumerate(roles):
        for other in roles[place + 1 :]:
            both = [by_role for by_role in places.values() if role in by_role and other in by_role]
            if both:
                count = sum(len(by_role[other]) for by_role in both)
                text = (
                    f"{count:,} samples of '{other}' have the content of one of '{role}', such as sample "
                    f"{both[0][other][0]:,} that of {both[0][role][0]:,}"
                )
                found.append(Problem("leak", text, other, samples=(both[0][other][0],), count=count))
    return found


def _numbering(readers: Mapping[str, FileReader], contents: Mapping[str, _Contents], left_out: set[str]) -> set[str]:
    """Integers and texts that are different in all samples, unless nothing else would be left."""
    first = next(iter(readers.values()))
    found: set[str] = set()
    for name, one in first.fields.items():
        hashes = [h for looked in contents.values() for h in looked.hashes.get(name, [])]
        if one.shape == () and one.dtype.kind in "iuU" and len(hashes) > 1 and len(set(hashes)) == len(hashes):
            found.add(name)
    return found if set(first.fields) - left_out - found else set()


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(f"{one:,}" for one in ids[:_LISTED]) + (", ..." if len(ids) > _LISTED else "")
