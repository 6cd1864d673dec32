"""A run that is stopped anywhere and continued ends in the same bits as one that was left alone."""

import functools
import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from callback_runs import StopAt
from run_builder import Parts, execute
from safetensors.torch import load_file
from toys import Regression, data

import descend
from descend.callbacks import CheckMetric, Checkpoint
from descend.callbacks.console import say
from descend.errors import ConfigurationError, NumericalError, Stopped, StorageError
from descend.runtime import read_state, read_weights, save_checkpoint
from descend.train import BatchedIterativeOptimizer, Callback, Mode


class Noisy(Regression):
    """Least squares with dropout on the inputs, so that a step draws random numbers."""

    def losses(self, micro_batch):
        x = torch.nn.functional.dropout(micro_batch.fields["x"], 0.3, training=self.module.training)
        return super().losses(replace(micro_batch, fields={**micro_batch.fields, "x": x}))


def work(task=None, optimizer=torch.optim.Adam, epochs=4, callbacks=(), **settings):
    task = task or Noisy(decay=0.01)
    modes = {
        Mode.TRAIN: data(samples=23, batch_size=4, shuffle=True),
        Mode.VALIDATION: data(samples=9, batch_size=4),
        Mode.TEST: data(samples=8, batch_size=4),
    }
    made = optimizer(task.module.named_parameters(), lr=0.05)
    algorithm = settings.pop("algorithm", None) or BatchedIterativeOptimizer(epoch_count=epochs)

    return Parts("toy", task, made, modes, algorithm, 5, tuple(callbacks), **settings)


def final_files(run_dir):
    newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    return {
        "weights": (newest / "weights.safetensors").read_bytes(),
        "optimizer": (newest / "training" / "optimizer.safetensors").read_bytes(),
    }


def rows(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9)


@pytest.mark.parametrize(
    ("stops", "optimizer"),  # 6 steps an epoch
    [([1], MOMENTUM), ([6], torch.optim.Adam), ([3, 7, 17], torch.optim.Adam), ([24], torch.optim.Adam)],
)
def test_stopped_and_continued_is_the_same_run(tmp_path, stops, optimizer):
    whole = execute(work(optimizer=optimizer), tmp_path / "whole")
    for step in stops:
        with pytest.raises(Stopped, match=f"SIGTERM after step {step},.*everything is saved"):
            execute(work(optimizer=optimizer, callbacks=[StopAt(step)]), tmp_path / "parts", resume=True)
    result = execute(work(optimizer=optimizer), tmp_path / "parts", resume=True)
    assert final_files(tmp_path / "parts") == final_files(tmp_path / "whole")
    marks = [row for row in rows(tmp_path / "parts") if row["mode"] == "restart"]
    assert [row for row in rows(tmp_path / "parts") if row not in marks] == rows(tmp_path / "whole")
    assert [mark["step"] for mark in marks] == stops
    assert result.reason == whole.reason == "finished 4 of 4 epochs"
    restarts = json.loads((tmp_path / "parts" / "run.json").read_text())["restarts"]
    assert [restart["step"] for restart in restarts] == stops


def test_micro_batches_may_change_between_a_run_and_its_continuation(tmp_path):
    """The mathematics does not depend on them; only the dropout-free task can show it to the last digits."""
    execute(work(Regression()), tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(work(Regression(), callbacks=[StopAt(8)], micro_batch_size=3), tmp_path / "parts")
    execute(work(Regression(), micro_batch_size=1), tmp_path / "parts", resume=True)
    ours, theirs = (
        load_file(tmp_path / name / "checkpoints/step-24/weights.safetensors") for name in ("parts", "whole")
    )
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=1e-14)


def test_rows_cover_every_sample_of_every_mode_once(tmp_path):
    result = execute(work(), tmp_path)
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
    result = execute(work(task, epochs=0), tmp_path)
    assert [row["mode"] for row in result.history] == ["validation", "test"]
    assert result.steps == 0
    torch.testing.assert_close(task.module.weight.detach(), before, rtol=0, atol=0)
    assert (tmp_path / "checkpoints" / "step-0" / "weights.safetensors").is_file()


def test_a_run_without_files_writes_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = execute(work(), None, keep_files=False)
    assert result.run_dir is None
    assert list(tmp_path.iterdir()) == []


def test_random_numbers_of_the_user_are_left_where_they_were(tmp_path):
    job = work()
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    execute(job, tmp_path)
    torch.testing.assert_close(torch.rand(2), expected, rtol=0, atol=0)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    class SaveEach(Callback):
        def before_run(self, run):
            self.save = run.save

        def after_epoch(self, epoch):
            self.save()

    execute(work(callbacks=[SaveEach()]), tmp_path / "parts")
    newest = tmp_path / "parts/checkpoints/step-24/weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="step-24.*trying the checkpoint before"):
        result = execute(work(), tmp_path / "parts", resume=True)
    whole = execute(work(), tmp_path / "whole")
    for name in whole.weights:
        torch.testing.assert_close(result.weights[name], whole.weights[name], rtol=0, atol=0)


def test_a_checkpoint_of_another_model_is_refused_with_a_table(tmp_path):
    execute(work(), tmp_path)
    other = Regression()
    other.module.register_parameter("extra", torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    before = other.module.weight.detach().clone()
    with pytest.raises(StorageError, match=r"extra\s+\(2,\) float64\s+nothing"):
        execute(work(other), tmp_path, resume=True)
    torch.testing.assert_close(other.module.weight.detach(), before, rtol=0, atol=0)


def test_resume_without_a_directory_is_refused():
    with pytest.raises(ConfigurationError, match="run_dir="):
        execute(work(), None, resume=True)


def test_resume_of_an_empty_directory_begins(tmp_path):
    assert execute(work(epochs=1), tmp_path / "new", resume=True).steps == 6


# ---- rows and times over restarts


def rows_of_passes(run_dir):
    return [(row["mode"], row["epoch"], row["step"], row.get("samples")) for row in rows(run_dir)]


def test_a_limit_within_a_pass_that_is_raised_leaves_one_row_for_the_pass(tmp_path):
    """The pass that was cut short has a row; when it continues, the whole pass has one in its place."""
    steps = lambda n: {"algorithm": BatchedIterativeOptimizer(num_iterations=n)}  # noqa: E731
    short = execute(work_with(**steps(9)), tmp_path / "parts")
    assert [row["samples"] for row in short.history if row["mode"] == "train"] == [23, 12]
    again = execute(work_with(**steps(9)), tmp_path / "parts", resume=True)
    assert again.steps == 9
    assert [row["mode"] for row in again.history] == [row["mode"] for row in short.history]
    for limit in (10, 15):
        execute(work_with(**steps(limit)), tmp_path / "parts", resume=True)
    whole = execute(work_with(**steps(15)), tmp_path / "whole")
    unmarked = [row for row in rows(tmp_path / "parts") if row["mode"] != "restart"]
    assert unmarked == rows(tmp_path / "whole")
    assert final_files(tmp_path / "parts") == final_files(tmp_path / "whole")
    assert [row["samples"] for row in whole.history if row["mode"] == "train"] == [23, 23, 12]


def work_with(**settings):
    return work(**settings)


def test_a_checkpoint_of_the_very_last_step_makes_no_step_more(tmp_path):
    """Killed after the save of the step that was to be the last one, and before the run could end."""

    class Die(Callback):
        def after_step(self, step):
            if step.step == 9:
                raise KeyboardInterrupt

    algorithm = BatchedIterativeOptimizer(num_iterations=9)
    callbacks = (Checkpoint(every_steps=3), Die())
    with pytest.raises(KeyboardInterrupt):
        execute(work_with(algorithm=algorithm, callbacks=callbacks), tmp_path / "parts")
    result = execute(work_with(algorithm=algorithm), tmp_path / "parts", resume=True)
    whole = execute(work_with(algorithm=algorithm), tmp_path / "whole")
    assert result.steps == whole.steps == 9
    assert final_files(tmp_path / "parts") == final_files(tmp_path / "whole")
    assert [row for row in rows(tmp_path / "parts") if row["mode"] != "restart"] == rows(tmp_path / "whole")


def test_a_crash_leaves_one_clean_series_with_a_mark(tmp_path):
    """Rows of steps that are made again stand once, in their order, and a row marks the restart."""

    class Record(Callback):
        def after_step(self, step):
            step.run.control.record({"loss": step.loss}, step.step)
            if step.step == dies:
                raise RuntimeError("crash")

    dies = 17
    with pytest.raises(RuntimeError, match="crash"):
        execute(work(callbacks=[Checkpoint(every_steps=5), Record()]), tmp_path)
    dies = 0
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"mode": "train", "st')  # the row that a killed process was writing
    execute(work(callbacks=[Checkpoint(every_steps=5), Record()]), tmp_path, resume=True)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in found if "loss" in row]
    assert steps == list(range(1, 25))
    (mark,) = [row for row in found if row["mode"] == "restart"]
    assert mark["step"] == 15
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)
    assert "continued after step 15" in (tmp_path / "log.txt").read_text()


def test_training_time_and_lengths_of_passes_survive_a_restart(tmp_path):
    with pytest.raises(Stopped):
        execute(work(callbacks=[StopAt(15)]), tmp_path)
    before = {(row["mode"], row["epoch"]): row["seconds"] for row in rows_with_times(tmp_path)}
    execute(work(), tmp_path, resume=True)
    after = {(row["mode"], row["epoch"]): row["seconds"] for row in rows_with_times(tmp_path)}
    assert all(after[key] == seconds for key, seconds in before.items())
    ledger = json.loads((tmp_path / "checkpoints.json").read_text())
    assert ledger["step-24"]["times"]["seconds"] > ledger["step-15"]["times"]["seconds"] > 0


def rows_with_times(run_dir):
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if "seconds" in row]


def test_a_failed_check_is_said_to_stand_after_its_step(tmp_path):
    """CheckMetric looks after the update: what is saved is the state after it."""
    check = CheckMetric(metric="absolute", lower_bound=-2.0, upper_bound=-1.0, error_on_failure=True)
    with pytest.raises(NumericalError, match=r"the state after 6 updates is saved in .*step-6") as caught:
        execute(work(callbacks=[check]), tmp_path)
    assert "before that step" not in str(caught.value)


def test_the_end_is_written_down(tmp_path):
    """In run.json and log.txt, whatever it was."""
    execute(work(), tmp_path / "a")
    end = json.loads((tmp_path / "a/run.json").read_text())["end"]
    assert (end["exit_code"], end["reason"], end["step"]) == (0, "finished 4 of 4 epochs", 24)

    class Fail(Callback):
        def after_step(self, step):
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        execute(work(callbacks=[Fail()]), tmp_path / "b")
    end = json.loads((tmp_path / "b/run.json").read_text())["end"]
    assert (end["exit_code"], end["error"]) == (1, ["ValueError: no such thing"])
    assert "ended: ValueError: no such thing" in (tmp_path / "b/log.txt").read_text()


def test_the_log_has_what_was_printed_and_the_warnings(tmp_path, capsys):
    class Speak(Callback):
        def after_epoch(self, epoch):
            say(f"pass {epoch.epoch}")
            warnings.warn("beware", stacklevel=1)

    before = warnings.showwarning
    with pytest.warns(UserWarning, match="beware"):
        execute(work(callbacks=[Speak()]), tmp_path)
    assert warnings.showwarning is before
    log = (tmp_path / "log.txt").read_text().splitlines()
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in log if line.startswith("pass")] == printed == [f"pass {i}" for i in range(4)]
    assert "warning: beware" in log


class Recording(Callback):
    """Adds a row to each evaluation, and saves and ends the run within one."""

    def __init__(self, last=0):
        self.last = last

    def after_evaluation(self, evaluation):
        evaluation.run.control.record({"twice": 2 * evaluation.values["objective"]}, evaluation.step)
        if evaluation.epoch == self.last:
            evaluation.run.save()
            raise ValueError("enough")


def without_times(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_rows_that_callbacks_add_to_an_evaluation_come_once_however_it_is_continued(tmp_path):
    whole = execute(work(callbacks=[Recording()]), tmp_path / "whole")
    with pytest.raises(ValueError, match="enough"):
        execute(work(callbacks=[Recording(last=2)]), tmp_path / "parts")
    parts = execute(work(callbacks=[Recording()]), tmp_path / "parts", resume=True)
    assert without_times(parts.history) == without_times(whole.history)


class Reported(Callback):
    """Notes that it was reported of the end, and may raise where it is reported something."""

    def __init__(self, **raising):
        self.raising, self.ended = raising, 0

    def _hear(self, hook):
        if hook in self.raising:
            raise self.raising[hook]

    def before_run(self, run):
        self._hear("before_run")

    def after_step(self, step):
        self._hear("after_step")

    def after_run(self, run):
        self.ended += 1
        self._hear("after_run")


@pytest.mark.parametrize("hook", ["before_run", "after_step"])
def test_the_first_error_ends_the_run_and_all_callbacks_see_its_end(tmp_path, capsys, hook):
    callbacks = [Reported(after_run=ValueError("second")), Reported(**{hook: LookupError("first")}), Reported()]
    with pytest.raises(LookupError, match="first"):
        execute(work(callbacks=callbacks), tmp_path / "run")
    assert [callback.ended for callback in callbacks] == [1, 1, 1]
    assert "after_run, called because of another error, raised ValueError: second" in capsys.readouterr().out
    assert "LookupError: first" in json.loads((tmp_path / "run/run.json").read_text())["end"]["error"]


def test_an_error_at_the_very_end_is_that_of_the_run_and_all_is_saved(tmp_path):
    callbacks = [Reported(after_run=ValueError("late")), Reported()]
    with pytest.raises(ValueError, match="late"):
        execute(work(callbacks=callbacks), tmp_path / "run")
    assert callbacks[1].ended == 1
    again = execute(work(), tmp_path / "run", resume=True)
    whole = execute(work(), tmp_path / "whole")
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in whole.weights.items())


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError(), 1), (KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit(), 0)]
)
def test_the_exit_code_that_is_noted_is_that_of_the_process(tmp_path, error, code):
    with pytest.raises(type(error)):
        execute(work(callbacks=[Reported(after_step=error)]), tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["end"]["exit_code"] == code


class Counting(torch.nn.Linear):
    """Keeps more than weights and buffers, and its outputs depend on it."""

    calls, seen = 0, None

    def get_extra_state(self):
        return {"calls": self.calls, 3: (1, "three"), "seen": self.seen}

    def set_extra_state(self, state):
        assert state[3] == (1, "three")
        self.calls, self.seen = state["calls"], state["seen"]

    def forward(self, x):
        if self.training:
            self.calls, self.seen = self.calls + 1, x.detach().mean(0)
        shift = 0.0 if self.seen is None else self.seen.sum()
        return super().forward(x) * (1 + self.calls / 100) + shift / 100


def test_what_a_module_keeps_beside_weights_and_buffers_goes_on(tmp_path):
    def counting():
        task = Noisy(decay=0.01)
        task.module = Counting(3, 1, dtype=torch.float64)
        task.module.load_state_dict(Noisy().module.state_dict(), strict=False)
        return task

    whole = execute(work(counting()), tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(work(counting(), callbacks=[StopAt(9)]), tmp_path / "parts")
    parts = execute(work(task := counting()), tmp_path / "parts", resume=True)
    assert task.module.calls == whole.module.calls == 24
    assert all(torch.equal(tensor, parts.weights[name]) for name, tensor in whole.weights.items())
    assert without_times(parts.history) == without_times(whole.history)


def test_a_checkpoint_of_the_first_format_is_refused_in_words_and_gives_its_weights(tmp_path):
    execute(work(epochs=1), tmp_path)
    newest = tmp_path / "checkpoints" / "step-6"
    weights, (tensors, state) = read_weights(newest), read_state(newest)
    plain = {name: value for name, value in state.items() if name not in ("parts", "step")}
    save_checkpoint(tmp_path / "checkpoints", 6, weights, tensors, plain)
    with pytest.raises(StorageError, match=r"is of format 1.*weights_only=True"):
        execute(work(epochs=2), tmp_path, resume=True)
    result = execute(work(epochs=0), tmp_path, resume=True, weights_only=True)
    assert all(torch.equal(value, weights[name]) for name, value in result.weights.items())


def fit_linear(loss, directory, policy="stop"):
    data = torch.ones(6, 2), torch.ones(6, 1)
    settings = {"batch_size": 3, "stop": descend.Epochs(1), "on_nonfinite": policy, "optimizer": descend.SGD(lr=0.1)}
    return descend.fit(torch.nn.Linear(2, 1), loss, data, run_dir=directory, verbose=False, **settings)


@pytest.mark.parametrize("shift", [0.0, math.nan])
def test_a_run_does_not_end_as_if_nothing_was_wrong_with_an_objective_that_is_not_finite(shift, tmp_path):
    """A loss over a count of 0, or with a NaN that no gradient sees: all gradients are finite."""

    def loss(output, target):
        return shift - (output - target).square().sum(), 0.0

    with pytest.raises(NumericalError, match=r"the training objective of the last epoch is (-inf|nan), ") as caught:
        fit_linear(loss, tmp_path / "stop")
    assert "the state after 2 updates is saved in" in str(caught.value)
    assert not math.isfinite(fit_linear(loss, tmp_path / "allow", "allow").history[-1]["objective"])


def test_an_epoch_in_which_nothing_counts_is_no_fault(tmp_path):
    result = fit_linear(lambda output, target: (0.0 * output.sum(), 0.0), tmp_path)
    assert math.isnan(result.history[-1]["objective"])
