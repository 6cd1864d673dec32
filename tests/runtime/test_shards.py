"""Regions of tensors that lie in several files, against slices of the whole tensor."""

import json

import pytest
import torch

from descend.errors import StorageError
from descend.runtime.safetensors_io import write_tensors
from descend.runtime.shards import Region, TensorFiles

X = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)


def shard_files(folder, pieces, shape=(7, 5)):
    """A file for each piece (rows, columns) of X; returns what `TensorFiles` takes."""
    files = {}
    for number, (rows, columns) in enumerate(pieces):
        path = folder / f"{number}.safetensors"
        write_tensors(path, {"x": X[rows, columns].contiguous()})
        files[path] = {"x": {"offsets": [rows.start, columns.start], "shape": list(shape)}}
    return files


THREE = [(slice(0, 3), slice(0, 5)), (slice(3, 6), slice(0, 5)), (slice(6, 7), slice(0, 5))]
BY_COLUMNS = [(slice(0, 7), slice(0, 2)), (slice(0, 7), slice(2, 5))]
QUARTERS = [(rows, columns) for rows in (slice(0, 4), slice(4, 7)) for columns in (slice(0, 2), slice(2, 5))]


@pytest.mark.parametrize("pieces", [THREE, BY_COLUMNS, QUARTERS])
def test_every_region_is_the_slice_of_the_whole_tensor(pieces, tmp_path):
    files = TensorFiles(shard_files(tmp_path, pieces))
    assert list(files) == ["x"]
    assert files.shape("x") == (7, 5)
    assert files.read("x").equal(X)
    for top in range(7):
        for rows in range(8 - top):
            found = files.read("x", Region((top, 1), (rows, 3)))
            assert found.equal(X[top : top + rows, 1:4]), (top, rows)


def test_a_region_of_a_whole_tensor_and_a_tensor_without_dimensions(tmp_path):
    write_tensors(tmp_path / "w", {"x": X, "count": torch.tensor(3), "none": torch.zeros(0, 4)})
    files = TensorFiles({tmp_path / "w": None})
    assert files.read("x", Region((2, 0), (2, 5))).equal(X[2:4])
    assert files.read("count").item() == 3
    assert files.read("none").shape == (0, 4)
    assert files.read("x", Region((7, 0), (0, 5))).shape == (0, 5)


@pytest.mark.parametrize(
    ("pieces", "shape", "words"),
    [
        (THREE[:2], (7, 5), "30 of its 35 elements"),
        ([*THREE[:2], THREE[1]], (7, 5), "of its 35 elements"),
        (THREE, (6, 5), "outside a tensor of shape"),
        (THREE, (7, 5, 1), "does not say where"),
    ],
)
def test_shards_that_do_not_make_up_the_whole_are_refused(pieces, shape, words, tmp_path):
    with pytest.raises(StorageError, match=words):
        TensorFiles(shard_files(tmp_path, pieces, shape))


@pytest.mark.parametrize("entry", [None, {}, {"offsets": [0], "shape": [-1, 5]}, {"offsets": "ab", "shape": [7, 5]}])
def test_a_forged_entry_of_a_manifest_is_refused(entry, tmp_path):
    files = shard_files(tmp_path, THREE)
    first = next(iter(files))
    with pytest.raises(StorageError, match="does not say where the shard of 'x'"):
        TensorFiles({**files, first: {"x": entry}})


def test_a_file_that_is_no_safetensors_file_is_refused_by_name(tmp_path):
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(StorageError, match="w"):
        TensorFiles({tmp_path / "w": None})
