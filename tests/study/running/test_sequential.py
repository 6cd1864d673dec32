"""One trial: its scores, and every way in which it may end."""

import functools

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.study.running.sequential import run_trial
from descend.study.running.trial import TrialCheckpoints
from descend.study.task import StudyTask

TASK = mlp().prepared()


def by_hand(task, one):
    """The same run as a loop in plain torch."""
    from descend.data import Batches
    from descend.data.tensor_reader import TensorReader

    module = task.module(one.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=one.configuration["lr"])
    batches = Batches(TensorReader(dict(zip("xy", task.train, strict=True)), "train"), one.batch_size, one.seed, True)
    done = 0
    while done < one.steps:
        for batch in batches.epoch(done // batches.steps_per_epoch):
            if done == one.steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(batch.fields["x"]), batch.fields["y"]).backward()
            optimizer.step()
            done += 1
    with torch.no_grad():
        x, y = task.validation
        output = module(x)
        return float(nn.functional.cross_entropy(output, y)), float((output.argmax(1) == y).double().mean())


def test_scores_are_those_of_a_loop_by_hand():
    one = trial(lr=0.2)
    record = run_trial(TASK, one, 3)
    loss, accuracy = by_hand(TASK, one)
    assert record.status == "done"
    assert record.steps == (0, 15, 30, 45)
    assert record.final("validation", "accuracy") == pytest.approx(accuracy, abs=1e-12)
    assert record.final("validation", "loss") == pytest.approx(loss, rel=1e-5)


def test_the_same_trial_gives_the_same_bits():
    assert run_trial(TASK, trial(), 3).scores == run_trial(TASK, trial(), 3).scores
    assert run_trial(TASK, trial(), 3).scores != run_trial(TASK, trial(1), 3).scores


def test_torchs_generator_is_left_as_it_was():
    before = torch.random.get_rng_state()
    run_trial(TASK, trial(steps=2), 1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_rate_too_high_diverges_and_the_update_is_named():
    record = run_trial(TASK, trial(lr=1e30, momentum=0.9), 9)
    assert record.status == "diverged"
    assert 1 < record.failed_at <= 45
    assert record.scores["train"]["loss"]


def test_a_finite_collapse_is_not_done():
    assert run_trial(TASK, trial(lr=1e5), 3).status == "collapsed"


def test_errors_of_a_users_module_are_recorded():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    broken = StudyTask(functools.partial(Broken, 64, 10), TASK.loss, TASK.train, TASK.validation)
    record = run_trial(broken, trial(), 3)
    assert (record.status, record.message) == ("error", "ValueError: mine")


def test_running_out_of_memory_is_no_divergence():
    class Large(nn.Linear):
        def forward(self, x):
            if self.training:
                raise torch.OutOfMemoryError("of the device")
            return super().forward(x)

    large = StudyTask(functools.partial(Large, 64, 10), TASK.loss, TASK.train, TASK.validation)
    assert run_trial(large, trial(), 3).status == "out of memory"


def test_any_torch_optimizer_follows_the_schedule():
    """AdamW of torch and ours on one cosine: the same rule, so the same scores."""
    settings = {"lr": 3e-3, "schedule": "cosine", "weight_decay": 0.01}
    theirs = run_trial(TASK, trial(optimizer="torch.optim:AdamW", **settings), 3)
    ours = run_trial(TASK, trial(optimizer="AdamW", **settings), 3)
    assert theirs.scores["train"]["loss"] == pytest.approx(ours.scores["train"]["loss"], rel=1e-4)
    as_class = run_trial(TASK, trial(optimizer="mine", **settings), 3, kind=torch.optim.AdamW)
    assert as_class.scores == theirs.scores


def test_roles_reach_foreign_optimizers_too():
    frozen = trial(optimizer="torch.optim:SGD", lr=0.1, **{"roles.bias+head+matrix.lr_mult": 0.0})
    record = run_trial(TASK, frozen, 3)
    assert record.scores["train"]["loss"][0] == record.scores["train"]["loss"][-1]


class _Killed(BaseException):
    """What no handler of errors catches, as a kill."""


def noisy(dies_at=None):
    """A task whose steps draw random numbers, and which counts its steps."""
    steps = []

    class Net(nn.Sequential):
        def forward(self, x):
            if torch.is_grad_enabled():
                steps.append(1)
                if len(steps) == dies_at:
                    raise _Killed
            return super().forward(x)

    def model():
        return Net(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))

    base = mlp()
    return StudyTask(model, base.loss, base.train, base.validation).prepared(), steps


def test_a_trial_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    saved = TrialCheckpoints(tmp_path, 10)
    one = trial(momentum=0.9, schedule="cosine")
    whole = run_trial(noisy()[0], one, 4)
    with pytest.raises(_Killed):
        run_trial(noisy(dies_at=38)[0], one, 4, checkpoints=saved)
    task, steps = noisy()
    again = run_trial(task, one, 4, checkpoints=saved)
    assert (again.status, again.steps, again.scores) == (whole.status, whole.steps, whole.scores)
    assert len(steps) == 45 - 30
    assert run_trial(task, one, 4, checkpoints=saved).scores == whole.scores  # killed before it was recorded
    assert len(steps) == 45 - 30


def test_the_seconds_of_a_trial_are_those_of_all_its_processes(tmp_path):
    saved = TrialCheckpoints(tmp_path, 10)
    first = run_trial(noisy()[0], trial(), 2, checkpoints=saved)
    assert run_trial(noisy()[0], trial(), 2, checkpoints=saved).seconds > first.seconds / 2
