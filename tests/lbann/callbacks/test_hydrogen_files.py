import struct

import numpy as np
import pytest
import torch

from descend.errors import StorageError
from descend.lbann.callbacks.hydrogen_files import as_matrix, find_weights, read_binary, write_binary, write_text

MATRIX = np.array([[1.5, 2.0, -3.25], [4.0, 1e-30, 0.1]], dtype=np.float32)


def test_binary_is_two_integers_and_columns(tmp_path):
    write_binary(tmp_path / "w.bin", MATRIX)
    expected = struct.pack("<ii6f", 2, 3, 1.5, 4.0, 2.0, 1e-30, -3.25, 0.1)
    assert (tmp_path / "w.bin").read_bytes() == expected


@pytest.mark.parametrize("integers", ["<ii6f", "<qq6f"])
def test_binary_is_read_with_integers_of_both_sizes(tmp_path, integers):
    (tmp_path / "w.bin").write_bytes(struct.pack(integers, 2, 3, 1.5, 4.0, 2.0, 1e-30, -3.25, 0.1))
    np.testing.assert_array_equal(read_binary(tmp_path / "w.bin", np.dtype(np.float32)), MATRIX)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, struct.pack("<ii5f", 2, 3, 1, 2, 3, 4, 5)])
def test_a_file_of_another_length_is_refused(tmp_path, content):
    (tmp_path / "w.bin").write_bytes(content)
    with pytest.raises(StorageError, match=r"w\.bin"):
        read_binary(tmp_path / "w.bin", np.dtype(np.float32))
    with pytest.raises(StorageError, match="cannot read"):
        read_binary(tmp_path / "none.bin", np.dtype(np.float32))


def test_text_gives_the_same_numbers_back(tmp_path):
    write_text(tmp_path / "w.txt", MATRIX)
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "w.txt", dtype=np.float32), MATRIX)
    assert len((tmp_path / "w.txt").read_text().splitlines()) == 2


def test_what_is_no_matrix_is_one_column_in_row_major_order():
    kernel = torch.arange(8.0).reshape(2, 1, 2, 2)
    np.testing.assert_array_equal(as_matrix(kernel, False), np.arange(8.0)[:, None])


def test_files_are_found_by_the_name_of_the_weights(tmp_path):
    for name in ("model_weights_fc1_bias_3x1.bin", "model_weights_a_2x2_b_10x20.bin", "notes.bin", "model.prototext"):
        (tmp_path / name).touch()
    assert set(find_weights(tmp_path)) == {"fc1_bias", "a_2x2_b"}
