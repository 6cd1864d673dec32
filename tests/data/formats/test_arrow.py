"""Arrow files and streams, Feather files, written by pyarrow."""

import pickle  # as readers are sent to worker processes
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from data.files import refusal, same
from pyarrow import feather

from descend.data import expansion, read
from descend.data.formats.arrow import batch_forms
from descend.errors import DataError

N = 40
X = np.random.default_rng(0).normal(size=(N, 2))
TABLE = pa.table(
    {
        "x": pa.FixedSizeListArray.from_arrays(X.reshape(-1), 2),
        "n": pa.array([f"c{i % 3}" for i in range(N)]).dictionary_encode(),
    }
)


def write(path, kind):
    if kind == "stream":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=9)
    else:
        feather.write_feather(TABLE, path, compression=kind, chunksize=9)


@pytest.mark.parametrize("kind", ["uncompressed", "lz4", "zstd", "stream"])
def test_files_and_streams(tmp_path, kind):
    write(tmp_path / "a.bin", kind)  # known by content, whatever its name
    truth = {"x": X, "n": np.array([f"c{i % 3}" for i in range(N)])}
    reader = read(tmp_path / "a.bin")
    same(reader, truth)
    same(pickle.loads(pickle.dumps(reader)), truth)
    assert reader.source.place(9).endswith("a.bin, row 9")


@pytest.mark.parametrize("kind", ["lz4", "stream"])
def test_damaged_files(tmp_path, kind):
    write(tmp_path / "a.arrow", kind)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[: len(content) // 2])
    text = refusal(tmp_path / "a.arrow")
    assert "cut off" in text
    assert str(tmp_path / "a.arrow") in text
    (tmp_path / "a.arrow").write_bytes(b"FEA1" + content)
    assert "version 1" in refusal(tmp_path / "a.arrow")


def _damaged(path, kind):
    """A column of texts whose third offset lies far behind the last byte."""
    table = pa.table({"t": pa.array(["up", "down", "up", "left"] * 8)})
    new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)
    content = bytearray(path.read_bytes())
    place = content.index(np.array([0, 2, 6, 8], np.int32).tobytes())
    content[place + 8 : place + 12] = np.array([2**30], np.int32).tobytes()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("options", [{}, {"target": "t"}, {"columns": ["t"]}])
def test_offsets_out_of_a_file_are_an_error(tmp_path, kind, options):
    """In a process of its own, which they would end."""
    path = _damaged(tmp_path / "a.arrow", kind)
    program = (
        "import sys, numpy, descend.data, descend.errors\n"
        f"try: descend.data.read({str(path)!r}, **{options!r}).read(numpy.arange(8))\n"
        "except descend.errors.DataError as error: sys.exit('offset' in str(error) or 'Offset' in str(error))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1


def test_a_table_of_a_damaged_file_is_an_error(tmp_path):
    with pa.memory_map(str(_damaged(tmp_path / "a.arrow", "file"))) as file:
        table = pa.ipc.open_file(file).read_all()
        with pytest.raises(DataError, match="the Table is damaged"):
            read(table, target="t")


# ---- what Arrow's messages promise, against files that pyarrow writes

ROWS = 5000
SMALL = pa.table(
    {
        "x": np.zeros(ROWS),
        "text": pa.array(["a longer text"] * ROWS),
        "kind": pa.array(["p", "q"] * (ROWS // 2)).dictionary_encode(),
    }
)


def written(path, opened, compression, table=SMALL):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, opened(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2000)
    return path


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_rows_and_compression(tmp_path, opened, compression):
    found = batch_forms(written(tmp_path / "a.arrow", opened, compression), 3)
    assert found == [(rows, compression is not None) for rows in (2000, 2000, 1000)]
    with pytest.raises(DataError, match="3 batches of rows; at most 2"):
        batch_forms(tmp_path / "a.arrow", 2)


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_bomb_is_refused_and_a_batch_of_few_bytes_is_none(tmp_path, opened, monkeypatch):
    path = written(tmp_path / "a.arrow", opened, "zstd", SMALL.select(["x"]))
    monkeypatch.setattr(expansion, "MAX_EXPANSION", 20)
    batch_forms(path, 3)
    promised = 2000 * 8 if opened is pa.ipc.new_file else ROWS * 8  # all batches of a stream are held
    monkeypatch.setattr(expansion, "FREE_BYTES", promised)
    batch_forms(path, 3)
    monkeypatch.setattr(expansion, "FREE_BYTES", promised - 1)
    with pytest.raises(DataError, match=f"would become {promised:,}, more than 20 times"):
        batch_forms(path, 3)


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_dictionary_counts(tmp_path, opened, monkeypatch):
    texts = pa.array(["t" * 20_000, "u"]).dictionary_encode()
    path = written(tmp_path / "a.arrow", opened, "zstd", pa.table({"kind": texts}))
    monkeypatch.setattr(expansion, "FREE_BYTES", 10_000)
    monkeypatch.setattr(expansion, "MAX_EXPANSION", 20)
    with pytest.raises(DataError, match="would become 20,0"):
        batch_forms(path, 3)


def refusal_of(path):
    """What is said of a file; its name where nothing is, since damage may leave the lengths as they are."""
    try:
        batch_forms(path, 3)
    except DataError as error:
        return str(error)
    return str(path)


def test_any_damage_is_an_error_of_ours(tmp_path):
    path = tmp_path / "a.arrow"
    for opened in (pa.ipc.new_file, pa.ipc.new_stream):
        whole = written(path, opened, "zstd").read_bytes()
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(whole), 200).tolist():
            hurt = bytearray(whole)
            hurt[place : place + 4] = rng.bytes(4)
            path.write_bytes(hurt[: rng.integers(1, len(hurt))] if place % 4 == 0 else hurt)
            assert str(path) in refusal_of(path)


def test_numbers_are_within_the_file(tmp_path):
    path = written(tmp_path / "a.arrow", pa.ipc.new_stream, None)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=r"names the byte \d+, and the file has 20"):
        batch_forms(path, 3)
