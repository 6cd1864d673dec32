"""Regions of tensors that lie in several files, against slices of the whole tensor."""

import json

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from descend.errors import StorageError
from descend.runtime.safetensors_io import Region, TensorFiles, own_shards, whole_tensors, write_shards, write_tensors

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


def test_a_header_that_claims_more_than_the_file_has_is_refused_before_anything_is_allocated(tmp_path):
    (tmp_path / "w").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(StorageError, match=r"w claims a header of 1,099,511,627,776 bytes, and the file has 10"):
        TensorFiles({tmp_path / "w": None})


def test_a_file_that_is_no_safetensors_file_is_refused_by_name(tmp_path):
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(StorageError, match="w"):
        TensorFiles({tmp_path / "w": None})


def test_regions_that_only_touch_have_nothing_in_common():
    left, right = Region((0, 0), (2, 3)), Region((2, 0), (1, 3))
    assert left.overlap(right) is None
    assert left.overlap(Region((1, 1), (5, 1))) == Region((1, 1), (1, 1))
    assert Region((), ()).overlap(Region((), ())) == Region((), ())
    assert Region((3, 1), (2, 4)).within(Region((1, 1), (9, 9))) == (slice(2, 4), slice(0, 4))


def test_a_shard_twice_in_the_place_of_another_is_refused_though_the_elements_are_as_many(tmp_path):
    rows = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    files = shard_files(tmp_path, [(some, slice(0, 5)) for some in rows])
    *_, third, _ = files.values()
    third["x"]["offsets"] = [2, 0]
    with pytest.raises(StorageError, match="the shards of 'x' hold 35 of its 35 elements"):
        TensorFiles(files)


def test_a_shard_of_another_number_of_dimensions_is_refused(tmp_path):
    write_tensors(tmp_path / "w", {"x": X})
    with pytest.raises(StorageError, match=r"shard of 'x' lies outside a tensor of shape \(7, 5, 1\)"):
        TensorFiles({tmp_path / "w": {"x": {"offsets": [0, 0, 0], "shape": [7, 5, 1]}}})


def test_shards_of_tensors_of_different_shapes_are_refused(tmp_path):
    files = shard_files(tmp_path, THREE)
    last = list(files)[-1]
    files[last]["x"]["shape"] = [8, 5]
    with pytest.raises(StorageError, match=r"2\.safetensors holds a shard of 'x' of another shape .*: \(8, 5\)"):
        TensorFiles(files)


@pytest.mark.parametrize("offsets", [[0.0, 0], [-1, 0], [True, 0], [0]])
def test_offsets_are_integers_from_zero_one_a_dimension(offsets, tmp_path):
    write_tensors(tmp_path / "w", {"x": X})
    with pytest.raises(StorageError, match="does not say where the shard of 'x'"):
        TensorFiles({tmp_path / "w": {"x": {"offsets": offsets, "shape": [7, 5]}}})


def test_names_and_shapes_of_several_tensors(tmp_path):
    files = shard_files(tmp_path, THREE)
    write_tensors(tmp_path / "whole", {"y": X[0], "z": torch.zeros(())})
    found = TensorFiles({**files, tmp_path / "whole": None})
    assert list(found) == ["x", "y", "z"]
    assert "y" in found
    assert "w" not in found
    assert [found.shape(name) for name in found] == [(7, 5), (5,), ()]
    assert found.read("x", Region((3, 0), (0, 5))).shape == (0, 5)


def test_a_file_that_cannot_be_read_any_more_is_named(tmp_path, monkeypatch):
    files = TensorFiles(shard_files(tmp_path, THREE))

    class Broken:
        def get_slice(self, name):
            raise OSError("Input/output error")

    monkeypatch.setattr(files, "_open", dict.fromkeys(files._open, Broken()))
    with pytest.raises(StorageError, match=r"'x' cannot be read from .*0\.safetensors: Input/output error"):
        files.read("x")


@pytest.fixture
def second_of_four():
    """This process as rank 1 of 4 that are not there: nothing is sent."""
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def sharded(values, mesh, *placements):
    return distribute_tensor(values, mesh, list(placements), src_data_rank=None)


def test_a_rank_writes_its_shard_and_where_it_lies(second_of_four, tmp_path):
    mesh = distributed.init_device_mesh("cpu", (4,))
    tensors = {"x": sharded(X, mesh, Shard(0)), "y": sharded(X, mesh, Shard(1))}
    facts = write_shards(tmp_path / "w", tensors)
    assert facts["shards"] == {"x": {"offsets": [2, 0], "shape": [7, 5]}, "y": {"offsets": [0, 2], "shape": [7, 5]}}
    assert facts["bytes"] == (tmp_path / "w").stat().st_size
    from safetensors.torch import load_file

    assert load_file(tmp_path / "w")["x"].equal(X[2:4])


def test_the_first_of_the_copies_writes_a_shard_if_it_has_elements(second_of_four):
    """On a mesh of 2 x 2 rank 1 stands at (0, 1): first by rows, second by columns."""
    mesh = distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    tensors = {
        "first": sharded(X, mesh, Replicate(), Shard(0)),
        "second": sharded(X, mesh, Shard(0), Replicate()),
        "empty": sharded(X[:1], mesh, Replicate(), Shard(0)),
        "whole": X,
    }
    assert list(own_shards(tensors)) == ["first"]
    assert whole_tensors(tensors) == {"whole": X}
