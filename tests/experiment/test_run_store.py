"""The store of a run: what lies in its directory after each call, and what it leaves out where no files are kept."""

import json
import warnings

import pytest
import torch
from toys import Regression, data, run_of

from descend.callbacks.console import say
from descend.errors import DataError
from descend.experiment.ranks import NoFiles
from descend.experiment.run_store import DirectoryStore, facts_of, logging_to
from descend.runtime import sharded_save


@pytest.fixture
def kept(tmp_path):
    """A run with an open directory."""
    run = run_of(Regression(), data(), data(), store=DirectoryStore(lambda: tmp_path / "run"))
    with run.store.opened(run):
        run.store.begin(run, None)
        yield run


def read(run, name):
    return json.loads((run.store.directory / name).read_text())


def rows(run):
    return [json.loads(line) for line in (run.store.directory / "metrics.jsonl").read_text().splitlines()]


def test_the_facts_of_a_run_are_written_when_it_begins(kept):
    facts = read(kept, "run.json")
    assert facts == json.loads(json.dumps(facts_of(kept)))
    assert (facts["random_seed"], facts["torch"], facts["end"]) == (0, torch.__version__, None)
    assert rows(kept) == []


def test_rows_are_kept_as_they_come_and_can_be_taken_back(kept):
    for step in (1, 2, 3):
        row = {"mode": "train", "epoch": 0, "step": step, "objective": 0.5}
        kept.state.history.append(row)
        kept.store.append(row)
    assert [row["step"] for row in rows(kept)] == [1, 2, 3]
    kept.state.training.step = 2
    del kept.state.history[2:]
    kept.store.rewrite(kept)
    assert [row["step"] for row in rows(kept)] == [1, 2]


def test_a_checkpoint_brings_the_run_back(kept):
    before = {name: p.detach().clone() for name, p in kept.parameters.items()}
    kept.state.training.step = 3
    path = kept.store.save(kept)
    assert path is not None
    assert path.parent.parent == kept.store.directory
    assert kept.store.newest_checkpoint() == path
    assert kept.store.save_seconds > 0
    kept.state.training.step = 9
    with torch.no_grad():
        for p in kept.parameters.values():
            p.add_(1.0)
    kept.store.load(kept, path)
    assert kept.state.step == 3
    assert all(torch.equal(p, before[name]) for name, p in kept.parameters.items())


def test_a_directory_without_a_checkpoint_has_none(kept):
    assert kept.store.newest_checkpoint() is None


def end(run, error=None):
    with run.store.noting_end(run):
        if error is not None:
            raise error


def test_a_good_end_is_noted(kept):
    kept.state.end = "the last epoch is done"
    end(kept)
    found = read(kept, "run.json")["end"]
    assert (found["reason"], found["exit_code"], found["step"]) == ("the last epoch is done", 0, 0)
    assert "error" not in found


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(DataError(["first", "second"]), 3, ["first", "second"]), (KeyError("x"), None, ["KeyError: 'x'"])],
)
def test_an_error_is_noted_with_its_exit_code_and_raised(kept, error, code, text):
    with pytest.raises(type(error)):
        end(kept, error)
    found = read(kept, "run.json")["end"]
    assert found["error"] == text
    assert found["exit_code"] == code or (code is None and found["exit_code"] != 0)
    assert f"ended: {text[0]}" in (kept.store.directory / "log.txt").read_text()


def test_what_is_printed_and_every_warning_goes_into_the_log(kept, capsys, monkeypatch):
    passed_on = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *about: passed_on.append(str(message)))
    before = warnings.showwarning
    with kept.store.logging():
        say("a line")
        warnings.showwarning(UserWarning("a doubt"), UserWarning, "file", 1)
    say("afterwards")
    text = (kept.store.directory / "log.txt").read_text()
    assert "a line" in text
    assert "warning: a doubt" in text
    assert "afterwards" not in text
    assert warnings.showwarning is before
    assert passed_on == ["a doubt"]
    assert "a line" in capsys.readouterr().out


def test_without_files_nothing_is_logged():
    before = warnings.showwarning
    with logging_to(None):
        assert warnings.showwarning is before


def test_a_run_that_cannot_begin_leaves_no_directory(tmp_path):
    run = run_of(Regression(), data(), store=DirectoryStore(lambda: tmp_path / "run"))
    with run.store.opened(run):
        assert (tmp_path / "run").is_dir()
        run.store.discard()
    assert not (tmp_path / "run").exists()


def test_a_store_without_files_saves_nothing_and_restores_checkpoints_of_others(kept, tmp_path):
    kept.state.training.step = 4
    path = kept.store.save(kept)
    other = run_of(Regression(), data())
    assert type(other.store) is NoFiles
    with other.store.opened(other):
        assert other.store.save(other) is None
        assert other.store.newest_checkpoint() is None
        other.store.load(other, path)
    assert other.state.step == 4
    assert other.store.scratch is None


def test_restarts_are_noted_with_their_changes(kept):
    kept.state.training.step, kept.state.training.epoch = 6, 2
    kept.store.note_restart(kept, ["batch_size: 4, was 2"])
    [restart] = read(kept, "run.json")["restarts"]
    assert restart["step"] == 6
    assert "batch_size: 4, was 2" in json.dumps(restart)


def test_ranks_write_shards_only_once_the_save_before_is_done(kept, monkeypatch):
    events = []
    monkeypatch.setattr(type(kept.strategy), "is_sharded", True)
    monkeypatch.setattr(type(kept.store.checkpoints), "wait", lambda manager: events.append("waits"))
    stage = sharded_save.stage_shards
    monkeypatch.setattr(sharded_save, "stage_shards", lambda *given: events.append("stages") or stage(*given))
    assert kept.store.save(kept) is not None
    assert events[:2] == ["waits", "stages"]
