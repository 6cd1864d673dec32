"""Trials of several phases against loops in plain torch, and what is refused before they run."""

import dataclasses

import pytest
import torch
from study_tasks import digits, trial
from torch import nn

from descend.data import Batches
from descend.data.tensor_reader import TensorReader
from descend.errors import ConfigurationError
from descend.study import Arm, FineTuning, PretrainingPhase, Study, log, run_study
from descend.study.design.sampling import seed_of
from descend.study.phases import carry_weights, phase_problems, phase_settings, stages
from descend.study.running.executor_choice import choose
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record, TrialCheckpoints
from descend.study.task import StudyTask

X, Y = digits("train")
X_HELD, Y_HELD = digits("validate")


def body(out=10):
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, out))


def two_phases(test=None):
    """Digits 0 to 4 first and all of them afterwards; in the end a new head learns odd and even."""
    low = Y < 5
    loss = nn.CrossEntropyLoss()
    later = StudyTask(body, loss, (X, Y), (X_HELD, Y_HELD))
    parity = StudyTask(
        lambda: body(2), loss, (X[:400], Y[:400] % 2), (X_HELD, Y_HELD % 2), test=test, metrics={"accuracy": "accuracy"}
    )
    return StudyTask(
        body,
        loss,
        (X[low], Y[low]),
        (X_HELD[Y_HELD < 5], Y_HELD[Y_HELD < 5]),
        phases=(PretrainingPhase("all_digits", share=0.25, task=later, batch_size=16),),
        fine_tuning=FineTuning(parity, steps=12, batch_size=25, settings={"optimizer": "SGD", "lr": 0.2}),
    )


def trained(module, rows, rate, batch_size, steps, seed):
    """Plain SGD over the samples, in the order of a run with this seed."""
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    batches = Batches(TensorReader(dict(zip("xy", rows, strict=True)), "train"), batch_size, seed, True)
    done = 0
    while done < steps:
        for batch in batches.epoch(done // batches.steps_per_epoch):
            if done == steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(batch.fields["x"]), batch.fields["y"]).backward()
            optimizer.step()
            done += 1


def scored(module, x, y):
    with torch.no_grad():
        output = module(x)
        return float(nn.functional.cross_entropy(output, y)), float((output.argmax(1) == y).double().mean())


def test_phases_and_fine_tuning_are_those_of_loops_by_hand():
    task = two_phases(test=(X[400:500], Y[400:500] % 2)).prepared()
    one = dataclasses.replace(trial(steps=40, lr=0.1, **{"phases.all_digits.lr": 0.3}), phase="confirmation")
    record = run_trial(task, one, 4)
    module = task.module(one.seed)
    trained(module, task.train, 0.1, 32, 30, one.seed)
    after_first = scored(module, *task.validation)
    trained(module, (X, Y), 0.3, 16, 10, one.seed)
    after_second = scored(module, X_HELD, Y_HELD)
    head = task.fine_tuning.task.module(seed_of(one.seed, "fine-tuning"))
    head[0].load_state_dict(module[0].state_dict())
    trained(head, (X[:400], Y[:400] % 2), 0.2, 25, 12, seed_of(one.seed, "fine-tuning"))
    outcome, tested = scored(head, X_HELD, Y_HELD % 2), scored(head, X[400:500], Y[400:500] % 2)
    assert (record.status, record.message) == ("done", "")
    assert record.steps == (0, 10, 20, 30, 40)
    assert record.scores["validation"]["loss"][3:] == pytest.approx([after_first[0], after_second[0]], rel=1e-5)
    assert (record.final("finetuned", "loss"), record.final("finetuned", "accuracy")) == pytest.approx(
        outcome, rel=1e-5
    )
    assert (record.final("test", "loss"), record.final("test", "accuracy")) == pytest.approx(tested, rel=1e-5)
    assert record.samples == 30 * 32 + 10 * 16
    assert Record.read(record.line()) == record


def test_a_trial_goes_on_from_its_checkpoint_in_the_phase_where_it_was_left(tmp_path):
    task = two_phases().prepared()
    one = trial(steps=40, **{"phases.all_digits.lr": 0.3})
    whole = run_trial(task, one, 4)

    class Broken(nn.CrossEntropyLoss):
        calls = 0

        def forward(self, output, target):
            Broken.calls += 1
            if Broken.calls == 30:
                raise RuntimeError("the machine is gone")
            return super().forward(output, target)

    saved = TrialCheckpoints(tmp_path, 5)
    later = dataclasses.replace(task.phases[0], task=dataclasses.replace(task.phases[0].task, loss=Broken()))
    assert run_trial(dataclasses.replace(task, phases=(later,)), one, 4, checkpoints=saved).status in ("error", "done")
    again = run_trial(task, one, 4, checkpoints=saved)
    assert (again.status, again.scores) == (whole.status, whole.scores)


def test_a_study_ranks_by_the_fine_tuned_outcome_and_each_phase_is_tuned():
    arms = {
        "learns": Arm("SGD", {"lr": log(0.05, 0.3), "phases.all_digits.lr": log(0.05, 0.3)}),
        "does-not": Arm("SGD", {"lr": log(1e-6, 1e-5), "phases.all_digits.lr": log(1e-6, 1e-5)}),
    }
    study = Study(
        workload=lambda: two_phases(test=(X[400:500], Y[400:500] % 2)),
        batch_sizes=32,
        steps=40,
        arms=arms,
        trials=1,
        searches=2,
        shortlist=1,
        confirmation_seeds=2,
        evaluations=2,
        split="finetuned",
        judge="test",
    )
    found = run_study(study, executor="one")
    (group,) = found.groups
    row = group.rows[0]
    confirmed = [r for r in found.records.values() if r.trial.phase == "confirmation" and r.trial.search == 0]
    of_row = [r.final("test", "accuracy") for r in confirmed if r.trial.arm == row.cell.arm]
    assert sorted(row.values) == sorted(of_row)
    assert row.winner["phases.all_digits.lr"] != row.winner["lr"]
    assert "accuracy after fine tuning, on test samples" in found.unit
    assert found.costs["learns"].samples == sum(30 * 32 + 10 * 16 for r in found.records.values()) // 2
    assert not found.unfinished


def test_settings_of_a_phase_are_those_of_the_first_unless_they_are_its_own():
    given = {
        "lr": 0.1,
        "momentum": 0.9,
        "phases.b.lr": 0.2,
        "phases.b.schedule.warmup_fraction": 0.5,
        "phases.c.lr": 1.0,
    }
    assert phase_settings(given, "") == {"lr": 0.1, "momentum": 0.9}
    assert phase_settings(given, "b") == {"lr": 0.2, "momentum": 0.9, "schedule.warmup_fraction": 0.5}


def test_updates_are_shared_out_and_none_is_lost():
    task = two_phases()
    for steps in (1, 2, 7, 40, 101):
        made = stages(task, {"lr": 1.0}, steps, 8)
        assert sum(stage.steps for stage in made) == steps
        assert [stage.first for stage in made] == [0, *([made[0].steps] if len(made) > 1 else [])]


@pytest.mark.parametrize(
    ("settings", "budget", "said"),
    [
        (["phases.all_digit.lr"], 40, "the workload has no phase 'all_digit'; did you mean 'all_digits'?"),
        ([], 1, "a budget of 1 updates leaves a phase without one"),
    ],
)
def test_what_does_not_fit_the_phases(settings, budget, said):
    (problem,) = phase_problems(two_phases().prepared(), settings, [budget])
    assert said in problem


def test_settings_of_phases_are_checked_before_anything_runs():
    names = {"lr": 0.1, "phases.b.momentun": 0.9, "phases.b.optimizer": "LARS", "phases.b": 1}
    problems = Arm("SGD", {}, names).problems()
    assert len(problems) == 3
    assert "momentun" in problems[1] or "momentun" in problems[2]


def test_other_weights_are_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"'2.weight' is \(2, 16\) and \(10, 16\) there and here"):
        carry_weights(body(), body(2), all_of_them=True, what="phase 'b'")
    with pytest.raises(ConfigurationError, match="no weight of its module has the name and shape"):
        carry_weights(nn.Conv1d(1, 1, 1), body(), all_of_them=False, what="fine tuning")


def test_shares_and_names_out_of_range():
    with pytest.raises(ConfigurationError, match=r"share must be above 0 and below 1, got 1.5"):
        PretrainingPhase("a b", 1.5, two_phases())
    with pytest.raises(ConfigurationError, match="settings need 'lr'"):
        FineTuning(two_phases(), 1, 1, {"optimizer": "SGD"})


def test_such_trials_are_not_stacked():
    task = two_phases().prepared()
    with pytest.raises(ConfigurationError, match="each trial has several phases"):
        choose(task, [trial(i) for i in range(4)], 2, "together", {})
