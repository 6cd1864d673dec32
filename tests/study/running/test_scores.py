"""Scores in evaluation mode over all samples, against torch's own functions."""

import dataclasses

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn
from torch.func import stack_module_state

from descend.study.running import scores
from descend.study.running.scores import Scorer, StackScores, parts_of
from descend.study.running.stacked_update import StackLayout, state_of, updates_of

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


DIGITS = mlp(width=4, double=True).prepared()


@pytest.mark.parametrize("traces", [None, {}], ids=["plainly", "traced"])
def test_scores_are_those_of_each_module(traces):
    trials = [trial(i, lr=0.1 * (i + 1)) for i in range(3)]
    modules = [DIGITS.module(one.seed) for one in trials]
    for module in modules:
        module[0].bias.requires_grad_(False)
    params, buffers = stack_module_state(modules)
    updates = updates_of(trials, modules)
    layout, held = StackLayout.begin(updates, params, buffers)
    names = {name for update in updates for name in update.names}
    frozen = {name: p.detach() for name, p in params.items() if name not in names}
    scorer = Scorer(DIGITS)
    found = StackScores(scorer, modules[0], layout, frozen, traces).take(held)
    for place, module in enumerate(DIGITS.module(one.seed) for one in trials):
        alone = scorer.take_all(lambda *rows, module=module: scorer.ratios(module(*rows[:-1]), rows[-1]))
        for split, metrics in alone.items():
            for name, value in metrics.items():
                torch.testing.assert_close(found[split][name][place], value, rtol=1e-10, atol=0)
    assert (traces is None) or traces


def test_a_rule_that_averages_is_scored_at_its_averages():
    one = trial(0, optimizer="ScheduleFreeSGD")
    module = DIGITS.module(one.seed)
    params, buffers = stack_module_state([module])
    updates = updates_of([one], [module])
    layout, held = StackLayout.begin(updates, params, buffers)
    moved = [held[0] + 0.01, *held[1:]]  # away from the rule's own memory of where it is
    scorer = Scorer(DIGITS)
    found = StackScores(scorer, module, layout, {}, None).take(moved)
    weights, states, _ = layout.split(moved)
    state = state_of(layout.state_types[0], {name: entry[0] for name, entry in states[0].items()})
    average = updates[0].rule.averaged(weights[0][0], state)
    assert not torch.equal(average, weights[0][0])
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(average, module.parameters())
    alone = scorer.take_all(lambda *rows: scorer.ratios(module(*rows[:-1]), rows[-1]))
    torch.testing.assert_close(found["train"]["loss"][0], alone["train"]["loss"], rtol=1e-10, atol=0)
