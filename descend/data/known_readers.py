"""All readers that a description can name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from descend.data.formats import FORMATS
from descend.lazy import registered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.data.reader_protocol import Format

__all__ = ["known_readers"]


@cache
def known_readers() -> tuple[Mapping[str, Format], Mapping[str, str]]:
    """The readers by name, with LBANN's where its annex is; and why readers of LBANN's are not available, by name."""
    return {**FORMATS, **(registered("lbann_readers") or {})}, registered("refused_lbann_readers") or {}
