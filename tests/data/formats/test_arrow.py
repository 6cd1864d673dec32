"""Arrow files and streams, Feather files, written by pyarrow."""

import pickle  # as readers are sent to worker processes

import numpy as np
import pyarrow as pa
import pytest
from data.files import refusal, same
from pyarrow import feather

from descend.data import read

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
