"""The store of a run that leaves no files: a run trains with it as with any other, and nothing is swallowed."""

import pytest
from toys import Regression, data, run_of

from descend.errors import Stopped
from descend.train.loop import train
from descend.train.stopping import Epochs
from descend.train.store import RunStore


def test_a_run_trains_with_it_and_keeps_its_history_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_of(Regression(), data(batch_size=5), data(), store=RunStore())
    with run.store.opened(run), run.store.logging(), run.store.noting_end(run):
        run.store.check(run)
        run.store.begin(run, None)
        train(run, Epochs(2))
        run.store.note_restart(run, ["a change"])
        run.store.rewrite(run)
        assert run.store.save(run, final=True) is None
        run.store.discard()
    assert [row["mode"] for row in run.state.history] == ["train", "validation"] * 2
    assert list(tmp_path.iterdir()) == []
    assert (run.store.newest_checkpoint(), run.store.save_seconds) == (None, 0.0)
    assert (run.store.directory, run.store.scratch) == (None, None)


@pytest.mark.parametrize("error", [Stopped("SIGTERM"), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("within", ["opened", "noting_end", "logging"])
def test_errors_go_through_its_contexts(error, within):
    store = RunStore()
    context = store.logging() if within == "logging" else getattr(store, within)(None)
    with pytest.raises(type(error)) as caught, context:
        raise error
    assert caught.value is error


def test_it_restores_no_run_and_names_what_does(tmp_path):
    with pytest.raises(NotImplementedError, match=r"made by `descend\.experiment\.run_store`"):
        RunStore().load(None, tmp_path)
