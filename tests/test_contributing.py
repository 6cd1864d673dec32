"""The examples of CONTRIBUTING.md work as they stand."""

import re
from pathlib import Path

import torch

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


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


def test_the_layer_kind_is_the_one_of_the_package():
    """The example is real: both halves stand in the package as they are shown."""
    root = Path(__file__).parent.parent
    for half in re.split(r"# (descend/\S+\.py)\n", block("class LeakyRelu"))[1:]:
        if half.startswith("descend/"):
            source = (root / half).read_text()
            continue
        for line in half.strip().splitlines():
            assert line.split("  #")[0] in source, line


def test_the_callback_can_be_defined(capsys):
    from dataclasses import dataclass
    from types import SimpleNamespace

    from descend.callbacks.output import say
    from descend.train import Callback, EpochView

    names = {"dataclass": dataclass, "Callback": Callback, "EpochView": EpochView, "say": say}
    callback = defined(block("class LargestWeight"), names)["LargestWeight"]()
    module = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(module.weight, -3.0)
    callback.after_epoch(SimpleNamespace(epoch=2, run=SimpleNamespace(module=module)))
    assert capsys.readouterr().out == "epoch 2: largest weight 3\n"
