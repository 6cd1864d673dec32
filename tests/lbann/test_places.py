"""Modules of LBANN's package that only gather names: each can be imported, and has the names that it says."""

import importlib

import pytest

from descend.lbann.places import PLACES, children


@pytest.mark.parametrize("place", PLACES)
def test_a_module_of_the_table_has_its_names_from_where_they_lie(place):
    module = importlib.import_module(f"descend.lbann.{place}")
    _, sources = PLACES[place]
    for source, names in sources.items():
        origin = importlib.import_module("descend." + source)
        assert [name for name in names.split() if getattr(module, name) is not getattr(origin, name)] == []
    assert set(module.__all__) == {*" ".join(sources.values()).split(), *children(place)}
    assert all(hasattr(module, name) for name in module.__all__)


def test_a_module_that_is_not_in_the_table_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("descend.lbann.models.vgg")
