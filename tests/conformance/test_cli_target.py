"""Targets and arguments of `descend conformance`."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from descend.conformance import arguments, load
from descend.conformance.candidate import classes
from descend.errors import RuleError


def test_a_target_is_a_module_or_a_name_in_it():
    assert load("torch.optim:AdamW") is torch.optim.AdamW
    assert load("torch.optim") is torch.optim


def test_an_unknown_target_is_an_error_with_the_nearest_name():
    with pytest.raises(RuleError, match="did you mean 'AdamW'"):
        load("torch.optim:AdamWW")
    with pytest.raises(RuleError, match="no_such_module"):
        load("no_such_module:Adam")


def test_classes_are_listed_once_and_without_the_base():
    module = ModuleType("mine")
    module.Adam = module.Alias = torch.optim.Adam
    module._Hidden = torch.optim.SGD
    module.Optimizer = torch.optim.Optimizer
    module.number = 3
    assert classes(module) == [torch.optim.Adam]


def test_arguments_need_a_name():
    with pytest.raises(RuleError, match="name=value"):
        arguments(["lr"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("def f(:", "importing 'broken' raised SyntaxError"),
        ("raise SystemExit(7)", "importing 'broken' raised SystemExit: 7"),
        ("1 / 0", "importing 'broken' raised ZeroDivisionError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_error(text, words, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuleError, match=words):
        load("broken:Adam")


def test_arguments_are_literals_or_text():
    assert arguments(["lr=0.1 betas=(0.9,0.99)", "mode=fast"]) == {"lr": 0.1, "betas": (0.9, 0.99), "mode": "fast"}
