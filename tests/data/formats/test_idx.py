import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from descend.data.formats.idx import open_idx
from descend.errors import DataError

ARRAYS = {
    "u1": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "i1": np.arange(-4, 4, dtype=np.int8),
    "i2": np.array([[-30000, 1], [2, 30000]], dtype=np.int16),
    "i4": np.array([-(2**31), 2**31 - 1], dtype=np.int32),
    "f4": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 2, 2, 2),
    "f8": np.linspace(-1, 1, 5),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_types_and_ranks(tmp_path, idx_bytes, array, pack):
    path = tmp_path / "file"  # what it is shows in its bytes, not in its name
    path.write_bytes(pack(idx_bytes(array)))
    opened = open_idx(path)
    assert opened.shape == array.shape
    np.testing.assert_array_equal(opened.array(), array)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_no_samples(tmp_path, idx_bytes, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(idx_bytes(np.zeros((0, 28, 28), dtype=np.uint8))))
    assert open_idx(path).array().shape == (0, 28, 28)


def test_several_gzip_members(tmp_path, idx_bytes):
    content = idx_bytes(ARRAYS["u1"])
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content[:20]) + gzip.compress(content[20:]))
    np.testing.assert_array_equal(open_idx(path).array(), ARRAYS["u1"])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_opening_reads_the_header_alone(tmp_path, idx_bytes, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(idx_bytes(np.zeros((4000, 28, 28), dtype=np.uint8))))
    tracemalloc.start()
    open_idx(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 500_000  # the elements have 3 MB


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 9, 15, 16, 17, -1])
def test_a_truncated_plain_file(tmp_path, idx_bytes, keep):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(ARRAYS["u1"])[:keep])
    with pytest.raises(
        DataError, match=r"images is (not an IDX file|truncated)|images ends within its header"
    ) as caught:
        open_idx(path)
    if keep in (16, 17, -1):
        assert "2 x 3 x 4 elements of 1 bytes, which makes 40 bytes, and it has" in str(caught.value)


@pytest.mark.parametrize("keep", [2, 11, 20, 300, -9, -8, -4, -1])
def test_a_truncated_gzip_file_is_found_when_it_is_opened(tmp_path, idx_bytes, keep):
    path = tmp_path / "images.gz"
    noise = np.random.default_rng(0).integers(0, 256, (10, 10, 10)).astype(np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(noise))[:keep])
    with pytest.raises(DataError, match=r"images\.gz"):
        open_idx(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(("change", "word"), [(-5, "truncated"), (5, "longer than its header says")])
def test_content_of_another_length(tmp_path, idx_bytes, pack, change, word):
    content = idx_bytes(ARRAYS["u1"])
    path = tmp_path / "images"
    path.write_bytes(pack(content[:change] if change < 0 else content + bytes(change)))
    with pytest.raises(DataError, match=word) as caught:
        open_idx(path)
    found = "more when decompressed" if pack is gzip.compress and change > 0 else f"{40 + change}"
    assert f"40 bytes, and it has {found}" in str(caught.value)


def test_a_damaged_gzip_file_is_found_when_it_is_read(tmp_path, idx_bytes):
    noise = np.random.default_rng(0).integers(0, 256, (10, 10, 10)).astype(np.uint8)
    content = bytearray(gzip.compress(idx_bytes(noise)))
    content[500] ^= 1
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"images\.gz is damaged or was cut off"):
        open_idx(path).array()


@pytest.mark.parametrize(
    "content", [b"\x89PNG\r\n\x1a\n", b"\0\0\x07\x01\0\0\0\1a", b"\0\0\x08\x00"], ids=["png", "type", "rank"]
)
def test_not_an_idx_file(tmp_path, content):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not an IDX file: it begins with the bytes") as caught:
        open_idx(path)
    assert content[:4].hex(" ") in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        open_idx(tmp_path)


def test_a_compressed_file_whose_header_promises_more_than_the_limit(tmp_path):
    """6 GB of zeros fit into 6 MB: neither the header nor the trailer of such a file may be believed."""
    header = bytes([0, 0, 0x08, 1]) + struct.pack(">I", 3 * 2**30)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(header))
    with pytest.raises(DataError, match=r"promises 3,221,225,480 bytes; at most 1,073,741,824 .* gunzip"):
        open_idx(tmp_path / "bomb.gz")


def test_no_more_is_decompressed_than_the_header_promises(tmp_path):
    """64 MiB of zeros behind 8 bytes, split into members so that the trailer shows the promised size."""
    content = bytes([0, 0, 0x08, 1]) + struct.pack(">I", 8) + bytes(8)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(content + bytes(2**26)) + gzip.compress(content))
    file = open_idx(tmp_path / "bomb.gz")  # the trailer of the last member fits the header
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="16 bytes, and it has more when decompressed"):
            file.array()
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
