"""What Arrow's messages promise, against files that pyarrow writes."""

import numpy as np
import pyarrow as pa
import pytest

from descend.data import expansion
from descend.data.tables.arrow_messages import batch_forms
from descend.errors import DataError

ROWS = 5000
TABLE = pa.table(
    {
        "x": np.zeros(ROWS),
        "text": pa.array(["a longer text"] * ROWS),
        "kind": pa.array(["p", "q"] * (ROWS // 2)).dictionary_encode(),
    }
)


def written(path, opened, compression, table=TABLE):
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
    path = written(tmp_path / "a.arrow", opened, "zstd", TABLE.select(["x"]))
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
