"""Modules of all tests here are counted from 1."""

import pytest

from descend.zoo import modules


@pytest.fixture(autouse=True)
def from_one(monkeypatch):
    for cls in vars(modules).values():
        if isinstance(cls, type) and issubclass(cls, modules.Module):
            monkeypatch.setattr(cls, "global_count", 0)
