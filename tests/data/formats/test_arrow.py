"""Arrow files and streams, Feather files, written by pyarrow."""

import pickle  # as readers are sent to worker processes
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from data.files import refusal, same
from pyarrow import feather

from descend.data import read
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
