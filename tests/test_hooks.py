"""Functions of upper rooms are found where the facade says they are, when they are first needed."""

import subprocess
import sys

import pytest

from descend import hooks


def test_a_function_is_loaded_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(hooks, "_LOADERS", {})
    loaded = []
    hooks.provide("twice", lambda: loaded.append(1) or (lambda x: 2 * x))
    assert loaded == []
    assert hooks.hook("twice")(4) == 8
    assert loaded == [1]
    with pytest.raises(KeyError, match="thrice"):
        hooks.hook("thrice")


@pytest.mark.slow
def test_the_room_of_graphs_alone_finds_what_its_methods_need():
    """Importing a room imports the package first, which registers them and imports no room."""
    code = """
import sys, descend
assert not [name for name in sys.modules if name.startswith("descend.graph")]
from descend.graph import Input, Model, Relu, from_text, to_text
model = Model(layers=[Relu(Input(data_field="x", name="x"), name="y")])
assert from_text(to_text(model)) == model
assert "torch" not in sys.modules
assert model.to_torch(fields={"x": (2,)}, outputs="y").training is not None
assert "torch" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
