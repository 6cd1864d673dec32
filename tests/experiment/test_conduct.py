"""A run that is stopped anywhere and continued ends in the same bits as one that was left alone."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file
from toys import Regression, data

from descend.errors import ConfigurationError, Stopped, StorageError
from descend.experiment.conduct import Work, conduct
from descend.runtime import Process
from descend.train import BatchedIterativeOptimizer, Callback, Mode


class Noisy(Regression):
    """Least squares with dropout on the inputs, so that a step draws random numbers."""

    def losses(self, fields):
        x = torch.nn.functional.dropout(fields["x"], 0.3, training=self.module.training)
        return super().losses({**fields, "x": x})


def work(task=None, optimizer=torch.optim.Adam, epochs=4, callbacks=(), **settings):
    task = task or Noisy(decay=0.01)
    modes = {
        Mode.TRAIN: data(samples=23, batch_size=4, shuffle=True),
        Mode.VALIDATION: data(samples=9, batch_size=4),
        Mode.TEST: data(samples=8, batch_size=4),
    }
    made = optimizer(task.module.named_parameters(), lr=0.05)
    algorithm = BatchedIterativeOptimizer(epoch_count=epochs)
    return Work("toy", task, made, modes, Process(), algorithm, seed=5, callbacks=tuple(callbacks), **settings)


class StopAt(Callback):
    """Asks for an end in a given step as a signal would, through the session's own question."""

    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def final_files(run_dir):
    newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    return {
        "weights": (newest / "weights.safetensors").read_bytes(),
        "optimizer": (newest / "training" / "optimizer.safetensors").read_bytes(),
    }


def rows(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, functools.partial(torch.optim.SGD, momentum=0.9)])
@pytest.mark.parametrize("stops", [[1], [6], [7], [3, 5, 17], [24]])  # 6 steps an epoch
def test_stopped_and_continued_is_the_same_run(tmp_path, stops, optimizer):
    whole = conduct(work(optimizer=optimizer), tmp_path / "whole")
    for step in stops:
        with pytest.raises(Stopped, match=f"SIGTERM after step {step},.*everything is saved"):
            conduct(work(optimizer=optimizer, callbacks=[StopAt(step)]), tmp_path / "parts", resume=True)
    result = conduct(work(optimizer=optimizer), tmp_path / "parts", resume=True)
    assert final_files(tmp_path / "parts") == final_files(tmp_path / "whole")
    marks = [row for row in rows(tmp_path / "parts") if row["mode"] == "restart"]
    assert [row for row in rows(tmp_path / "parts") if row not in marks] == rows(tmp_path / "whole")
    assert [mark["step"] for mark in marks] == stops
    assert result.reason == whole.reason == "finished 4 of 4 epochs"
    restarts = json.loads((tmp_path / "parts" / "run.json").read_text())["restarts"]
    assert [restart["step"] for restart in restarts] == stops


def test_micro_batches_may_change_between_a_run_and_its_continuation(tmp_path):
    """The mathematics does not depend on them; only the dropout-free task can show it to the last digits."""
    conduct(work(Regression()), tmp_path / "whole")
    with pytest.raises(Stopped):
        conduct(work(Regression(), callbacks=[StopAt(8)], micro_batch_size=3), tmp_path / "parts")
    conduct(work(Regression(), micro_batch_size=1), tmp_path / "parts", resume=True)
    ours, theirs = (
        load_file(tmp_path / name / "checkpoints/step-24/weights.safetensors") for name in ("parts", "whole")
    )
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=1e-14)


def test_rows_cover_every_sample_of_every_mode_once(tmp_path):
    result = conduct(work(), tmp_path)
    assert [(row["mode"], row["epoch"], row["step"], row["samples"]) for row in result.history] == [
        *(
            entry
            for epoch in (1, 2, 3, 4)
            for entry in (("train", epoch, 6 * epoch, 23), ("validation", epoch, 6 * epoch, 9))
        ),
        ("test", 4, 24, 8),
    ]
    assert rows(tmp_path) == [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]


def test_zero_epochs_evaluate_only(tmp_path):
    task = Regression()
    before = task.module.weight.detach().clone()
    result = conduct(work(task, epochs=0), tmp_path)
    assert [row["mode"] for row in result.history] == ["test"]
    assert result.steps == 0
    torch.testing.assert_close(task.module.weight.detach(), before, rtol=0, atol=0)
    assert (tmp_path / "checkpoints" / "step-0" / "weights.safetensors").is_file()


def test_a_run_without_files_writes_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = conduct(work(), None, keep_files=False)
    assert result.run_dir is None
    assert list(tmp_path.iterdir()) == []


def test_random_numbers_of_the_user_are_left_where_they_were(tmp_path):
    job = work()
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    conduct(job, tmp_path)
    torch.testing.assert_close(torch.rand(2), expected, rtol=0, atol=0)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    class SaveEach(Callback):
        def before_run(self, run):
            self.save = run.save

        def after_epoch(self, epoch):
            self.save()

    conduct(work(callbacks=[SaveEach()]), tmp_path / "parts")
    newest = tmp_path / "parts/checkpoints/step-24/weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="step-24.*trying the checkpoint before"):
        result = conduct(work(), tmp_path / "parts", resume=True)
    whole = conduct(work(), tmp_path / "whole")
    for name in whole.weights:
        torch.testing.assert_close(result.weights[name], whole.weights[name], rtol=0, atol=0)


def test_a_checkpoint_of_another_model_is_refused_with_a_table(tmp_path):
    conduct(work(), tmp_path)
    other = Regression()
    other.module.register_parameter("extra", torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    before = other.module.weight.detach().clone()
    with pytest.raises(StorageError, match=r"extra\s+\(2,\) float64\s+nothing"):
        conduct(work(other), tmp_path, resume=True)
    torch.testing.assert_close(other.module.weight.detach(), before, rtol=0, atol=0)


def test_resume_without_a_directory_is_refused():
    with pytest.raises(ConfigurationError, match="run_dir="):
        conduct(work(), None, resume=True)


def test_resume_of_an_empty_directory_begins(tmp_path):
    assert conduct(work(epochs=1), tmp_path / "new", resume=True).steps == 6
