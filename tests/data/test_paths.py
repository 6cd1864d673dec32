"""Sources and the files that they name."""

import gzip
import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from descend.data import read
from descend.data.paths import HEAD_BYTES, files_of, head, is_path
from descend.errors import ConfigurationError, DataError


@pytest.fixture
def folder(tmp_path):
    def made(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        return tmp_path

    return made


def names(paths, root):
    return [str(path.relative_to(root)) for path in paths]


def test_files_folders_patterns_and_lists(folder):
    root = folder("b.csv", "a.csv", "c/d.csv", ".hidden.csv", "_temporary/e.csv")
    assert names(files_of(root / "b.csv"), root) == ["b.csv"]
    assert names(files_of(str(root)), root) == ["a.csv", "b.csv", "c/d.csv"]
    assert names(files_of(f"{root}/*.csv"), root) == ["a.csv", "b.csv"]
    assert names(files_of(f"{root}/**/[ad].csv"), root) == ["a.csv", "c/d.csv"]
    assert names(files_of([root / "b.csv", f"{root}/*.csv"]), root) == ["b.csv", "a.csv"]


def test_braces(folder):
    root = folder(*(f"s-{i:03}.tar" for i in range(12)), "a1.csv", "b1.csv", "b2.csv", "odd{1,2}")
    assert names(files_of(f"{root}/s-{{008..011}}.tar"), root) == [f"s-{i:03}.tar" for i in range(8, 12)]
    assert names(files_of(f"{root}/s-0{{11..09}}.tar"), root) == ["s-011.tar", "s-010.tar", "s-009.tar"]
    assert names(files_of(f"{root}/{{b,a}}{{1,1}}.csv"), root) == ["b1.csv", "a1.csv"]
    assert names(files_of(f"{root}/{{b,a}}?.csv"), root) == ["b1.csv", "b2.csv", "a1.csv"]
    assert names(files_of(f"{root}/odd{{1,2}}"), root) == ["odd{1,2}"]
    with pytest.raises(DataError, match=r"there is no file or folder .*s-012\.tar"):
        files_of(f"{root}/s-{{000..012}}.tar")
    with pytest.raises(ConfigurationError, match="more than 1,048,576 names"):
        files_of(f"{root}/s-{{0..9999999}}.tar")
    with pytest.raises(DataError, match="there is no file"):
        files_of(f"{root}/{{x}}")


@pytest.mark.parametrize(
    ("given", "train", "validate", "test"),
    [
        (("train/1", "val/2", "test/3"), ["train/1"], ["val/2"], ["test/3"]),
        (("train.csv", "test.csv"), ["train.csv"], None, ["test.csv"]),
        (
            ("train-00.pq", "train-01.pq", "validation-00.pq"),
            ["train-00.pq", "train-01.pq"],
            ["validation-00.pq"],
            None,
        ),
        (("batch_1.bin", "batch_2.bin", "test_batch.bin"), ["batch_1.bin", "batch_2.bin"], None, ["test_batch.bin"]),
        (("train-images.gz", "t10k-images.gz"), ["train-images.gz"], None, ["t10k-images.gz"]),
        (("trains/1", "test/2"), ["test/2", "trains/1"], ["test/2", "trains/1"], ["test/2", "trains/1"]),
        (("test.csv", "testimony.csv"), ["testimony.csv"], None, ["test.csv"]),
        (("test.csv",), ["test.csv"], ["test.csv"], ["test.csv"]),
        (("set/train/1", "set/val/2"), ["set/train/1"], ["set/val/2"], None),  # as archives are unpacked
        (("a/train2017/1", "a/val2017/2"), ["a/train2017/1"], ["a/val2017/2"], None),
    ],
)
def test_roles(folder, given, train, validate, test):
    root = folder(*given)
    for role, wanted in (("train", train), ("validate", validate), ("test", test)):
        if wanted is None:
            with pytest.raises(DataError, match=f"none for '{role}'"):
                files_of(root, role)
        else:
            assert names(files_of(root, role), root) == wanted


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("nowhere.csv", "there is no file"),
        ("no*.csv", "no file matches"),
        ("x" * 5000, "cannot be opened"),
        ("https://host/a.csv", "is an address.*: fetch it"),
        ("s3://bucket/a.parquet", "is an address"),
        ("a\0", "no file|cannot"),
    ],
)
def test_what_is_not_there(source, part):
    with pytest.raises(DataError, match=part):
        files_of(source)


def test_what_is_no_file(tmp_path):
    with pytest.raises(DataError, match="has no files"):
        files_of(tmp_path)
    with pytest.raises(DataError, match="neither a file nor a folder"):
        files_of("/dev/null")
    with pytest.raises(ConfigurationError, match="must be a path"):
        files_of(3)
    assert [is_path(one) for one in ("a", Path("a"), ["a", Path("b")], [], 3, [3], {"x": "a"})] == [True] * 3 + [
        False
    ] * 4


def test_the_head_of_a_file(tmp_path):
    content = bytes(range(256)) * 10
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    (tmp_path / "cut").write_bytes(b"\x1f\x8b" + b"no gzip")
    assert head(tmp_path / "plain") == content[:HEAD_BYTES]
    assert content.startswith(head(tmp_path / "packed"))
    assert len(head(tmp_path / "packed")) > 500
    assert head(tmp_path / "cut") == b"\x1f\x8bno gzip"


def test_descriptions_of_saved_data_sets_are_no_data(folder):
    root = folder("set/data-0.arrow", "set/dataset_info.json", "set/state.json", "set/dataset_dict.json")
    assert names(files_of(root), root) == ["set/data-0.arrow"]


@pytest.mark.parametrize("kind", ["npy", "npz", "arrow", "txt", "h5", "bin", "idx"])
def test_a_file_that_is_cut_while_it_is_read(tmp_path, kind):
    """Without the check the process would end by SIGBUS."""
    path = tmp_path / f"a.{kind}"
    values = np.arange(50_000.0)
    if kind == "npy":
        np.save(path, values)
    elif kind == "npz":
        np.savez(path, x=values)
    elif kind == "arrow":
        feather.write_feather(pa.table({"x": values}), path, compression="uncompressed", chunksize=10_000)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["x"] = values
    elif kind == "bin":
        path.write_bytes(bytes(3073) * 20)
    elif kind == "idx":
        path.write_bytes(b"\0\0\x08\x01" + (50_000).to_bytes(4, "big") + bytes(50_000))
    else:
        path.write_bytes(b"some text " * 10_000)
    reader = read(path)
    reader.read(np.array([0]))
    os.truncate(path, 5000)
    last = len(reader) - 1
    with pytest.raises(DataError, match=rf"sample {last} of .*a\.{kind}.* was cut to 5,000 bytes while it was read"):
        reader.read(np.array([last]))


def test_files_that_a_system_puts_into_folders_are_no_data(folder):
    root = folder("images/a/1.png", "images/a/Thumbs.db", "images/b/desktop.ini", "images/b/.DS_Store")
    assert names(files_of(root), root) == ["images/a/1.png"]
