"""All readers that a description can name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.data.formats import FORMATS
from descend.data.lbann_readers import LBANN_READERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.data.reader_protocol import Format

__all__ = ["READERS"]

READERS: Mapping[str, Format] = {**FORMATS, **LBANN_READERS}
