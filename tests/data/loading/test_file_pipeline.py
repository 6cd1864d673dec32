"""Files as batches: conversion, replacement of samples, workers and ranks."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data.test_files import Lengths
from data.torch_sets import Own
from torch import nn

import descend
from descend.data import FileFormat, Loading, file_format, open_data, read, register
from descend.data.loading.file_pipeline import FilePipeline
from descend.errors import DataError
from descend.train import Epochs

N = 60
X = np.random.default_rng(0).normal(size=(N, 3))
LABELS = np.where(X.sum(1) > 0, "up", "down")


@pytest.fixture
def table(tmp_path):
    columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "kind": LABELS, "y": X.sum(1)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=16)
    return tmp_path / "t.parquet"


def batches(data, batch_size=8, **how):
    feed = open_data(data, Loading(batch_size=batch_size, seed=3, **how))
    try:
        return [(b.ids.tolist(), {k: torch.as_tensor(v) for k, v in b.fields.items()}) for b in feed.epoch(1)]
    finally:
        getattr(feed.reader, "close", lambda: None)()


def test_types_are_those_of_torch(table, tmp_path):
    np.savez(tmp_path / "a.npz", f=X, g=X.astype(np.float32), u=np.arange(N, dtype=np.uint16), b=np.zeros(N, np.uint8))
    rows = FilePipeline(read(tmp_path / "a.npz")).read(np.arange(4), 0, lambda i: None)
    kinds = {name: tensor.dtype for name, tensor in rows.fields.items()}
    assert kinds == {"f": torch.float32, "g": torch.float32, "u": torch.int64, "b": torch.uint8}
    with pytest.raises(DataError, match="'kind' holds text, which a module cannot take"):
        batches(table)


def test_samples_and_order_are_those_of_tensors_in_memory(table):
    ours = batches(read(table, fields=["a", "y"]))
    truth = batches({"a": torch.tensor(X[:, 0]).float(), "y": torch.tensor(X.sum(1)).float()})
    for (ids, fields), (expected, of_tensors) in zip(ours, truth, strict=True):
        assert ids == expected
        assert all(torch.equal(fields[name], of_tensors[name]) for name in of_tensors)


def test_ranks_share_a_batch(table):
    reader = read(table, fields=["a"])
    whole = batches(reader)
    parts = [batches(reader, rank=rank, ranks=2) for rank in range(2)]
    for (ids, fields), *of_ranks in zip(whole, *parts, strict=True):
        assert ids == of_ranks[0][0] + of_ranks[1][0]
        assert torch.equal(fields["a"], torch.cat([part["a"] for _, part in of_ranks]))


@pytest.mark.slow
def test_worker_processes_read_the_same(table):
    reader = read(table, fields=["a", "kind"], target="kind")
    for (ids, fields), (expected, alone) in zip(batches(reader, workers=2), batches(reader), strict=True):
        assert ids == expected
        assert all(torch.equal(fields[name], alone[name]) for name in alone)


def test_a_resumed_epoch_reads_no_skipped_sample(table, monkeypatch):
    reader = read(table, fields=["a"])
    whole = [ids for ids, _ in batches(reader)]
    seen = []
    own = type(reader.source).read
    monkeypatch.setattr(type(reader.source), "read", lambda self, ids: seen.append(ids.tolist()) or own(self, ids))
    feed = open_data(reader, Loading(batch_size=8, seed=3))
    assert [batch.ids.tolist() for batch in feed.epoch(1, 5)] == whole[5:] == seen


@pytest.fixture
def lengths(monkeypatch, tmp_path):
    monkeypatch.setattr(file_format, "_ADDED", [])
    register(FileFormat("lengths", (".len",), Lengths))
    (tmp_path / "a.len").write_text("a\nbb\nccc\n\nddd\n")
    return tmp_path / "a.len"


def test_samples_that_cannot_be_read_are_replaced_by_the_next(lengths):
    with pytest.raises(DataError, match=r"sample 2 of reader 'lengths' for 'validate' \(line 3\)"):
        batches(lengths, role="validate")
    with pytest.warns(UserWarning, match="is replaced by the next one"):
        (found,) = batches(lengths, role="validate", skip_bad=2)
    assert found[0] == [0, 1, 3, 3, 0]
    assert found[1]["n"].tolist() == [1, 2, 0, 0, 1]
    with pytest.warns(UserWarning, match="replaced"), pytest.raises(DataError, match=r"2 samples .* and skip_bad=1"):
        batches(lengths, role="validate", skip_bad=1)


def test_every_sample_bad(lengths):
    lengths.write_text("aaa\nbbb\n")
    with pytest.raises(DataError):
        batches(lengths, skip_bad=5)


def test_a_reader_of_ones_own_is_read_with_the_same_settings():
    """In processes, with bad samples replaced, within a time: as data sets of torch are."""
    whole = batches(Own(), 4)
    assert [ids for ids, _ in whole] == [ids for ids, _ in batches(Own(), 4, timeout_seconds=60.0)]
    assert torch.equal(whole[0][1]["x"][:, 0], torch.tensor(whole[0][0]).float() + 1)  # of epoch 1
    with pytest.raises(DataError, match=r"samples \[.*5.*\] of Own for 'train': OSError: .*Input/output error"):
        batches(Own(5), 4, timeout_seconds=60.0)
    with pytest.warns(UserWarning, match="sample 5 of Own for 'train' is replaced by the next one"):
        found = batches(Own(5), 4, skip_bad=1)
    assert sorted(i for ids, _ in found for i in ids) == sorted([*(i for i in range(13) if i != 5), 6])
    with pytest.raises(DataError, match="of Own for 'train' is not read after 1 seconds"):
        batches(Own(5, "hangs"), 4, timeout_seconds=1)


@pytest.mark.slow
def test_a_reader_of_ones_own_in_other_processes():
    whole = batches(Own(), 4)
    for (ids, fields), (other, same) in zip(whole, batches(Own(), 4, workers=2), strict=True):
        assert ids == other
        assert torch.equal(fields["x"], same["x"])
    with pytest.raises(DataError, match=r"descend-loader-\d .*killed by SIGKILL at sample \d+ of Own for 'train'"):
        batches(Own(5, "killed"), 4, workers=2)
    with pytest.raises(DataError, match="of Own for 'train' is not read after 2 seconds: it hangs"):
        batches(Own(5, "hangs"), 4, workers=2, timeout_seconds=2)


def fitted(data, **options):
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    sgd = functools.partial(torch.optim.SGD, lr=0.5)
    descend.fit(module, "cross_entropy", data, optimizer=sgd, batch_size=16, stop=Epochs(2), **options)
    return module.weight.detach()


def test_fit_takes_a_path(table):
    """Columns of numbers are one input, text is classes, and the result is that of tensors."""
    wanted = fitted((torch.tensor(X).float(), torch.tensor(LABELS == "up").long()))
    reader = read(table, fields=["a", "b", "c", "kind"], target="kind")
    assert torch.equal(fitted(reader), wanted)
    pq.write_table(pq.read_table(table).drop_columns(["y"]), table)
    assert torch.equal(fitted(str(table), targets=["kind"]), wanted)


def test_classes_of_training_are_those_of_validation(table, tmp_path):
    """A validation set with one class only: its number is that of training."""
    only = pq.read_table(table).drop_columns(["y"]).filter(pa.compute.field("kind") == "up")
    pq.write_table(only, tmp_path / "v.parquet")
    pq.write_table(pq.read_table(table).drop_columns(["y"]), table)
    module = nn.Linear(3, 2)
    result = descend.fit(
        module,
        "cross_entropy",
        table,
        targets=["kind"],
        valid=tmp_path / "v.parquet",
        metrics=["accuracy"],
        optimizer=functools.partial(torch.optim.SGD, lr=1.0),
        batch_size=16,
        stop=Epochs(20),
    )
    assert [row["accuracy"] for row in result.history if row["mode"] == "validation"][-1] > 0.8
