"""What a wrapped source passes on."""

import numpy as np
from data.torch_sets import Augmented

from descend.data import read
from descend.data.wrapped_source import WrappedSource


def test_what_is_known_of_the_source_is_passed_on(tmp_path):
    (tmp_path / "a.txt").write_text("Once upon a time.\n")
    source = read(tmp_path / "a.txt", length=4).source
    wrapped = WrappedSource(source)
    assert (wrapped.fields, wrapped.vocabulary, len(wrapped)) == (source.fields, 257, len(source))
    assert wrapped.shown(wrapped.read(np.array([1]))["input"][0]) == " upo"
    assert wrapped.place(0) == source.place(0)
    assert wrapped.column("input") is None
    assert wrapped.at_epoch(3) is wrapped


def test_random_samples_are_those_of_the_epoch_and_the_run():
    source = read(Augmented()).source
    wrapped, ids = WrappedSource(source), np.arange(4)
    for ours, theirs in ((wrapped, source), (wrapped.at_epoch(2), source.at_epoch(2))):
        np.testing.assert_array_equal(ours.read(ids)["0"], theirs.read(ids)["0"])
    ours, theirs = wrapped.in_run(7, "test").at_epoch(1), source.in_run(7, "test").at_epoch(1)
    np.testing.assert_array_equal(ours.read(ids)["0"], theirs.read(ids)["0"])
    assert not np.array_equal(ours.read(ids)["0"], wrapped.at_epoch(1).read(ids)["0"])
