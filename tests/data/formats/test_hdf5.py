"""HDF5 files written by h5py."""

import pickle  # as readers are sent to worker processes

import h5py
import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.errors import ConfigurationError, DataError

N = 30
X = np.random.default_rng(0).normal(size=(N, 2, 3))
TEXT = np.array([f"é{i % 3}" for i in range(N)])


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(4, 2, 3), compression="gzip")
        file["group/y"] = np.arange(N, dtype=">i4")
        file["group/flag"] = np.arange(N) % 2 == 0
        file["text"] = TEXT.tolist()
        ragged = file.create_dataset("ragged", (N,), h5py.vlen_dtype(np.int16))
        for i in range(N):
            ragged[i] = np.arange(i % 4) + 1
    return tmp_path / "a.h5"


PADDED = np.array([[j + 1 if j < i % 4 else 0 for j in range(3)] for i in range(N)], dtype=np.int16)


def test_a_filter_that_is_not_there_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((2,))
        settings.set_filter(32_123, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((4,)), settings)
        file["y"] = np.arange(4)
    reader = read(tmp_path / "a.h5")
    assert list(reader.fields) == ["y"]
    assert "filter 32123" in reader.left_out["x"]
    with pytest.raises(DataError, match="hdf5plugin"):
        read(tmp_path / "a.h5", key="x")


def test_data_sets(file):
    truth = {
        "group.flag": np.arange(N) % 2 == 0,
        "group.y": np.arange(N),
        "ragged": PADDED,
        "ragged_length": np.arange(N) % 4,
        "text": TEXT,
        "x": X,
    }
    reader = read(file)
    same(reader, truth)
    same(pickle.loads(pickle.dumps(reader)), truth)
    assert reader.source.place(3) == f"{file}, index 3"


def test_keys(file):
    same(read(file, key="x"), {"x": X})
    same(read(file, key=["group", "x"]), {"flag": np.arange(N) % 2 == 0, "y": np.arange(N), "x": X})
    with pytest.raises(ConfigurationError, match="no data set or group 'z'"):
        read(file, key="z")


def test_a_length(file):
    same(
        read(file, key="ragged", length=2), {"ragged": PADDED[:, :2], "ragged_length": np.minimum(np.arange(N) % 4, 2)}
    )


def test_classes(file):
    reader = read(file, label="text")
    assert reader.classes == {"text": ["é0", "é1", "é2"]}
    assert reader.read(np.array([4, 2]))["text"].tolist() == [1, 2]
    assert "'é0' in 'text' is none of its classes: é1" in refusal(file, label="text", classes=["é1"])


def test_several_files(file):
    with h5py.File(file.with_name("b.h5"), "w") as other:
        other["x"] = X[:5]
    same(read([file, file.with_name("b.h5")], key="x"), {"x": np.concatenate([X, X[:5]])})
    with h5py.File(file.with_name("b.h5"), "w") as other:
        other["x"] = X[:5, :1]
    assert "b.h5 has other data sets" in refusal([file, file.with_name("b.h5")], key="x")


def test_what_is_no_sample(file):
    with h5py.File(file, "a") as opened:
        opened["version"] = 3
        opened["pairs"] = np.zeros(N, dtype=[("a", int), ("b", int)])
        opened["parts"] = np.zeros(N, dtype=[("a", int), ("b", "V3")])
    assert set(read(file).left_out) == {"version", "parts.b"}
    assert "single value" in refusal(file, key="version")
    with h5py.File(file.with_name("short.h5"), "w") as opened:
        opened["x"], opened["short"] = X, np.zeros(3)
    assert "must have one entry for each sample" in refusal(file.with_name("short.h5"))


def test_other_files_are_never_read(file, tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as other:
        other["x"] = X
        other["outside"] = h5py.ExternalLink(str(file), "x")
        other["loop"] = other["/"]
        other.create_dataset("raw", (N,), np.uint8, external=[(str(file), 0, N)])
        layout = h5py.VirtualLayout((N,), np.int32)
        layout[:] = h5py.VirtualSource(str(file), "group/y", (N,))
        other.create_virtual_dataset("virtual", layout)
    same(read(tmp_path / "b.h5"), {"x": X})


def test_damaged_files(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    text = refusal(file)
    assert "is not an HDF5 file, or was cut off" in text
    assert str(file) in text
    file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    assert "reader 'hdf5'" in refusal(file)


def test_compound_types_are_fields(tmp_path):
    rows = [(i, [i, i + 1], b"x" if i % 2 else b"y", 2.5 * i) for i in range(N)]
    kinds = [("a", "<i4"), ("pair", ">f4", (2,)), ("k", "S3"), ("b", "f8")]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=np.array(rows, dtype=kinds), chunks=(7,))
    truth = {
        "t.a": np.arange(N, dtype=np.int32),
        "t.pair": np.stack([np.arange(N), np.arange(N) + 1], 1).astype(np.float32),
        "t.k": np.array([row[2].decode() for row in rows]),
        "t.b": 2.5 * np.arange(N),
    }
    reader = read(tmp_path / "a.h5")
    same(pickle.loads(pickle.dumps(reader)), truth)
    numbered = read(tmp_path / "a.h5", target="t.k")
    assert numbered.classes["t.k"] == ["x", "y"]
    same(numbered, {**truth, "t.k": (np.arange(N) % 2 == 0).astype(np.int64)})


def test_groups_that_are_called_by_roles(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"], file["test/x"] = X, X[:3]
    same(read(tmp_path / "a.h5"), {"x": X})
    same(read(tmp_path / "a.h5", role="test"), {"x": X[:3]})
    assert "groups for test, train and none for 'validate'" in refusal(tmp_path / "a.h5", role="validate")


def test_tables_of_pandas(tmp_path):
    """The groups that PyTables writes for format="table", and the fixed layout, by their attributes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        table = np.zeros(3, dtype=[("index", "i8"), ("values_block_0", "f8", (2,))])
        table["values_block_0"] = np.arange(6).reshape(3, 2)
        file.create_dataset("df/table", data=table)
        file.create_dataset("df/_i_table/index/indices", data=np.zeros(131_072))
    found = read(tmp_path / "a.h5")
    same(found, {"df.table.index": np.zeros(3, int), "df.table.values_block_0": np.arange(6.0).reshape(3, 2)})
    assert "index of PyTables" in found.left_out["df/_i_table"]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("df/block0_values", data=np.zeros((3, 2)))
        file["df"].attrs["pandas_type"] = "frame"
    assert "write it by to_hdf(..., format='table') or to_parquet" in refusal(tmp_path / "b.h5")


def test_an_enumeration(tmp_path):
    colours, states = h5py.enum_dtype({"red": 7, "blue": 3}, "i1"), h5py.enum_dtype({"off": 0, "on": 1})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("colour", data=[7, 3, 7], dtype=colours)
        file.create_dataset("state", data=[1, 0, 1], dtype=states)
    reader = read(tmp_path / "a.h5")
    assert reader.read(np.arange(3))["colour"].tolist() == [7, 3, 7]
    assert reader.classes == {"state": ["off", "on"]}
    as_class = read(tmp_path / "a.h5", target="colour")
    assert as_class.read(np.array([2, 1]))["colour"].tolist() == [1, 0]
    assert as_class.classes["colour"] == ["blue", "red"]


def test_parts_of_parts_and_lists_of_a_compound_type(tmp_path):
    kind = np.dtype([("a", [("b", "f4"), ("c", "S2")]), ("v", h5py.vlen_dtype("i4")), ("t", h5py.string_dtype())])
    rows = np.empty(6, kind)
    rows["a"]["b"], rows["a"]["c"], rows["t"] = np.arange(6), b"xy", "é"
    for i in range(6):
        rows["v"][i] = np.arange(i % 3, dtype="i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["r"] = rows
    padded = np.array([[0, 1 if i % 3 == 2 else 0] for i in range(6)], np.int32)
    of_a = {"r.a.b": np.arange(6, dtype=np.float32), "r.a.c": np.array(["xy"] * 6)}
    same(read(tmp_path / "a.h5"), {**of_a, "r.v": padded, "r.v_length": np.arange(6) % 3, "r.t": np.array(["é"] * 6)})


def test_scales_of_dimensions_are_left_out_where_they_are_none_of_the_samples(tmp_path):
    """As netCDF-4 and xarray write them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["time"], file["level"], file["sample"] = X, np.arange(N) * 0.5, np.arange(2), np.zeros(N)
        for number, name in enumerate(("sample", "level")):
            file[name].make_scale("This is a netCDF dimension but not a netCDF variable.        30")
            file["x"].dims[number].attach_scale(file[name])
        file["time"].make_scale("time")
    reader = read(tmp_path / "a.h5")
    same(reader, {"time": np.arange(N) * 0.5, "x": X})
    assert list(reader.left_out) == ["level", "sample"]


def test_times_of_h5py_and_arrays_of_roles(tmp_path):
    times = np.datetime64("2024-01-01", "s") + np.arange(N)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t_train"], file["t_test"] = [one.astype(h5py.opaque_dtype(one.dtype)) for one in (times, times[:3])]
    same(read(tmp_path / "a.h5"), {"t": times})
    same(read(tmp_path / "a.h5", role="test"), {"t": times[:3]})


def test_text_of_a_fixed_length_is_utf8_whatever_the_file_says(tmp_path):
    """H5py makes a data set of an array of bytes, and calls it ASCII."""
    texts = ["né", "ß", "", "plain"]
    as_bytes = np.array([text.encode() for text in texts])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"], file["u"] = as_bytes, as_bytes.astype(h5py.string_dtype("utf-8", 8))
        file["v"], file["m"] = texts, as_bytes.reshape(4, 1).repeat(2, 1)
        file["r"] = np.array([(one,) for one in as_bytes], [("t", "S8")])
    truth = dict.fromkeys(("r.t", "t", "u", "v"), np.array(texts))
    same(read(tmp_path / "a.h5"), {"m": np.array(texts).reshape(4, 1).repeat(2, 1), **truth})
    for name in truth:
        reader = read(tmp_path / "a.h5", target=name)
        assert reader.classes[name] == ["né", "plain", "ß"]
        assert reader.read(np.array([0, 1, 3]))[name].tolist() == [0, 2, 1]
        with pytest.raises(DataError, match=f"sample 2 .*'{name}' names a class, and is missing"):
            reader.read(np.arange(4))


@pytest.mark.parametrize("name", ["t", "v", "r.t", "m"])
def test_bytes_that_are_no_text_are_named(tmp_path, name):
    as_bytes = np.array([b"ok", b"\xc3\xa9", b"\xff\xfe", b"ok"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["t"], file["m"] = np.arange(4), as_bytes, as_bytes.reshape(4, 1).repeat(3, 1)
        file["r"] = np.array([(one,) for one in as_bytes], [("t", "S8")])
        file.create_dataset("v", (4,), h5py.string_dtype())[:] = as_bytes.tolist()
    reader = read(tmp_path / "a.h5", fields=["x", name])
    assert reader.read(np.array([1, 3]))["x"].tolist() == [1, 3]
    with pytest.raises(DataError, match=rf"sample 2 of .*index 2.*'{name}' must be text in UTF-8, got b'.xff.xfe'"):
        reader.read(np.arange(4))
    with pytest.raises(DataError, match=rf"a.h5, index 2: '{name}' must be text in UTF-8"):
        read(tmp_path / "a.h5", target=name)


def test_links_to_nothing_and_in_a_circle_are_left_out_with_the_reason(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["again"] = np.arange(3), h5py.SoftLink("/x")
        file["gone"], file["round"], file["g/root"] = h5py.SoftLink("/nowhere"), h5py.SoftLink("/round"), file
    reader = read(tmp_path / "a.h5")
    same(reader, {"again": np.arange(3), "x": np.arange(3)})
    assert "is a link to nothing" in reader.left_out["gone"]
    assert "cannot be opened" in reader.left_out["round"]


@pytest.mark.parametrize("options", [{}, {"chunks": (1, 2)}])
def test_a_data_set_whose_samples_are_empty(tmp_path, options):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3, 0), "f4", maxshape=(None, None), **(options or {"chunks": True}))
        file["y"] = np.zeros((3, 0, 2), np.int16)
    same(read(tmp_path / "a.h5"), {"x": np.zeros((3, 0), np.float32), "y": np.zeros((3, 0, 2), np.int16)})


def test_fields_that_are_not_asked_for_are_not_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["t"] = np.arange(3), np.array([b"a", b"\xff", b"b"])
        ragged = file.create_dataset("r", (3,), h5py.vlen_dtype(np.int16))
        ragged[1] = np.arange(2)
    reader = read(tmp_path / "a.h5", fields=["x", "r_length"])
    same(reader, {"x": np.arange(3), "r_length": np.array([0, 2, 0])})


def test_rows_of_several_files_in_any_order(tmp_path):
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["t"] = np.arange(4) + 10 * number, [f"{number}{i}" for i in range(4)]
    reader = read(str(tmp_path / "*.h5"))
    ids = np.array([11, 0, 5, 5, 3, 8, 0])
    wanted = np.array([23, 0, 11, 11, 3, 20, 0])
    assert reader.read(ids)["x"].tolist() == wanted.tolist()
    assert reader.read(ids)["t"].tolist() == [f"{n // 10}{n % 10}" for n in wanted]


def test_numbers_in_texts_do_not_become_classes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["price"] = ["1.5", "2.5", "ERR"]
        file["digit"] = ["1", "0", "1"]
    with pytest.raises(DataError, match=r"'price': 'ERR' is no number, and 2 of 3 cells are: save numbers as numbers"):
        read(tmp_path / "a.h5", target="price")
    assert read(tmp_path / "a.h5", target="digit").classes == {"digit": ["0", "1"]}


@pytest.mark.parametrize(
    "key", ["_FillValue", "missing_value", "scale_factor", "add_offset", "valid_range", "_Unsigned"]
)
def test_attributes_of_compound_data_sets_that_would_change_numbers_are_refused(tmp_path, key):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["r"] = np.array([(1, 2.5), (3, 4.5)], [("a", "i2"), ("b", "f4")])
        file["r"].attrs[key] = "true" if key == "_Unsigned" else 2.0
        file["r"].attrs["units"] = "m"
        file["x"] = [1.0, 2.0]
    with pytest.raises(
        DataError, match=f"a.h5: 'r' has parts of a compound type, .* got '{key}': mask_and_scale=False"
    ):
        read(tmp_path / "a.h5")
    same(read(tmp_path / "a.h5", key=["x"]), {"x": np.array([1.0, 2.0])})
    stored = {"r.a": np.array([1, 3], np.int16), "r.b": np.array([2.5, 4.5], np.float32), "x": np.array([1.0, 2.0])}
    same(read(tmp_path / "a.h5", mask_and_scale=False), stored)
