"""Checks that need a GPU; elsewhere they are skipped. `make cuda` runs them and writes what they measure to a page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from system_needs import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not torch.cuda.is_available():
            item.add_marker(needs("a GPU", False))


@pytest.fixture
def figure() -> Callable[[str, object], None]:
    """Notes something measured, as a line of the page."""

    def note(name: str, value: object) -> None:
        path = os.environ.get("DESCEND_FIGURES")
        if path:
            with Path(path).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([name, str(value)]) + "\n")

    return note


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Each check begins and ends with nothing running, and with torch's debugging of waits off."""
    torch.cuda.synchronize()
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
