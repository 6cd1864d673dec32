"""Values of the reader protocol: fields that can be compared, and one-hot rows."""

import dataclasses

import numpy as np
import pytest
from data.torch_sets import Augmented

from descend.data import read
from descend.data.reader_protocol import Field, Format, WrappedSource, one_hot


def test_one_hot():
    rows = one_hot(np.array([2, 0]), 3)
    np.testing.assert_array_equal(rows, [[0, 0, 1], [1, 0, 0]])
    assert rows.dtype == np.float32
    assert one_hot(np.array([], dtype=int), 3).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_one_hot_is_a_row_of_the_identity_for_each_label(dtype):
    labels = np.random.default_rng(0).integers(0, 200, 50).astype(dtype)
    np.testing.assert_array_equal(one_hot(labels, 200), np.eye(200, dtype=np.float32)[labels])


def test_a_label_beyond_the_classes_is_an_error():
    with pytest.raises(IndexError):
        one_hot(np.array([3]), 3)


def test_fields_and_formats_are_values():
    assert Field((2,), np.dtype("f4")) == Field((2,), np.dtype(np.float32))
    assert Field((2,), np.dtype("f4")) != Field((2,), np.dtype("f8"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Format(open=lambda reader, seed: None, uses=frozenset()).uses = frozenset({"a"})


# ---- what a wrapped source passes on


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
