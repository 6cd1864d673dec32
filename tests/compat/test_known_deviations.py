"""The table of what is not copied, and its twin in the documentation."""

import importlib
from pathlib import Path

import pytest
import torch

from descend import optim
from descend.compat import OPTIMIZERS
from descend.compat.known_deviations import NOT_COPIED
from descend.optim.rules import RULES

DOCS = (Path(__file__).resolve().parents[2] / "docs/optimizers.md").read_text()


@pytest.mark.parametrize("row", NOT_COPIED, ids=lambda row: f"{row.library} {row.optimizer}: {row.defect}")
def test_every_row_is_in_the_documentation_and_names_something(row):
    assert row.row in DOCS
    table, refused = OPTIMIZERS[row.library]
    assert row.optimizer in table or row.optimizer in refused


def test_a_row_covers_its_defect_alone():
    lamb = next(row for row in NOT_COPIED if row.optimizer == "lamb" and row.library == "mxnet-2.0")
    assert lamb.covers("mxnet-2.0", "LAMB", "The update count advances twice per step")
    assert not lamb.covers("mxnet-2.0", "lamb", "squares are rounded to float16")
    assert not lamb.covers("mxnet-2.0", "lamb", "")
    assert not lamb.covers("mxnet-1.9", "lamb", "the update count advances twice per step")


def test_the_documentation_lists_every_rule_and_every_translated_name():
    for rule in RULES.values():
        assert f"| `{rule.__name__}` | {rule.default_lr:g} | {rule.default_weight_decay:g}," in DOCS
    for library, (table, refused) in OPTIMIZERS.items():
        assert f"| `{library}` | {', '.join(table)} | {', '.join(refused) or 'none'} |" in DOCS


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch):
    """As a module of its own, which is how a user would have it."""
    start = DOCS.index("```python\nfrom dataclasses") + len("```python\n")
    (tmp_path / "cautious_example.py").write_text(DOCS[start : DOCS.index("```", start)])
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("cautious_example")
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = optim.create("cautious", [w], lr=1.0)
    for g in ([2.0, 2.0], [-1.0, 1.0]):
        w.grad = torch.tensor(g)
        optimizer.step()
    assert w.tolist() == [-2.0, -3.0]
