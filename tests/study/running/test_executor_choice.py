"""Which executor "auto" stands for, by a rule that looks at no clock, and what a trial's needs forbid."""

import warnings
from pathlib import Path

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.errors import ConfigurationError
from descend.study.design import Needs, Study
from descend.study.running import executor_choice as choose
from descend.study.running.scheduler import conduct
from descend.study.running.sequential import run_sequentially
from descend.study.running.stack import Stack
from descend.study.running.trial import TrialCheckpoints, TrialSetup
from descend.study.running.trial_store import Memory
from descend.study.task import StudyTask


class Attention(nn.Module):
    """One head over five places; torch's own kernel of it has no rule for stacks on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        query, key, value = self.joined(x).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
        return self.head(nn.functional.scaled_dot_product_attention(query, key, value).flatten(1, 2).mean(1))


def test_tracing_a_stack_says_nothing_of_vmap_and_all_that_others_say():
    class Telling(nn.Module):
        def forward(self, x):
            warnings.warn("of the user", UserWarning, stacklevel=1)
            return x

    x, y = torch.randn(80, 5, 8), torch.randint(0, 3, (80,))
    for model, said in ((Attention, []), (lambda: nn.Sequential(Attention(), Telling()), ["of the user"])):
        task = StudyTask(model, nn.CrossEntropyLoss(), (x, y), (x, y)).prepared()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            Stack(task, [trial(i, steps=70) for i in range(2)]).trace()
        assert sorted({str(one.message) for one in warned}) == said


def chosen_by(monkeypatch, *, width=8, steps=1000, count=8, batch_size=32, cores=2, forks=True, obstacle=None, **given):
    """The name of the executor that is chosen, where stacks can run but for an obstacle."""
    monkeypatch.setattr(choose, "cores", lambda: cores)
    monkeypatch.setattr(choose, "can_run_vmapped", lambda task, trials, kinds: obstacle)
    divided = None if cores > 1 else "there is one processor"
    monkeypatch.setattr(choose, "can_stack_in_processes", lambda task: divided)
    monkeypatch.setattr(choose, "can_fork", lambda task: divided)
    trials = [trial(i, steps=steps, batch_size=batch_size) for i in range(count)]
    return choose.choose(mlp(width=width).prepared(), trials, 1, "auto", {}, forks=forks, **given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"steps": 100}, "together"),  # shorter than a fork
        ({"steps": 5000}, "stacks"),
        ({"steps": 5000, "cores": 1}, "together"),
        ({"steps": 5000, "forks": False}, "together"),
        ({"steps": 5000, "count": 3}, "together"),  # few for two processors
        ({"steps": 5000, "count": 1, "planned": 8}, "stacks"),  # the last one that is left
        ({"count": 1}, "one"),
        ({"steps": 5000, "count": 2, "cores": 1}, "together"),
        ({"width": 8000, "batch_size": 16}, "stacks"),  # 600,010 parameters
        ({"width": 8000}, "processes"),
        ({"width": 8000, "cores": 1}, "one"),
        ({"width": 8000, "steps": 50}, "one"),  # shorter than the forks
        ({"obstacle": "no"}, "processes"),
        ({"obstacle": "no", "forks": False}, "one"),
    ],
)
def test_which_executor_the_rule_names(monkeypatch, given, name):
    assert chosen_by(monkeypatch, **given).name == name


def test_the_reason_names_the_rule_or_what_forbids_a_stack(monkeypatch):
    assert chosen_by(monkeypatch).reason == "parameters times the batch size are 19,520"
    assert chosen_by(monkeypatch, obstacle="it draws").reason == "not together: it draws"
    large = chosen_by(monkeypatch, width=8000).reason
    assert large == "not together: parameters times the batch size are 19,200,320, more than 16,777,216"


def test_what_is_left_of_a_study_is_stacked_as_the_whole_was(monkeypatch):
    """Rounding of a stack is not that of a trial alone, so it may not depend on where a study was interrupted."""
    stacked = [
        chosen_by(monkeypatch, count=count, steps=steps, planned=8).name for count in (8, 1) for steps in (9, 9000)
    ]
    assert stacked == ["together", "stacks"] * 2


SAVED = TrialSetup(checkpoints=TrialCheckpoints(Path("trials"), 5))


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (SAVED, r"each trial is saved by itself \(checkpoint_every\)"),
        (TrialSetup(Needs(cores=2)), "each trial needs several"),
        (TrialSetup(Needs(ranks=2)), "each has 2 ranks on this machine; say --executor one, or ray"),
    ],
)
def test_what_a_trial_needs_may_forbid_a_stack(setup, said):
    task, trials = mlp(width=4).prepared(), [trial(i) for i in range(4)]
    for wanted in ("together", "stacks"):
        with pytest.raises(ConfigurationError, match=said):
            choose.choose(task, trials, 1, wanted, {}, setup=setup)
    assert choose.choose(task, trials, 1, "one", {}, setup=setup).name == "one"


def test_processes_save_their_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "can_fork", lambda task: None)
    setup = TrialSetup(checkpoints=TrialCheckpoints(tmp_path, 2))
    task, trials = mlp(width=4).prepared(), [trial(i, steps=3) for i in range(2)]
    way = choose.choose(task, trials, 1, "processes", {}, setup=setup)
    found = {record.trial.id: record.scores for record in way.run(task, trials, 1, {})}
    assert found == {record.trial.id: record.scores for record in run_sequentially(task, trials, 1)}
    assert all((setup.checkpoints.run_dir(one) / "checkpoints" / "step-3").is_dir() for one in trials)


def test_an_unknown_executor_is_a_mistake_of_a_finished_study_too():
    study = Study(workload=mlp, batch_sizes=32, steps=1, arms={"a": "SGD"}, trials=1, searches=1, shortlist=1)
    with pytest.raises(ConfigurationError, match="no executor 'fast'"):
        conduct(study, Memory(), executor="fast")
