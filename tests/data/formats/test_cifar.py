"""CIFAR's binary files, written by their published description."""

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read

RNG = np.random.default_rng(0)


def write(path, count, *classes):
    labels = np.stack([RNG.integers(0, n, count) for n in classes], axis=1).astype(np.uint8)
    images = RNG.integers(0, 256, (count, 3, 32, 32)).astype(np.uint8)
    np.concatenate([labels, images.reshape(count, -1)], axis=1).tofile(path)
    return images, labels.astype(np.int64)


def test_cifar_10(tmp_path):
    first, of_first = write(tmp_path / "data_batch_1.bin", 5, 10)
    second, of_second = write(tmp_path / "data_batch_2.bin", 3, 10)
    held, of_held = write(tmp_path / "test_batch.bin", 4, 10)
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    labels = np.concatenate([of_first, of_second])[:, 0]
    same(read(tmp_path), {"image": np.concatenate([first, second]), "label": labels})
    same(read(tmp_path, role="test"), {"image": held, "label": of_held[:, 0]})
    assert read(tmp_path).pixels == {"image"}
    assert read(tmp_path).source.place(6).endswith("data_batch_2.bin, record 1")


def test_cifar_100(tmp_path):
    images, labels = write(tmp_path / "train.bin", 6, 20, 100)
    same(read(tmp_path / "train.bin"), {"image": images, "coarse_label": labels[:, 0], "label": labels[:, 1]})


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (bytes(3073 * 2 - 1), "not a multiple of 3073"),
        (bytes([11]) + bytes(3072), "labels that are too large"),
        (bytes([3, 200]) + bytes(3072), "labels that are too large"),
    ],
)
def test_damaged_files(tmp_path, content, part):
    (tmp_path / "a.bin").write_bytes(content)
    text = refusal(tmp_path / "a.bin")
    assert part in text
    assert str(tmp_path / "a.bin") in text
