import numpy as np
import pytest

from tests.lbann.readers.opening import everything, opened, refusal

RNG = np.random.default_rng(0)


@pytest.fixture
def batches(tmp_path):
    """Files of 3 images each, as CIFAR-10's page describes them."""
    truth = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels, images = RNG.integers(0, 10, 3), RNG.integers(0, 256, (3, 3, 32, 32))
        records = np.concatenate([labels[:, None], images.reshape(3, -1)], axis=1)
        (tmp_path / f"{name}.bin").write_bytes(records.astype(np.uint8).tobytes())
        truth[name] = (labels, images)
    return tmp_path, truth


def test_the_five_batches_are_for_training(batches):
    folder, truth = batches
    reader = opened("cifar10", folder)
    found = everything(reader)
    assert len(reader) == 15
    wanted = np.concatenate([truth[f"data_batch_{i}"][1] for i in range(1, 6)])
    np.testing.assert_array_equal(found["samples"], wanted.astype(np.float32))
    labels = np.concatenate([truth[f"data_batch_{i}"][0] for i in range(1, 6)])
    np.testing.assert_array_equal(found["labels"].argmax(1), labels)
    assert found["samples"].dtype == np.float32
    assert len(opened("cifar10", folder, max_files_to_load=2)) == 6


def test_the_test_batch(batches):
    folder, truth = batches
    np.testing.assert_array_equal(everything(opened("cifar10", folder, "test"))["samples"], truth["test_batch"][1])


def test_what_is_missing(batches):
    folder, _ = batches
    assert "validation_fraction" in refusal("cifar10", folder, role="validate")
    (folder / "data_batch_3.bin").unlink()
    assert "data_batch_3.bin" in refusal("cifar10", folder)
    (folder / "test_batch.bin").write_bytes(b"\0" * 100)
    assert "not a multiple of" in refusal("cifar10", folder, role="test")
