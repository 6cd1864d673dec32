"""A module that `fully_shard` has sharded is trained as a whole one is: the same weights, rows and files."""

import shutil

import pytest
from ranks.start import start
from ranks.test_exactness import compare, largest_difference
from ranks.wrapped import CASES, COPIES, outcome
from ranks.wrapped_runs import run
from safetensors.torch import load_file

from descend.runtime import read_state, read_weights


def check(ranks, names, folder):
    ended = start(ranks, "wrapped.py", folder, *names)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    compare([rank.left for rank in ended], names, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_gives_what_a_whole_module_gives(ranks, tmp_path):
    check(ranks, list(CASES), tmp_path)


@pytest.mark.slow
def test_parts_with_copies_give_what_a_whole_module_gives(tmp_path):
    check(4, list(COPIES), tmp_path)


def contents(folder):
    """Names, shapes and types in a checkpoint, and its state without numbers."""
    tensors, state = read_state(folder)
    forms = {name: (tuple(t.shape), t.dtype) for name, t in {**read_weights(folder), **tensors}.items()}
    train = {name: value for name, value in state["parts"]["train"].items() if name not in ("history", "values")}
    return forms, {**state, "settings": None, "parts": {**state["parts"], "train": train}}


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_any_number_of_ranks_cut_up_or_not(tmp_path):
    expected = run(3, str(tmp_path / "whole"))
    alone = tmp_path / "alone"
    run(1, str(alone / "run"))
    [first, second] = start(2, "wrapped_runs.py", alone, "2")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    newest = alone / "run" / "checkpoints" / "step-8"
    assert contents(newest) == contents_of_whole(tmp_path, 2)
    names = sorted(path.name for path in (newest / "shards").iterdir())
    assert names == [f"{kind}-0000{rank}-of-00002.safetensors" for kind in ("optimizer", "weights") for rank in (0, 1)]
    assert not {"0.weight", "3.weight"} & load_file(newest / "weights.safetensors").keys()  # no rank gathers them
    ended = start(3, "wrapped_runs.py", alone, "3")
    assert [rank.code for rank in ended] == [0] * 3, "\n".join(rank.err for rank in ended)
    for rank in ended:
        assert largest_difference(expected, rank.left)[0] < 1e-11
    shutil.rmtree(alone / "run")
    assert start(2, "wrapped_runs.py", alone, "2")[0].code == 0
    assert largest_difference(expected, run(3, str(alone / "run")))[0] < 1e-11


def contents_of_whole(folder, epochs):
    run(epochs, str(folder / f"whole{epochs}"))
    return contents(folder / f"whole{epochs}" / "checkpoints" / f"step-{4 * epochs}")
