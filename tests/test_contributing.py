"""The examples of CONTRIBUTING.md work as they stand."""

import re
from pathlib import Path

import torch

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

ROOT = Path(__file__).parent.parent
FIT_PATH = (ROOT / "docs" / "explanation" / "fit_path.md").read_text()


def test_every_file_that_the_tables_name_is_there():
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(descend/[\w/]+\.py)`", row)}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_stations_of_fit_are_functions_of_their_files():
    stations = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", FIT_PATH, re.MULTILINE)
    assert len(stations) > 15
    for file, name in stations:
        assert re.search(rf"^ *(def|class) {name}\b", (ROOT / "descend" / file).read_text(), re.MULTILINE), (file, name)
    kernels = re.findall(r"`((?:compiler/)?\w+\.py)` \| `?(compiler/\w+\.py|none)", FIT_PATH)
    assert len(kernels) == 5
    for engine, source in kernels:
        assert (ROOT / "descend/optim/engine" / engine).is_file()
        assert source == "none" or (ROOT / "descend/optim" / source).is_file()


def block(word):
    return next(code for code in BLOCKS if word in code)


def defined(code, names):
    scope = dict(names)
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), scope)
    return scope


def test_the_rule_runs_in_the_engine():
    from dataclasses import dataclass
    from typing import NamedTuple

    from descend.optim import Optimizer, Rule

    names = {"NamedTuple": NamedTuple, "dataclass": dataclass, "Rule": Rule, "torch": torch, "Tensor": torch.Tensor}
    rule = defined(block("class MomentumSign("), names)["MomentumSign"]()
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.0]))
    optimizer = Optimizer([p], rule, lr=0.5)
    p.grad = torch.tensor([3.0, -0.1, 0.0])
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.5, -1.5, 0.0]))


def test_the_layer_kind_needs_two_files_and_a_row(monkeypatch):
    """Each half is put where it says, with that file's imports and no others, and then does all that a kind does."""
    import numpy as np

    import descend
    from descend.graph.kinds import activations as described
    from descend.lower import activations as lowered
    from descend.lower import registry
    from tests.lower import test_every_kind as every_kind

    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))
    _, where, kind, also, lowering = re.split(r"# (descend/\S+\.py)\n", block("class Swish"))
    assert (where, also) == ("descend/graph/kinds/activations.py", "descend/lower/activations.py")
    future = "from __future__ import annotations\n"  # as both files have it
    swish = defined(future + kind, vars(described))["Swish"]
    defined(future + lowering, {**vars(lowered), "Swish": swish})

    monkeypatch.setattr(descend, "Swish", swish, raising=False)
    names = {"Row": every_kind.Row, "random": every_kind.random, "np": np}
    row = eval(block('Row("Swish"').partition("\n")[2], names)
    every_kind.test_values_are_those_of_numpy(row)
    every_kind.test_gradients_are_finite_differences(row)
    every_kind.test_float32_is_the_same_to_rounding(row)

    model = descend.Model(1, objective_function=descend.L2Norm2(swish(descend.Input(data_field="x"), beta=2)))
    text = descend.graph.to_text(model)
    assert 'own_kind {\n    kind: "Swish"\n    setting {\n      name: "beta"\n      numbers: [2.0]' in text
    assert descend.graph.from_text(text) == model
    assert "numbers: 2" in TEXT


def test_the_callback_can_be_defined(capsys):
    from dataclasses import dataclass
    from types import SimpleNamespace

    from descend.callbacks.console import say
    from descend.train import Callback, EpochView

    names = {"dataclass": dataclass, "Callback": Callback, "EpochView": EpochView, "say": say}
    callback = defined(block("class LargestWeight"), names)["LargestWeight"]()
    module = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(module.weight, -3.0)
    callback.after_epoch(SimpleNamespace(epoch=2, run=SimpleNamespace(module=module)))
    assert capsys.readouterr().out == "epoch 3: largest weight 3\n"
