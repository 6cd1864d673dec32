"""One schema for tables in several files: columns by name in any order, of types that hold the values of all files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.data.file_format import library
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["in_schema", "joined_schema"]


def joined_schema(schemas: Mapping[Path, Any], chosen: bool = False, may_lack: bool = False) -> Any:
    """The columns of some files, in the order of the first one.

    Args:
        schemas: That of each file, flattened.
        chosen: Whether the caller names the columns, so that files may lack others.
        may_lack: Whether a column that a file lacks is one of missing values.

    Raises:
        DataError: a file lacks a column, or a column is of types that cannot be joined.
    """
    pa = library("pyarrow", "a table")
    first, *rest = schemas
    names = list(dict.fromkeys(name for one in schemas.values() for name in one.names))
    for path in () if may_lack else rest:
        odd = set(schemas[path].names) ^ set(schemas[first].names)
        if odd and not chosen:
            raise DataError(
                f"{path} has other columns than {first} ({', '.join(sorted(odd)[:5])}); files of one reader must have "
                "the same, or name those that all have with columns=[...]"
            )
        names = [name for name in names if name not in odd]
    if not rest:
        return schemas[first]
    kept = [pa.schema([one.field(name) for name in names if name in one.names]) for one in schemas.values()]
    try:
        joined = pa.unify_schemas(kept, promote_options="permissive")
    except pa.ArrowException as error:  # ArrowInvalid, or ArrowTypeError, which is none
        raise DataError(f"the columns of {first} and the files after it differ in type: {error}") from error
    return pa.schema([joined.field(name) for name in names])


def in_schema(table: Any, schema: Any) -> Any:
    """A table with the columns of a schema, which are missing values where it lacks them."""
    pa = library("pyarrow", "a table")
    there = frozenset(table.schema.names)
    found = [
        table.column(one.name).cast(one.type)
        if one.name in there
        else pa.chunked_array([pa.nulls(table.num_rows, one.type)])
        for one in schema
    ]
    return pa.Table.from_arrays(found, schema=schema)
