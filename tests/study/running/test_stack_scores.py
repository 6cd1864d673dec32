"""Scores of a stack are those of its modules one by one, traced or not."""

import pytest
import torch
from study_tasks import mlp, trial
from torch.func import stack_module_state

from descend.study.running.scores import Scorer
from descend.study.running.stack_layout import StackLayout
from descend.study.running.stack_scores import StackScores
from descend.study.running.stacked_update import state_of, updates_of

TASK = mlp(width=4, double=True).prepared()


@pytest.mark.parametrize("traces", [None, {}], ids=["plainly", "traced"])
def test_scores_are_those_of_each_module(traces):
    trials = [trial(i, lr=0.1 * (i + 1)) for i in range(3)]
    modules = [TASK.module(one.seed) for one in trials]
    for module in modules:
        module[0].bias.requires_grad_(False)
    params, buffers = stack_module_state(modules)
    updates = updates_of(trials, modules)
    layout, held = StackLayout.begin(updates, params, buffers)
    names = {name for update in updates for name in update.names}
    frozen = {name: p.detach() for name, p in params.items() if name not in names}
    scorer = Scorer(TASK)
    found = StackScores(scorer, modules[0], layout, frozen, traces).take(held)
    for place, module in enumerate(TASK.module(one.seed) for one in trials):
        alone = scorer.take_all(lambda *rows, module=module: scorer.ratios(module(*rows[:-1]), rows[-1]))
        for split, metrics in alone.items():
            for name, value in metrics.items():
                torch.testing.assert_close(found[split][name][place], value, rtol=1e-10, atol=0)
    assert (traces is None) or traces


def test_a_rule_that_averages_is_scored_at_its_averages():
    one = trial(0, optimizer="ScheduleFreeSGD")
    module = TASK.module(one.seed)
    params, buffers = stack_module_state([module])
    updates = updates_of([one], [module])
    layout, held = StackLayout.begin(updates, params, buffers)
    moved = [held[0] + 0.01, *held[1:]]  # away from the rule's own memory of where it is
    scorer = Scorer(TASK)
    found = StackScores(scorer, module, layout, {}, None).take(moved)
    weights, states, _ = layout.split(moved)
    state = state_of(layout.state_types[0], {name: entry[0] for name, entry in states[0].items()})
    average = updates[0].rule.averaged(weights[0][0], state)
    assert not torch.equal(average, weights[0][0])
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(average, module.parameters())
    alone = scorer.take_all(lambda *rows: scorer.ratios(module(*rows[:-1]), rows[-1]))
    torch.testing.assert_close(found["train"]["loss"][0], alone["train"]["loss"], rtol=1e-10, atol=0)
