"""Parquet files written by pyarrow."""

import datetime
import io
import json
import pickle  # as readers are sent to worker processes

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import refusal, same
from PIL import Image

from descend.data import read
from descend.data.formats import parquet
from descend.data.formats.parquet import column_chunks
from descend.data.tables import arrow_source
from descend.errors import DataError

N = 50
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
TABLE = pa.table({"x": X, "n": np.arange(N, dtype=np.int16), "text": [f"t{i % 3}" for i in range(N)]})


@pytest.fixture
def file(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=7)
    return tmp_path / "a.parquet"


def test_columns(file):
    same(read(file), {"x": X, "n": np.arange(N, dtype=np.int16), "text": np.array([f"t{i % 3}" for i in range(N)])})
    assert read(file).fields["n"].dtype == np.int16
    assert read(file).source.place(9) == f"{file}, row 9"


def test_only_the_row_group_and_the_columns_of_a_sample_are_read(file, monkeypatch):
    loaded = []
    own = parquet.ParquetFiles.load
    monkeypatch.setattr(
        parquet.ParquetFiles, "load", lambda self, c, names: loaded.append((c.index, *names)) or own(self, c, names)
    )
    reader = read(file, columns=["x"])
    assert loaded == []
    reader.read(np.array([8, 9, 48]))
    assert loaded == [(1, "x"), (6, "x")]
    reader.read(np.array([7]))
    assert len(loaded) == 2


def test_what_is_kept_is_bounded(file, monkeypatch):
    monkeypatch.setattr(arrow_source, "CACHE_BYTES", 3 * 7 * 8)
    reader = read(file, columns=["x"])
    for sample in range(N):
        reader.read(np.array([sample]))
    assert len(reader.source._kept) == 3
    assert {chunk.index for chunk, _ in reader.source._kept} == {5, 6, 7}
    same(reader, {"x": X})


def test_the_first_large_batch_is_taken_without_keeping_and_is_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "x": pa.array([None if i % 11 == 0 else float(i) for i in range(N)]),
            "kind": pa.array([f"k{i % 3}" for i in range(N)]).dictionary_encode(),
            "list": [list(range(i % 4)) for i in range(N)],
            "part": [{"a": i, "b": f"b{i}"} for i in range(N)],
            "text": [f"t{i % 5}" for i in range(N)],
            "t": pa.FixedShapeTensorArray.from_numpy_ndarray(rng.normal(size=(N, 2, 2))),
        }
    )
    (tmp_path / "year=3").mkdir()
    pq.write_table(table, tmp_path / "year=3" / "a.parquet", row_group_size=20, data_page_size=64)
    monkeypatch.setattr(parquet, "_SCANNED_ROWS", 7)
    wanted = np.array([49, 3, 3, 21, 0, 19])
    plain = read(tmp_path, target="kind").read(wanted)
    monkeypatch.setattr(arrow_source, "SCANNED_VALUES", 10)
    reader = read(tmp_path, target="kind")
    first = reader.read(wanted)
    assert not reader.source._kept
    assert first.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_array_equal(first[name], values)
        assert first[name].dtype == values.dtype
    assert reader.read(wanted)["x"].tobytes() == plain["x"].tobytes()
    assert reader.source._kept


def test_several_files(file):
    pq.write_table(TABLE.slice(0, 3), file.with_name("b.parquet"))
    same(read(file.parent, columns=["x"]), {"x": np.concatenate([X, X[:3]])})
    pq.write_table(TABLE.select(["x"]), file.with_name("c.parquet"))
    assert "c.parquet has other columns" in refusal(file.parent)


def test_a_reader_survives_pickling(file):
    reader = read(file, columns=["x"])
    reader.read(np.arange(N))
    same(pickle.loads(pickle.dumps(reader)), {"x": X})


def test_truncated_damaged_and_mislabelled_files(file, tmp_path):
    content = file.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.parquet").write_text("a text, of one line\n")
    for name in ("cut", "text"):
        text = refusal(tmp_path / f"{name}.parquet")
        assert "is not a Parquet file, or was cut off" in text
        assert f"{name}.parquet" in text
    start = pq.ParquetFile(file).metadata.row_group(3).column(0).data_page_offset
    (tmp_path / "page.parquet").write_bytes(content[:start] + b"\xff" * 40 + content[start + 40 :])
    text = refusal(tmp_path / "page.parquet", columns=["x"])
    assert "sample 21 of reader 'parquet' for 'train'" in text
    assert "page.parquet, row 21" in text
    read(tmp_path / "page.parquet", columns=["x"]).read(np.arange(21))  # the others are read


def test_a_promise_of_very_many_rows(file, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_GROUP_ROWS", 6)
    assert "row group 0 promises 7 rows" in refusal(file)


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("missing", [False, True])
def test_images_as_hugging_face_writes_them(tmp_path, missing):
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    rows = [{"bytes": png(i), "path": f"{i}.png"} for i in range(6)]
    rows[3] = None if missing else rows[3]
    table = pa.table({"image": rows, "label": [0, 1] * 3})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    reader = read(tmp_path / "a.parquet")
    assert list(reader.fields) == ["image", "label"]
    assert reader.pixels == {"image"}
    assert reader.classes["label"] == ["cat", "dog"]
    assert reader.read(np.array([5, 0]))["image"][:, 2, 3, 4].tolist() == [5, 0]
    if missing:
        assert "sample 3 of" in refusal(tmp_path / "a.parquet")


def test_lists_of_text_and_tensors(tmp_path):
    tensors = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    table = pa.table(
        {
            "tokens": [["a", "bc"], [], ["d"]],
            "t": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    tokens = np.array([["a", "bc"], ["", ""], ["d", ""]])
    same(
        read(tmp_path / "a.parquet"),
        {"tokens": tokens, "tokens_length": np.array([2, 0, 1]), "t": tensors},
    )


def test_lists_that_are_all_empty(tmp_path):
    pq.write_table(
        pa.table({"x": pa.array([[], [], []], pa.list_(pa.int32())), "y": [1, 2, 3]}), tmp_path / "a.parquet"
    )
    same(read(tmp_path / "a.parquet"), {"x": np.zeros((3, 0), np.int32), "y": [1, 2, 3]})


def test_row_numbers_of_pandas_are_no_field(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.5], "__index_level_0__": [7]}), path)  # as `to_parquet` after a selection of rows
    assert list(read(path).fields) == ["x"]
    assert "row numbers that pandas keeps" in read(path).left_out["__index_level_0__"]
    same(read(path, columns=["__index_level_0__"]), {"__index_level_0__": np.array([7])})


@pytest.mark.parametrize("missing", [pa.null(), pa.binary()])
def test_images_that_are_named_and_not_stored_are_left_out_with_the_reason(tmp_path, missing):
    kind = pa.struct([("bytes", missing), ("path", pa.string())])
    images = pa.array([{"bytes": None, "path": "a.png"}] * 2, kind)
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), tmp_path / "a.parquet")
    reader = read(tmp_path / "a.parquet")
    assert list(reader.fields) == ["label"]
    assert "'image' has no bytes in any row" in reader.left_out["image"]


def test_a_column_whose_first_image_is_no_image_is_one_of_images(tmp_path):
    images = [{"bytes": one, "path": "a.png"} for one in (b"cut", png(3), png(4))]
    pq.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    reader = read(tmp_path / "a.parquet")
    assert reader.read(np.array([2]))["image"].max() == 4
    with pytest.raises(DataError, match="sample 0 of"):
        reader.read(np.array([0]))


# ---- footers of Parquet files, against what pyarrow says of them

SMALL = pa.table(
    {
        "n": pa.array([3, None, -(2**62), 5], pa.int64()),
        "u": pa.array([0, 1, 2**64 - 1, 2], pa.uint64()),
        "f": [0.5, 1.5, float("nan"), -2.0],
        "t": ["a", "a", None, "b"],
        "d": pa.array([datetime.date(2020, 1, 1)] * 4),
        "l": [[1, 2], [], None, [3]],
        "s": [{"a": 1, "b": {"c": "x"}}] * 4,
        "x": pa.array([b"abc"] * 4, pa.binary(3)),
    }
)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 2}, {"use_dictionary": False}, {"write_statistics": False}])
def test_what_pyarrow_says(tmp_path, options):
    pq.write_table(SMALL, tmp_path / "a.parquet", **options)
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    found = column_chunks(tmp_path / "a.parquet")
    assert len(found) == metadata.num_row_groups
    for number, group in enumerate(found):
        assert len(group) == metadata.num_columns
        for place, one in enumerate(group):
            theirs = metadata.row_group(number).column(place)
            assert (one.path, one.type, one.values) == (theirs.path_in_schema, theirs.physical_type, theirs.num_values)
            assert (one.stored_bytes, one.plain_bytes) == (theirs.total_compressed_size, theirs.total_uncompressed_size)
            assert one.has_dictionary == theirs.has_dictionary_page
            assert one.nulls == (None if theirs.statistics is None else theirs.statistics.null_count)


def test_statistics_are_the_least_and_the_largest_value(tmp_path):
    pq.write_table(SMALL, tmp_path / "a.parquet")
    n = column_chunks(tmp_path / "a.parquet")[0][0]
    assert int.from_bytes(n.low, "little", signed=True) == -(2**62)
    assert int.from_bytes(n.high, "little", signed=True) == 5


def test_a_footer_that_contradicts_its_schema_is_an_error(tmp_path):
    """pyarrow's own description of such a column ends the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.arange(20.0)}), path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    damaged = 0
    for place in range(len(content) - 8 - length, len(content) - 8):
        kept = content[place]
        if kept != 0x0A:  # DOUBLE as an integer of Thrift
            continue
        content[place] = 0x04
        path.write_bytes(content)
        content[place] = kept
        try:
            read(path).read(np.arange(20))
        except DataError:
            damaged += 1
    assert damaged
