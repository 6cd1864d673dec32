"""The base of sources that have the samples of another one: some of them, or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.file_format import FileSource
    from descend.data.images.pictures import ImageKind
    from descend.data.reader_protocol import Array, Field

__all__ = ["WrappedSource"]


class WrappedSource:
    """Has the fields of a source, and what is known of them; see `FileSource`.

    Args:
        source: Whose samples they are.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self.fields: Mapping[str, Field] = source.fields
        self.classes: Mapping[str, Sequence[str]] = getattr(source, "classes", {})
        self.self_numbered: frozenset[str] = getattr(source, "self_numbered", frozenset())
        self.left_out: Mapping[str, str] = getattr(source, "left_out", {})
        self.pixels: frozenset[str] = getattr(source, "pixels", frozenset())
        self.kinds: Mapping[str, ImageKind] = getattr(source, "kinds", {})
        self.notes: tuple[str, ...] = getattr(source, "notes", ())
        self.largest: Mapping[str, int] = getattr(source, "largest", {})
        self.vocabulary: int | None = getattr(source, "vocabulary", None)

    def _over(self, source: FileSource) -> Self:
        """The same over another source with these fields."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _source=source)
        return other

    def __len__(self) -> int:
        return len(self._source)

    def at_epoch(self, epoch: int) -> Self:
        """The samples of an epoch, where they are not the same in all."""
        own = getattr(self._source, "at_epoch", None)
        return self if own is None else self._over(own(epoch))

    def in_run(self, seed: int, role: str) -> Self:
        """The samples with the random numbers of a run."""
        own = getattr(self._source, "in_run", None)
        return self if own is None else self._over(own(seed, role))

    def shown(self, values: Array) -> str:
        """The text of the tokens in a field."""
        return cast("Any", self._source).shown(values)

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        own = getattr(self._source, "column", None)
        return None if own is None else own(name)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return self._source.read(samples)

    def place(self, sample: int) -> str:
        """Where a sample comes from."""
        return self._source.place(sample)
