"""Splits a data set into roles: train, validate, test, tournament.

    parts = split("patients.parquet", {"train": 0.8, "validate": 0.2}, stratify="label", group="patient")
    fit(module, loss, parts, ...)

Which samples a role has is a function of the seed, the sizes and, where they are asked for, the labels and groups; it
does not depend on ranks, workers or batches. No sample is in two roles.

Stratified: roles are filled one after the other, each with a share of every class in proportion to what is left of it,
rounded by largest remainders, so sizes are exact and each class is off by less than one sample a role.

Grouped: groups in the order of falling size, those of one size in a random order, each to the role for which

    Σₛ ((nᵣₛ + gₛ − tᵣₛ)² − (nᵣₛ − tᵣₛ)²) / tᵣₛ

is least, where s runs over the classes (one without `stratify`), g counts the group, n what the role r has and t what
it is to have. Sizes are as near as whole groups allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import check_integer, is_integer, is_number, require, shown
from descend.arguments.strict_keywords import strict_keywords
from descend.data.description import ROLES
from descend.data.files import FileReader, read
from descend.data.hugging_face import is_hugging_face
from descend.data.order import key_of, permute
from descend.data.paths import ROLE_WORDS
from descend.data.reader_protocol import WrappedSource
from descend.data.tensor_reader import is_array
from descend.errors import ConfigurationError, DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource
    from descend.data.reader_protocol import Array

    Ids = NDArray[np.int64]

__all__ = ["SubsetSource", "data_of_roles", "is_split", "split"]


@strict_keywords()
def split(
    reader: Any,
    parts: Mapping[str, float | Sequence[int] | None],
    *,
    seed: int = 0,
    stratify: str | None = None,
    group: str | None = None,
) -> dict[str, FileReader]:
    """Readers of parts of a data set, by role. `fit` takes the dictionary as its data.

    Args:
        reader: A reader, or anything that `read` takes.
        parts: For each role a fraction in (0, 1], a number of samples, a list of the numbers of its samples, or None
            for all that is left. Fractions and None are of the samples that no list names.
        seed: Of the choice.
        stratify: Name of a field with a number or a text for each sample, such as a class; all roles have it in the
            same proportions.
        group: Name of such a field, such as a patient; samples with the same value are in one role.

    Raises:
        ConfigurationError: a role, a size or a field does not exist, or the sizes are more than the samples.
        DataError: a role gets no sample, or the fields cannot be read.
    """
    whole = reader if isinstance(reader, FileReader) else read(reader)
    count = len(whole)
    require(check_integer("seed", seed, 0), *_wrong_parts(parts, count), where="split")
    lists = {role: _ids(role, part, count) for role, part in parts.items() if _is_list(part)}
    _check_disjoint(lists)
    free = np.ones(count, dtype=bool)
    for ids in lists.values():
        free[ids] = False
    rest = np.flatnonzero(free)
    if lists and group is not None:
        raise ConfigurationError("split: group= decides where samples go, and a list of samples does as well; use one")
    sizes = _sizes({role: cast("float | None", part) for role, part in parts.items() if role not in lists}, len(rest))
    strata = None if stratify is None or not sizes else _codes(whole, stratify, "stratify")[rest]
    if not sizes:
        chosen: dict[str, Ids] = {}
    elif group is not None:
        chosen = _grouped(_codes(whole, group, "group"), strata, sizes, seed, group)
    else:
        chosen = _stratified(np.zeros(len(rest), np.int64) if strata is None else strata, sizes, seed)
    found = {**lists, **{role: rest[ids] for role, ids in chosen.items()}}
    if empty := [role for role in parts if len(found[role]) == 0]:
        raise DataError(f"split: {count:,} samples leave none for the role '{empty[0]}'; change its size or add data")
    return {role: _part(whole, role, np.sort(found[role])) for role in parts}


def _part(whole: FileReader, role: str, ids: Ids) -> FileReader:
    return replace(whole, role=role, shuffle=role == "train", source=SubsetSource(whole.source, ids))


def is_split(data: Any) -> bool:
    """Whether something is a dictionary of readers by role, as `split` gives it."""
    if not isinstance(data, Mapping):
        return False
    parts = cast("Mapping[Any, Any]", data)
    readers = all(hasattr(part, "read") and hasattr(part, "fields") for part in parts.values())
    return len(parts) > 0 and readers and all(role in ROLES for role in parts)


def data_of_roles(data: Any) -> dict[str, Any] | None:
    """The data of each role of a dictionary by roles, such as {"train": (x, y), "validation": (x, y)}.

    Returns:
        Data by "train", "validate", "test" and "tournament"; None for anything else, such as a dictionary of fields or
        one of Hugging Face, which has its own roles.
    """
    if not isinstance(data, Mapping) or is_hugging_face(data):
        return None
    parts = cast("Mapping[Any, Any]", data)
    roles = {name: role for role, words in ROLE_WORDS.items() for word in words for name in parts if name == word}
    whole = [part for part in parts.values() if not is_array(part)]
    if not roles or len(roles) < len(parts) or len(whole) < len(parts) or len({*roles.values()}) < len(parts):
        return None
    return {roles[name]: part for name, part in parts.items()}


# ---- sizes


def _is_list(part: Any) -> bool:
    return not is_number(part) and part is not None


def _wrong_parts(parts: Mapping[str, Any], count: int) -> list[str]:
    if not parts:
        return ["parts must have a size for each role, such as {'train': 0.8, 'validate': 0.2}, got none"]
    found = [
        f"there is no role {shown(role)}{nearest(str(role), ROLES)}; the roles are {', '.join(ROLES)}"
        for role in parts
        if role not in ROLES
    ]
    for role, part in parts.items():
        if is_integer(part) and not 1 <= part <= count:
            found.append(f"'{role}' must have 1 to {count:,} samples, got {part:,}")
        elif is_number(part) and not is_integer(part) and not 0 < part <= 1:
            found.append(f"'{role}' must be a fraction in (0, 1] or a number of samples, got {part!r}")
        elif isinstance(part, (bool, str)):
            found.append(f"'{role}' must be a fraction, a number of samples, a list or None, got {shown(part)}")
    if sum(part is None for part in parts.values()) > 1:
        found.append("only one role can have all that is left (None)")
    return found


def _ids(role: str, part: Any, count: int) -> Ids:
    try:
        ids = np.asarray(part)
    except ValueError:
        ids = np.empty((0, 0))
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(np.unique(ids)) != len(ids):
        raise ConfigurationError(f"split: the list for '{role}' must have different integers, got {shown(part)}")
    if wrong := ids[(ids < 0) | (ids >= count)].tolist():
        raise ConfigurationError(f"split: '{role}' names sample {wrong[0]:,}, and there are {count:,}, counted from 0")
    return ids.astype(np.int64)


def _check_disjoint(lists: Mapping[str, Ids]) -> None:
    seen: dict[str, Ids] = {}
    for role, ids in lists.items():
        for other, theirs in seen.items():
            if len(both := np.intersect1d(ids, theirs)):
                raise ConfigurationError(f"split: sample {both[0]:,} is in '{other}' and in '{role}'")
        seen[role] = ids


def _sizes(parts: Mapping[str, float | None], count: int) -> dict[str, int]:
    """The number of samples of each role; fractions are rounded so that they fill their sum."""
    sizes: dict[str, int] = {role: int(part) for role, part in parts.items() if is_integer(part)}
    fractions = {role: float(part) for role, part in parts.items() if part is not None and role not in sizes}
    if (total := sum(fractions.values())) > 1 + 1e-9:
        raise ConfigurationError(f"split: the fractions must be 1 at most together, got {total:g}")
    # Halves are all rounded upwards, so that each role is off by less than one sample; the inner rounding removes
    # the error of the sum of fractions, such as 1/3 + 1/6.
    ends = [math.floor(round(end * count, 6) + 0.5) for end in np.cumsum([0.0, *fractions.values()]).tolist()]
    for role, begin, end in zip(fractions, ends[:-1], ends[1:], strict=True):
        sizes[role] = end - begin
    if (wanted := sum(sizes.values())) > count:
        raise ConfigurationError(f"split: the roles ask for {wanted:,} samples, and there are {count:,}")
    return {role: sizes.get(role, count - sum(sizes.values())) for role in parts}


# ---- which samples


def _codes(reader: FileReader, name: str, argument: str) -> Ids:
    """The values of a field as numbers from 0, in the order of the values."""
    if name not in reader.fields:
        raise ConfigurationError(
            f"split: {argument}='{name}' is not a field{nearest(name, reader.fields)}; there are "
            f"{', '.join(reader.fields)}"
        )
    values = reader.column(name)
    if values.ndim != 1:
        raise ConfigurationError(
            f"split: {argument}='{name}' must have one value for each sample, got {values.shape[1:]}"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _random_order(count: int, seed: int) -> Ids:
    return permute(np.arange(count, dtype=np.int64), count, key_of("split", seed)) if count else np.empty(0, np.int64)


def _stratified(strata: Ids, sizes: Mapping[str, int], seed: int) -> dict[str, Ids]:
    mixed = _random_order(len(strata), seed)
    by_stratum = np.split(mixed[np.argsort(strata[mixed], kind="stable")], np.cumsum(np.bincount(strata))[:-1])
    taken = np.zeros(len(by_stratum), np.int64)
    found: dict[str, Ids] = {}
    for role, size in sizes.items():
        share = _shares(np.array([len(ids) for ids in by_stratum]) - taken, size)
        found[role] = np.concatenate([ids[t : t + s] for ids, t, s in zip(by_stratum, taken, share, strict=True)])
        taken += share
    return found


def _shares(left: Ids, size: int) -> Ids:
    """`size` divided in proportion to `left`, by largest remainders."""
    exact = left * (size / max(1, left.sum()))
    share = np.minimum(np.floor(exact).astype(np.int64), left)
    order = np.argsort(-(exact - share), kind="stable")
    open_ones = order[share[order] < left[order]]
    share[open_ones[: size - int(share.sum())]] += 1
    return share


def _grouped(groups: Ids, strata: Ids | None, sizes: Mapping[str, int], seed: int, name: str) -> dict[str, Ids]:
    if strata is None:
        strata = np.zeros(len(groups), np.int64)
    counts = np.zeros((int(groups.max()) + 1, int(strata.max()) + 1))
    np.add.at(counts, (groups, strata), 1)
    if len(counts) < len(sizes):
        raise DataError(f"split: '{name}' has {len(counts)} different values, and {len(sizes)} roles need one each")
    wanted = np.array([*sizes.values(), len(groups) - sum(sizes.values())], dtype=float)  # the last group is unassigned
    wanted = wanted if wanted[-1] else wanted[:-1]
    target = wanted[:, None] * (counts.sum(axis=0) / len(groups))
    role_of, held = np.zeros(len(counts), np.int64), np.zeros_like(target)
    for one in np.lexsort((_random_order(len(counts), seed), -counts.sum(axis=1))):
        group = counts[one]
        cost = (group * (2 * (held - target) + group) / np.maximum(target, 1e-9)).sum(axis=1)
        role_of[one] = best = int(np.argmin(cost))
        held[best] += group
    return {role: np.flatnonzero(role_of[groups] == place) for place, role in enumerate(sizes)}


class SubsetSource(WrappedSource):
    """Some samples of a source.

    Args:
        source: Has them all.
        ids: Their numbers in the source.
    """

    def __init__(self, source: FileSource, ids: Ids) -> None:
        super().__init__(source)
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, samples: Ids) -> dict[str, Array]:
        """The samples with these numbers."""
        return super().read(self.ids[samples])

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        values = super().column(name)
        return None if values is None else values[self.ids]

    def place(self, sample: int) -> str:
        """Where a sample comes from."""
        return super().place(int(self.ids[sample]))
