"""Where the files are that a description of a reader names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import DataError

if TYPE_CHECKING:
    from descend.data.description import Reader

__all__ = ["FOLDERS", "folders", "located"]

FOLDERS = frozenset({"data_filedir", "data_local_filedir"})  # the settings that name folders


def folders(reader: Reader) -> list[Path]:
    """The folders in which files are sought: the local copy before the original."""
    return [Path(name) for name in (reader.data_local_filedir, reader.data_filedir) if name] or [Path()]


def located(reader: Reader, setting: str) -> Path:
    """The file that a setting of the reader names.

    Raises:
        DataError: the setting is empty, or there is no such file.
    """
    name: str = getattr(reader, setting)
    if not name:
        raise DataError(f"{setting} is not set; set it to the name of the file in data_filedir")
    places = [folder / name for folder in folders(reader)]
    for place in places:
        if place.is_file():
            return place
    # LBANN takes the lists of some readers as they are named, so a name from the working directory serves as well.
    if Path(name).is_file():
        return Path(name)
    raise DataError(
        f"there is no file {' or '.join(str(place.absolute()) for place in places)}; correct {setting} or data_filedir"
    )
