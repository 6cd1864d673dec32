"""Decompression against Python's own, and bombs that are refused before they are decompressed."""

import bz2
import gzip
import lzma
import zlib

import numpy as np
import pyarrow as pa
import pytest

from descend.data import expansion
from descend.data.expansion import begin_of, check_expansion, compression_of, opened
from descend.errors import DataError

TEXT = np.random.default_rng(0).integers(97, 123, 300_000).astype(np.uint8).tobytes()


def test_plain_and_compressed_files_of_one_member_or_several(tmp_path):
    path = tmp_path / "a"
    for content in (TEXT, gzip.compress(TEXT), gzip.compress(TEXT[:7]) + gzip.compress(TEXT[7:]) + bytes(512)):
        path.write_bytes(content)
        with opened(path) as file:
            assert file.read(5) == TEXT[:5]
            assert file.read() == TEXT[5:]
    path.write_bytes(gzip.compress(b""))
    with opened(path) as file:
        assert file.read() == b""


def zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


@pytest.mark.parametrize(("compress", "name"), [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (zstd, "zstd")])
def test_other_compressions(tmp_path, monkeypatch, compress, name):
    monkeypatch.setattr(expansion, "WINDOW_BYTES", 2**22)
    path = tmp_path / "a"
    path.write_bytes(compress(TEXT[:7]) + compress(TEXT[7:]))
    assert compression_of(path) == name
    assert begin_of(path, 5) == TEXT[:5]
    with opened(path) as file:
        assert file.read() == TEXT
    path.write_bytes(compress(TEXT)[:-100])
    with pytest.raises((EOFError, OSError)), opened(path) as file:
        file.read()
    path.write_bytes(compress(bytes(2**24)))
    with pytest.raises(DataError, match="expands more than 200 times"):
        opened(path)


def test_damaged_files(tmp_path):
    whole = gzip.compress(TEXT)
    for content, error in ((whole[:-20], EOFError), (whole[:1000] + bytes(500) + whole[1500:], zlib.error)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(error), opened(tmp_path / "a") as file:
            file.read()


def test_a_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(expansion, "WINDOW_BYTES", 2**22)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(DataError, match=r"a\.gz expands more than 200 times: .* gunzip"):
        opened(path)
    path.write_bytes(gzip.compress(TEXT * 10 + bytes(2**24)))  # behind what does not expand
    with opened(path) as file:
        assert file.read(300_000) == TEXT
        with pytest.raises(DataError, match="expands more than 200 times"):
            file.read()
    path.write_bytes(gzip.compress(TEXT * 40))
    with opened(path) as file:
        assert len(file.read()) == 12_000_000


def test_a_content_is_too_large_if_it_is_large_and_much_larger_than_what_is_stored():
    check_expansion("x", 1, expansion.FREE_BYTES, "no")
    check_expansion("x", 10**9, 10**11, "no")
    with pytest.raises(DataError, match=r"x has 100 bytes, which would become 1,000,000,000, .* times as many: do it"):
        check_expansion("x", 100, 10**9, "do it")
