"""Opens the readers of a description: which samples, in which role, with which transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.loading.read_threads import in_threads
from descend.data.order import Draws, key_of, permute
from descend.data.plain_arrays import native, unmasked
from descend.data.reader_protocol import Array, Field, OpenReader, SampleSource, one_hot
from descend.data.transforms import RESCALES, MixingTransform
from descend.data.validate import HELD_OUT, check, known_readers
from descend.errors import ConfigurationError, DataError, DescendError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import ArrayLike, NDArray

    from descend.data.description import DataReader, Reader
    from descend.data.reader_protocol import Array, SampleSource
    from descend.data.transforms import Transform

__all__ = ["ArrayReader", "open_readers"]

SAMPLES = "samples"  # the field that transforms work on
LABELS = "labels"
GAN_LABELS = 2  # real and generated


def open_readers(description: DataReader, seed: int = 0) -> dict[str, OpenReader]:
    """Open the readers of a description, with those that its fractions make, by role.

    Headers and labels are read, samples are not. Sizes are compared with headers, so a truncated file is found here.

    Args:
        description: Which readers to open.
        seed: Of the run; it determines which samples are held out or left out and what random transforms draw.

    Raises:
        ConfigurationError: the description is wrong; all its problems at once.
        DataError: data are missing, damaged, empty or fewer than asked for; the problems of all readers at once.
    """
    check(description)
    opened: dict[str, OpenReader] = {}
    errors: list[tuple[Reader, DescendError]] = []
    roles = {reader.role for reader in description.reader}
    for reader in description.reader:
        try:
            opened.update(_open(_without_idle_fractions(reader, roles), seed))
        except (ConfigurationError, DataError) as error:
            errors.append((reader, error))
    if errors:
        kind = DataError if all(isinstance(error, DataError) for _, error in errors) else ConfigurationError
        raise kind([f"{reader}: {problem}" for reader, error in errors for problem in error.problems])
    return opened


def _without_idle_fractions(reader: Reader, roles: Collection[str]) -> Reader:
    """The reader, holding nothing out for a role that has a reader of its own: `check` has refused or allowed it."""
    idle = {name: 0.0 for role, name in HELD_OUT.items() if reader.role != "train" or role in roles}
    return replace(reader, **idle)


def _open(reader: Reader, seed: int) -> dict[str, OpenReader]:
    readers, _ = known_readers()
    source = readers[reader.name].open(reader, seed)
    key = key_of("transforms", seed, reader.role)
    chain = SampleTransforms(source, reader.transforms, key)
    fields = _fields(reader, source, chain)
    parts = _parts(reader, len(source), seed)
    return {
        role: DescribedReader(
            role,
            reader.shuffle and role == reader.role,
            fields,
            part,
            source,
            chain,
            reader,
            seed,
        )
        for role, part in parts.items()
    }


def _fields(reader: Reader, source: SampleSource, chain: SampleTransforms) -> Mapping[str, Field]:
    """The fields after the transforms."""
    before, shape = source.fields[SAMPLES], chain.output_shape()
    pieces = before.pieces if shape == before.shape else ()
    fields = {**source.fields, SAMPLES: Field(shape, np.dtype(np.float32), pieces)}
    if reader.gan_labelling:
        if LABELS not in fields:
            raise ConfigurationError("gan_labelling is set and the samples have no labels; remove it")
        fields[LABELS] = Field((GAN_LABELS,), np.dtype(np.float32))
    return MappingProxyType(fields)


@dataclass(frozen=True)
class SubsetReader:
    """A subset of the samples of a source, contiguous or drawn at random.

    Args:
        start: Position of the first one.
        size: Number of them.
        of: Number of samples that are permuted, when they are drawn.
        key: Of the permutation; None where position i is sample i.
    """

    start: int
    size: int
    of: int = 0
    key: np.uint64 | None = None

    def samples(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample numbers in the source of these sample numbers in the subset."""
        positions = indices + self.start
        return positions if self.key is None else permute(positions, self.of, self.key)


@dataclass(frozen=True)
class ListedSubset:
    """A subset of the samples of a source, in the order of their file."""

    listed: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of them."""
        return len(self.listed)

    def samples(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample numbers in the source of these sample numbers in the subset."""
        return self.listed[indices]


def _parts(reader: Reader, available: int, seed: int) -> Mapping[str, SubsetReader | ListedSubset]:
    """The subset of each role of a reader, as the docstring of `Reader` defines it."""
    available, used = _used(reader, available)
    held_out = {role: fraction for role, name in HELD_OUT.items() if (fraction := getattr(reader, name))}
    sizes = {role: round(fraction * used) for role, fraction in held_out.items()}
    sizes = {reader.role: used - sum(sizes.values()), **sizes}
    for role, size in sizes.items():
        if size < 1:
            raise DataError(f"{used:,} samples leave none for the role '{role}'; change {_options(reader)} or add data")
    if not held_out and (used == available or not reader.shuffle):
        return dict.fromkeys(sizes, SubsetReader(0, used))
    of = available if reader.shuffle else used
    key = key_of("parts", seed)
    starts = np.cumsum([0, *sizes.values()]).tolist()
    parts = {
        role: SubsetReader(start, size, of, key) for start, (role, size) in zip(starts, sizes.items(), strict=False)
    }
    return parts if reader.shuffle else {role: _in_file_order(part) for role, part in parts.items()}


def _used(reader: Reader, available: int) -> tuple[int, int]:
    """The number of samples to choose from, and of those chosen."""
    for name in ("first_n", "absolute_sample_count"):
        wanted = getattr(reader, name)
        if wanted > available:
            raise DataError(f"{name} asks for {wanted:,} samples and there are {available:,}")
        available = wanted if name == "first_n" and wanted else available
    if available == 0:
        raise DataError("the data set is empty: it has 0 samples, and at least 1 is needed")
    used = reader.absolute_sample_count or round((reader.fraction_of_data_to_use or 1.0) * available)
    return available, used


def _options(reader: Reader) -> str:
    return " or ".join(name for name in (*HELD_OUT.values(), "fraction_of_data_to_use") if getattr(reader, name))


def _in_file_order(part: SubsetReader) -> ListedSubset:
    return ListedSubset(np.sort(part.samples(np.arange(part.size, dtype=np.int64))))


@dataclass(frozen=True)
class DescribedReader:
    """A subset of a source in a role, with transforms; see `OpenReader`.

    Args:
        role: Of the samples.
        shuffle: Whether each epoch has an order of its own.
        fields: After the transforms.
        part: Which samples.
        source: Has them.
        chain: The transforms.
        description: What it was made from.
        seed: Of the run.
    """

    role: str
    shuffle: bool
    fields: Mapping[str, Field]
    part: SubsetReader | ListedSubset
    source: SampleSource
    chain: SampleTransforms = field(repr=False)
    description: Reader = field(repr=False)
    seed: int

    def __reduce__(self) -> Any:
        """Opened again in another process: no array travels, and what is mapped is mapped there."""
        return _role_of, (self.description, self.seed, self.role)

    def __len__(self) -> int:
        return self.part.size

    @property
    def name(self) -> str:
        """The name of the reader in messages."""
        return f"reader '{self.description.name}' for '{self.role}'"

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Array]:
        """Read the samples and transform their field "samples".

        Raises:
            DataError: a sample cannot be read; the message names it and the reader, and the file where that is known.
        """
        if len(indices) == 0:  # a rank without samples in a step
            return {name: np.empty((0, *one.shape), one.dtype) for name, one in self.fields.items()}
        try:
            return self._mixed(indices, epoch)
        except Exception as error:  # of any library, and of any kind: files may contain anything
            for sample in indices.tolist() if len(indices) > 1 else ():
                try:
                    self._mixed(np.array([sample], dtype=np.int64), epoch)
                except Exception as of_sample:
                    raise self._blame(sample, of_sample) from of_sample
            raise self._blame(int(indices[0]), error) from error

    def _blame(self, sample: int, error: Exception) -> DescendError:
        if isinstance(error, ConfigurationError):
            return error
        if isinstance(error, DataError):
            first, *rest = error.problems
        else:
            first, rest = f"{type(error).__name__}: {error}", []
        return DataError([f"sample {sample} of {self.name} cannot be used: {first}", *rest])

    def _mixed(self, indices: NDArray[np.int64], epoch: int) -> dict[str, Array]:
        numbers = self.part.samples(indices)
        found = self._read(numbers, epoch)
        if self.role == "train":  # what a model is judged by is not mixed
            for place, mixing in enumerate(self.chain.mixing):
                draws = Draws(key_of("mixing", place, int(self.chain.key), epoch), numbers)
                partners = self.part.samples(draws.integers(len(self)))
                found = mixing.mix(found, self._read(partners, epoch), draws)
        found[SAMPLES] = found[SAMPLES].astype(np.float32, copy=False)
        return found

    def _read(self, numbers: NDArray[np.int64], epoch: int) -> dict[str, Array]:
        found = self.source.read(numbers)
        found[SAMPLES] = self.chain.apply(found.get(SAMPLES), numbers, epoch)
        if self.description.gan_labelling:
            found[LABELS] = one_hot(np.full(len(numbers), self.description.gan_label_value), GAN_LABELS)
        return found


def _role_of(reader: Reader, seed: int, role: str) -> OpenReader:
    return _open(reader, seed)[role]


class ArrayReader:
    """A reader of arrays in memory, with any field names.

        ArrayReader({"samples": images, "labels": one_hot(labels, 10)})

    Args:
        arrays: For each field an array (samples, *shape), which is not copied; or anything that NumPy converts to one,
            such as a list of numbers or a tensor on the CPU.
        role: "train", "validate", "test" or "tournament".
        shuffle: Whether each epoch has an order of its own; by default only in the role "train".

    Raises:
        ConfigurationError: `arrays` is no dictionary.
        DataError: there are no arrays, or a value is not one; the arrays differ in length, or they have no samples.
    """

    def __init__(self, arrays: Mapping[str, ArrayLike], role: str = "train", shuffle: bool | None = None) -> None:
        if not isinstance(arrays, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
            raise ConfigurationError(f"arrays must be a dictionary of arrays by name, got a {type(arrays).__name__}")
        made = {name: _array(name, given) for name, given in arrays.items()}
        lengths = {name: len(array) for name, array in made.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"arrays must have one entry for each sample, got {f'lengths {lengths}' if lengths else 'no arrays'}"
            )
        self.role = role
        self.shuffle = role == "train" if shuffle is None else shuffle
        self.fields: Mapping[str, Field] = {name: Field(a.shape[1:], native(a[:0]).dtype) for name, a in made.items()}
        self._arrays = made
        self._length = next(iter(lengths.values()))
        if self._length == 0:
            raise DataError("the data set is empty: its arrays have 0 samples, and at least 1 is needed")

    def __len__(self) -> int:
        return self._length

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Array]:
        """The rows of each array."""
        return {name: native(array[indices]) for name, array in self._arrays.items()}


def _array(name: str, given: ArrayLike) -> Array:
    problem = "a single value"
    detach = getattr(given, "detach", None)
    try:
        array = np.asanyarray(given if detach is None else detach())
    except (ValueError, TypeError, RuntimeError) as error:
        array, problem = np.empty(()), str(error)
    if not array.ndim:
        raise DataError(f"'{name}' must be an array with an entry for each sample: {problem}")
    return unmasked(name, array) if isinstance(array, np.ma.MaskedArray) else array


# ---- applies the transforms of a reader to its samples, whole batches at once where the samples have one shape
#
# Images of different sizes are transformed one by one up to the first transform whose output has a known shape, and
# together from there on. Both give the same, since the random numbers of a sample are its own.

_CACHED_NUMBERS = 2**17  # of the images that a thread transforms together: as float32 they stay in a core's cache


@dataclass(frozen=True)
class SampleTransforms:
    """Transforms in order, for the samples of a source.

    A source whose field "samples" has a shape with −1 gives its samples by a method `images(sample, which)`, has
    `images_per_sample` of them for each, which are transformed on their own and joined along their channels, and says
    by `blue_first` whether colours are blue, green, red behind the image transforms.

    Args:
        source: Of the samples.
        transforms: In order.
        key: Of the random numbers, without the epoch.
    """

    source: SampleSource
    transforms: Sequence[Transform] = field(repr=False)
    key: np.uint64 = field(repr=False)

    @cached_property
    def mixing(self) -> list[MixingTransform]:
        """The transforms that need a second sample; they come last."""
        return [one for one in self.transforms if isinstance(one, MixingTransform)]

    def output_shape(self) -> tuple[int, ...]:
        """The shape of a sample, by shapes alone: a check must not allocate a sample of any size.

        Where the size of the images remains unknown, it is that of the first one.
        """
        shape = self.source.fields["samples"].shape
        for transform in self.transforms:
            shape = transform.output_shape(shape)
        if -1 in shape:
            shape = self._images(np.zeros(1, np.int64), 0, 0).shape[1:]
        return (shape[0] * self._images_per_sample, *shape[1:]) if self._is_ragged else shape

    def apply(self, samples: Array | None, numbers: NDArray[np.int64], epoch: int) -> Array:
        """The transformed samples; `samples` is None where the source gives single images."""
        if not self._is_ragged:
            key = key_of("epoch", int(self.key), epoch)
            return self._rest(cast("Array", samples), Draws(key, numbers), self.transforms)
        if len(numbers) == 0:
            return np.empty((0, *self.output_shape()), np.float32)
        parts = [self._images(numbers, epoch, which) for which in range(self._images_per_sample)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @property
    def _is_ragged(self) -> bool:
        return -1 in self.source.fields["samples"].shape

    @property
    def _images_per_sample(self) -> int:
        return getattr(self.source, "images_per_sample", 1)

    def _rest(self, x: Array, draws: Draws, transforms: Sequence[Transform], reverse: bool = False) -> Array:
        for transform in transforms:
            if reverse and isinstance(transform, RESCALES):
                x, reverse = x[:, ::-1], False
            x = transform.apply(x, draws)
        return x[:, ::-1] if reverse else x

    def _images(self, numbers: NDArray[np.int64], epoch: int, which: int) -> Array:
        key = key_of("epoch", int(self.key), epoch) if which == 0 else key_of("image", which, int(self.key), epoch)
        draws = Draws(key, numbers)
        alone = self._alone
        of_rows = [draws.of_rows(slice(row, row + 1)) for row in range(len(numbers))]

        def transformed(row: int) -> Array:
            image = cast("Any", self.source).images(int(numbers[row]), which)
            return self._rest(image[None], of_rows[row], self.transforms[:alone])

        images = in_threads(transformed, len(numbers))
        if odd := [at for at, image in enumerate(images) if image.shape != images[0].shape]:
            raise DataError(
                f"images differ in shape: {images[odd[0]].shape[1:]} of sample {numbers[odd[0]]} and "
                f"{images[0].shape[1:]} of sample {numbers[0]}; bring them to one with the transforms Resize (or a "
                "crop) and Colorize"
            )
        reverse = bool(getattr(self.source, "blue_first", False)) and images[0].shape[1] == 3
        rest, taken = self.transforms[alone:], of_rows[-1]
        empty = self._rest(images[0][:0], draws.of_rows(slice(0)).after(taken), rest, reverse)
        found = np.empty((len(images), *empty.shape[1:]), empty.dtype)
        together = max(1, _CACHED_NUMBERS // max(1, images[0].size))

        def finish(block: int) -> None:
            some = slice(block * together, (block + 1) * together)
            x = np.concatenate(images[some]) if together > 1 else images[block]
            found[some] = self._rest(x, draws.of_rows(some).after(taken), rest, reverse)

        in_threads(finish, -(-len(images) // together))
        return found

    @cached_property
    def _alone(self) -> int:
        """How many transforms come before the shape is known: only those work on single images."""
        shape = self.source.fields["samples"].shape
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, RESCALES):
                return place
            shape = transform.output_shape(shape)
            if -1 not in shape:
                return place + 1
        return len(self.transforms)
