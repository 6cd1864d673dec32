"""NumPy's own files."""

import pickle  # as readers are sent to worker processes
import struct
import zipfile

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.formats import npy
from descend.errors import ConfigurationError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.integers(0, 5, 20)


@pytest.mark.parametrize(
    "array",
    [
        X,
        X.astype(">f4"),
        np.asfortranarray(X),
        X[:, :0],
        Y.astype(np.uint8),
        Y > 2,
        X + 1j,
        np.array([f"text {i}" for i in range(9)]),
    ],
    ids=["float64", "big-endian", "Fortran", "no columns", "uint8", "bool", "complex", "text"],
)
def test_arrays(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    same(read(tmp_path / "x.npy"), {"samples": array})


def test_a_structured_array_has_a_field_for_each_part(tmp_path):
    array = np.zeros(7, dtype=[("a", "<f4", (2,)), ("b", ">i8")])
    array["a"], array["b"] = RNG.normal(size=(7, 2)), np.arange(7)
    np.save(tmp_path / "x.npy", array)
    same(read(tmp_path / "x.npy"), {"a": array["a"], "b": array["b"]})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path, save):
    save(tmp_path / "a.npz", x=X, y=Y, weights=np.ones(3))
    same(read(tmp_path / "a.npz", key=["x", "y"]), {"x": X, "y": Y})
    same(read(tmp_path / "a.npz", key="weights"), {"weights": np.ones(3)})
    assert "must have one entry for each sample" in refusal(tmp_path / "a.npz")
    with pytest.raises(ConfigurationError, match="no array 'z'"):
        read(tmp_path / "a.npz", key="z")


def test_several_files_are_one_data_set(tmp_path):
    np.save(tmp_path / "0.npy", X[:7])
    np.save(tmp_path / "1.npy", X[7:])
    same(read(tmp_path), {"samples": X})
    assert read(tmp_path).source.place(9) == f"{tmp_path / '1.npy'}, index 2"
    np.save(tmp_path / "2.npy", Y)
    assert "pass a mapping" in refusal(tmp_path)


def test_an_array_is_mapped_and_survives_pickling(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    for name in ("x.npy", "x.npz"):
        reader = read(tmp_path / name)
        reader.read(np.array([0]))
        (array,) = reader.source._files.pieces[0].values()
        assert isinstance(array.elements, np.memmap)
        assert len(pickle.dumps(reader)) < 2000
        same(pickle.loads(pickle.dumps(reader)), dict(zip(reader.fields, [X], strict=True)))


def test_objects_are_refused_and_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    np.save(tmp_path / "x.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([Trap()], dtype=object))
    for name in ("x.npy", "x.npz"):
        text = refusal(tmp_path / name)
        assert "Python objects" in text
        assert str(tmp_path / name) in text


def header(shape, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (header((2,)) + bytes(9), "truncated"),
        (header((2,)) + bytes(17), "longer than its header says"),
        (header((10**15,)), "truncated"),
        (header((-1,)), "longer"),
        (header("()") + bytes(8), "single value"),
        (header((0, 3)), "0 samples"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(50), "not a NumPy file"),
        (header("__import__('os').abort()"), "not a NumPy file"),
        (b"\x93NUMPY", "not a NumPy file"),
    ],
)
def test_damaged_files(tmp_path, content, part):
    (tmp_path / "x.npy").write_bytes(content)
    text = refusal(tmp_path / "x.npy")
    assert part in text
    assert str(tmp_path) in text


def test_archives_that_are_none(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1000))
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("readme.txt", "x")
    assert "readme.txt" in refusal(tmp_path / "y.npz")
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "z.npz").write_bytes(content[:-30])
    assert "reader 'npz' for 'train'" in refusal(tmp_path / "z.npz")
    monkeypatch.setattr(npy, "MAX_COMPRESSED_BYTES", 8000)
    assert "at most 8,000 are decompressed" in refusal(tmp_path / "x.npz")


def test_single_values_of_an_npz_are_left_out(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, version=3)
    same(read(tmp_path / "a.npz"), {"x": X})
    assert "array 'version' holds a single value" in refusal(tmp_path / "a.npz", key=["x", "version"])
    np.savez(tmp_path / "b.npz", version=3)
    assert "single values alone" in refusal(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz")
    assert "has no arrays" in refusal(tmp_path / "c.npz")


def test_arrays_whose_names_tell_roles(tmp_path):
    """As Keras and MedMNIST write their data sets."""
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:3], y_test=Y[:3])
    same(read(tmp_path / "a.npz"), {"x": X, "y": Y})
    same(read(tmp_path / "a.npz", role="test"), {"x": X[:3], "y": Y[:3]})
    assert "arrays for train, test and none for 'validate'" in refusal(tmp_path / "a.npz", role="validate")
    same(read(tmp_path / "a.npz", key=["x_test"]), {"x_test": X[:3]})
    np.savez(tmp_path / "b.npz", x=X, test_score=Y)  # a field as others
    same(read(tmp_path / "b.npz"), {"x": X, "test_score": Y})


def test_a_structure_within_a_structure(tmp_path):
    rows = np.zeros(4, [("a", "f4"), ("b", [("c", ">i2", (2,)), ("d", "U3")])])
    rows["b"]["c"], rows["b"]["d"] = np.arange(8).reshape(4, 2), "xyz"
    np.save(tmp_path / "a.npy", rows)
    same(read(tmp_path / "a.npy"), {"a": rows["a"], "b.c": np.arange(8).reshape(4, 2), "b.d": rows["b"]["d"]})


@pytest.mark.parametrize(("first", "second"), [("i4", "f8"), ("U1", "U3"), (">f2", "f4")])
def test_files_of_other_types_are_joined_as_numpy_does(tmp_path, first, second):
    parts = [np.arange(3).astype(first), np.arange(10, 13).astype(second)]
    for number, part in enumerate(parts):
        np.save(tmp_path / f"{number}.npy", part)
    same(read(tmp_path), {"samples": np.concatenate(parts)})
