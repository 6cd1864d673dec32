"""Scores in evaluation mode over all samples, against torch's own functions."""

import dataclasses

import pytest
import torch
from study_tasks import mlp
from torch import nn

from descend.study.running import scores
from descend.study.running.scores import Scorer, parts_of

TASK = mlp(width=4, double=True).prepared()


def call(scorer, module):
    return lambda *rows: scorer.ratios(module(*rows[:-1]), rows[-1])


@pytest.mark.parametrize("rows", [7, 4096])
def test_scores_are_means_over_all_samples_however_many_go_at_once(monkeypatch, rows):
    monkeypatch.setattr(scores, "_ROWS", rows)
    scorer, module = Scorer(TASK), TASK.module(0)
    found = scorer.take_all(call(scorer, module))
    assert set(found) == {"train", "validation"}
    x, y = TASK.validation
    with torch.no_grad():
        output = module(x)
        loss = nn.functional.cross_entropy(output, y)
    assert float(found["validation"]["loss"]) == pytest.approx(float(loss), rel=1e-12)
    assert float(found["validation"]["accuracy"]) == float((output.argmax(1) == y).double().mean())


def test_test_samples_are_scored_only_where_there_are_some():
    scorer, module = Scorer(TASK), TASK.module(0)
    assert scorer.take_test(call(scorer, module)) == {}
    scorer = Scorer(dataclasses.replace(TASK, test=TASK.validation))
    found = scorer.take_test(call(scorer, module))
    assert set(found) == {"test"}
    assert found["test"]["loss"] == scorer.take_all(call(scorer, module))["validation"]["loss"]
    assert "test" not in scorer.take_all(call(scorer, module))


def test_several_modules_keep_their_dimension():
    scorer = Scorer(TASK)
    two = [TASK.module(seed) for seed in (0, 1)]

    def both(*rows):
        found = [scorer.ratios(module(*rows[:-1]), rows[-1]) for module in two]
        return {
            name: tuple(torch.stack(part) for part in zip(*(f[name] for f in found), strict=True)) for name in found[0]
        }

    together = scorer.take(both, TASK.validation)
    for place, module in enumerate(two):
        alone = scorer.take(call(scorer, module), TASK.validation)
        assert float(together["loss"][place]) == float(alone["loss"])


@pytest.mark.parametrize(("stacked", "lengths"), [(True, [100, 100, 50]), (False, [84, 84, 82])])
def test_parts_of_a_stack_have_one_length_and_others_are_equal(monkeypatch, stacked, lengths):
    monkeypatch.setattr(scores, "_ROWS_OF_A_STACK", 100)
    monkeypatch.setattr(scores, "_ROWS", 100)
    rows = torch.arange(250), torch.arange(250) + 1
    found = list(parts_of(rows, stacked=stacked))
    assert [len(part[0]) for part in found] == lengths
    for one, parts in zip(rows, zip(*found, strict=True), strict=True):
        assert torch.equal(torch.cat(parts), one)
