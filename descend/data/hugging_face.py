"""Data sets of Hugging Face's `datasets`: the fields of their columns, as those of an Arrow table.

A data set is known by its methods (`features`, `column_names`, `with_format`), so the library is not imported. Rows are
taken from its Arrow memory map, in any order; a format that was set for the columns of the data set is not applied,
since it does not change the values. Transforms of rows (`set_transform`) are functions of the user, and such data sets
are read row by row like those of torch.

    ClassLabel       integers, with the names of the classes
    Image            images, also where the data set has only their paths
    Array2D ...      arrays of this shape
    the rest         see `descend.data.tables.arrow_columns`

Source: https://huggingface.co/docs/datasets/about_arrow
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from descend.data.paths import role_of
from descend.data.tables.table_files import TableFiles, in_chunks
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.images.pictures import ImageKind
    from descend.data.tables.arrow_source import ArrowSource
    from descend.data.tables.table_files import Chunk

__all__ = ["hugging_face_source", "is_hugging_face", "kinds_of_splits", "split_of_role"]


def is_hugging_face(data: Any) -> bool:
    """Whether something is a data set with columns whose rows have numbers, without a transform of rows."""
    if not all(hasattr(data, name) for name in ("features", "column_names", "with_format", "__getitem__", "__len__")):
        return False
    how = getattr(data, "format", None)
    return not isinstance(how, Mapping) or cast("Mapping[str, Any]", how).get("type") != "custom"


def split_of_role(data: Any, role: str) -> Any | None:
    """The split of a role of a dictionary of data sets, such as a DatasetDict; None for other objects.

    Raises:
        DataError: there is none.
    """
    if not isinstance(data, Mapping):
        return None
    splits = cast("Mapping[str, Any]", data)
    if not splits or not all(is_hugging_face(part) for part in splits.values()):
        return None
    for name, part in splits.items():
        if role_of(name, whole=True) == role:
            return part
    raise DataError(f"the data sets have the splits {', '.join(splits)} and none for '{role}'")


def kinds_of_splits(splits: Mapping[str, Any]) -> tuple[tuple[str, ImageKind], ...]:
    """The kind of images that holds those of all splits, by field: all have one form."""
    from descend.data.file_format import ReadOptions
    from descend.data.tables.arrow_source import ArrowSource

    found: dict[str, ImageKind] = {}
    for part in splits.values():
        if (rows := _Rows(part)).images and len(part):
            with suppress(DataError):  # reading it says what is wrong
                for name, kind in ArrowSource(rows, ReadOptions(columns=rows.images)).kinds.items():
                    found[name] = kind.joined(found.get(name, kind))
    return tuple(found.items())


class _Rows(TableFiles):
    """The table of a data set; see `TableFiles`."""

    def __init__(self, data: Any) -> None:
        how = getattr(data, "format", None)
        columns = cast("Mapping[str, Any]", how).get("columns") if isinstance(how, Mapping) else None

        self._data = data.with_format("arrow", columns=columns) if columns else data.with_format("arrow")
        self.images = [name for name, kind in data.features.items() if type(kind).__name__ == "Image"]
        self.schema: Any = self._plain(self._data[0:0]).schema.remove_metadata()
        name, count = Path(f"{type(data).__name__} of {', '.join(data.column_names)}"[:80]), len(data)
        self.chunks = in_chunks(name, count)

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of some rows."""
        return self._plain(self._data[chunk.first : chunk.first + chunk.rows]).select(list(columns))

    def take(self, samples: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some columns of the rows with these numbers."""
        return self._plain(self._data[samples.tolist()]).select(list(columns))

    def _plain(self, table: Any) -> Any:
        """A table without types of the library."""
        from descend.data.tables.arrow_columns import flattened
        from descend.errors import library

        pa = library("pyarrow", "a data set of Hugging Face")
        table.validate(full=True)  # its cache may be damaged, and Arrow's functions trust offsets
        for number, column in enumerate(table.schema):
            values = table.column(number)
            if isinstance(column.type, pa.BaseExtensionType):
                parts = [part.storage for part in values.chunks]
                table = table.set_column(number, column.name, pa.chunked_array(parts, column.type.storage_type))
            elif column.name in self.images and pa.types.is_struct(column.type):
                contents = [_content(one) for one in values.to_pylist()]
                table = table.set_column(number, column.name, pa.chunked_array([pa.array(contents, pa.large_binary())]))
        return flattened(table)


def _content(image: Mapping[str, Any] | None) -> bytes | None:
    if image is None or image.get("bytes") is not None or image.get("path") is None:
        return None if image is None else image.get("bytes")
    return Path(image["path"]).read_bytes()


def hugging_face_source(data: Any, options: ReadOptions) -> ArrowSource:
    """The samples of a data set.

    Raises:
        ConfigurationError: an option is set that has no meaning for it.
        MissingExtra: pyarrow is not installed.
        DataError: there are no samples, or no column can be read.
    """
    from descend.data.file_format import IMAGE_OPTIONS, check_used
    from descend.data.tables.arrow_source import ArrowSource

    check_used(f"a {type(data).__name__} with columns", {"columns", "length", "text"} | IMAGE_OPTIONS, options)
    if len(data) == 0:
        raise DataError(f"the {type(data).__name__} has 0 samples, and at least 1 is needed")
    source = ArrowSource(_Rows(data), options)
    for name, kind in cast("Mapping[str, Any]", data.features).items():
        if name in source.fields and isinstance(names := getattr(kind, "names", None), list):
            source.classes[name] = cast("list[str]", names)
    return source
