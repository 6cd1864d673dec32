""""""

import gzip

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

from descend.data import DataReader, Reader, open_readers
from descend.data.transforms import Pad, SampleNormalize, Scale
from descend.errors import ConfigurationError, DataError


def opened(folder, role="train", **fields):
    return open_readers(DataReader([Reader(name="mnist", role=role, data_filedir=str(folder), **fields)]))[role]


@pytest.mark.parametrize(("role", "ending", "n"), [("train", ".gz", 20), ("test", "", 8)])
def test_mnist(mnist_folder, role, ending, n):
    """Pixels are the bytes themselves as floats, labels are one-hot, files are those of MNIST by default."""
    reader = opened(mnist_folder, role)
    prefix = {"train": "train", "test": "t10k"}[role]
    path = mnist_folder / f"{prefix}-images-idx3-ubyte{ending}"
    content = gzip.decompress(path.read_bytes()) if ending else path.read_bytes()
    pixels = np.frombuffer(content[16:], np.uint8).reshape(n, 1, 4, 3)

    assert len(reader) == n
    assert reader.fields["samples"].shape == (1, 4, 3)
    assert reader.fields["labels"].shape == (10,)
    wanted = np.array([7, 0, 7, 3])
    batch = reader.read(wanted)
    assert batch["samples"].dtype == batch["labels"].dtype == np.float32
    np.testing.assert_array_equal(batch["samples"], pixels[wanted])
    np.testing.assert_array_equal(batch["labels"], np.eye(10)[wanted % 10])
    assert batch["samples"].max() > 1


def test_no_indices(mnist_folder):
    batch = opened(mnist_folder).read(np.zeros(0, dtype=np.int64))
    assert batch["samples"].shape == (0, 1, 4, 3)
    assert batch["labels"].shape == (0, 10)


@pytest.mark.parametrize(
    ("stored", "shape"), [((6,), (1,)), ((6, 5), (5,)), ((6, 4, 3), (1, 4, 3)), ((6, 3, 4, 2), (3, 4, 2))]
)
def test_ranks_and_types(tmp_path, write_idx, stored, shape):
    values = np.linspace(-1, 1, np.prod(stored)).reshape(stored)
    write_idx(tmp_path / "x", values)
    write_idx(tmp_path / "y", np.array([2, 0, 1, 2, 1, 0], dtype=np.int32))
    reader = opened(tmp_path, data_filename="x", label_filename="y", num_labels=3)
    assert reader.fields["samples"].shape == shape
    batch = reader.read(np.arange(6))
    np.testing.assert_array_equal(batch["samples"], values.astype(np.float32).reshape(6, *shape))
    assert batch["labels"].shape == (6, 3)


def message(call, *args, **kwargs) -> str:
    with pytest.raises(DataError) as caught:
        call(*args, **kwargs)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_label_out_of_range(mnist_folder, write_idx):
    path = write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.array([3] * 17 + [11, 0, 12], dtype=np.uint8))
    text = message(opened, mnist_folder)
    for part in (str(path), "sample 17 has label 11", "from 0 to 9", "2 of 20"):
        assert part in text


def test_negative_label(mnist_folder, write_idx):
    write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.array([3] * 19 + [-1], dtype=np.int8))
    assert "sample 19 has label -1" in message(opened, mnist_folder)


def test_labels_that_are_no_integers(mnist_folder, write_idx):
    write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.zeros(20, dtype=np.float32))
    assert "1 dimensions of >f4" in message(opened, mnist_folder)


def test_counts_that_differ(mnist_folder, write_idx):
    write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.zeros(19, dtype=np.uint8))
    text = message(opened, mnist_folder)
    assert "20 images" in text
    assert "19 labels" in text


def test_empty(mnist_folder, write_idx):
    for name, shape in (("images-idx3", (0, 4, 3)), ("labels-idx1", (0,))):
        write_idx(mnist_folder / f"t10k-{name}-ubyte", np.zeros(shape, dtype=np.uint8))
    assert "reader 'mnist' (test): the data set is empty" in message(opened, mnist_folder, "test")


def test_missing_file(mnist_folder):
    (mnist_folder / "t10k-images-idx3-ubyte").unlink()
    text = message(opened, mnist_folder, "test")
    for part in ("t10k-images-idx3-ubyte and", "t10k-images-idx3-ubyte.gz", str(mnist_folder), "data_filedir"):
        assert part in text


def test_missing_folder(tmp_path):
    assert "which does not exist" in message(opened, tmp_path / "nowhere")


def test_no_default_file_for_validation(mnist_folder):
    assert "data_filename and label_filename have no default" in message(opened, mnist_folder, "validate")


def test_truncated_file_is_found_before_a_sample_is_read(mnist_folder):
    for role, path in (("test", "t10k-images-idx3-ubyte"), ("train", "train-images-idx3-ubyte.gz")):
        content = (mnist_folder / path).read_bytes()
        (mnist_folder / path).write_bytes(content[: len(content) // 2])
        assert path in message(opened, mnist_folder, role)


ROLES = ("train", "validate", "test")


def test_digits_are_those_of_scikit_learn():
    """Every sample once, in one of the three parts, with the pixels and the label that it has there."""
    truth = load_digits()
    readers = open_readers(DataReader([Reader(name="digits", role=role) for role in ROLES]))
    assert {role: len(reader) for role, reader in readers.items()} == {"train": 1201, "validate": 300, "test": 296}

    expected = {role: [] for role in ROLES}
    seen = dict.fromkeys(range(10), 0)
    for sample, label in enumerate(truth.target):  # the rule of digits/LICENCE.md
        expected[{2: "validate", 5: "test"}.get(seen[label] % 6, "train")].append(sample)
        seen[label] += 1
    for role, reader in readers.items():
        batch = reader.read(np.arange(len(reader)))
        np.testing.assert_array_equal(batch["samples"][:, 0], truth.images[expected[role]])
        np.testing.assert_array_equal(batch["labels"].argmax(1), truth.target[expected[role]])
        assert (batch["labels"].sum(1) == 1).all()
        counts = batch["labels"].sum(0)
        assert counts.max() - counts.min() <= (7 if role == "train" else 2)


def test_digits_have_no_tournament_part():
    with pytest.raises(DataError, match="roles train, validate and test"):
        open_readers(DataReader([Reader(name="digits", role="tournament")]))


def synthetic(seed=0, role="train", **fields):
    description = Reader(name="synthetic", role=role, num_samples=500, **fields)
    return open_readers(DataReader([description]), seed)[role]


def test_fields():
    reader = synthetic(synth_dimensions="3 4 5", num_labels=7, synth_response_dimensions="2")
    batch = reader.read(np.arange(500))
    assert len(reader) == 500
    assert {name: values.shape for name, values in batch.items()} == {
        "samples": (500, 3, 4, 5),
        "labels": (500, 7),
        "responses": (500, 2),
    }
    assert {name: (500, *field.shape) for name, field in reader.fields.items()} == {
        n: v.shape for n, v in batch.items()
    }
    assert stats.kstest(batch["samples"].ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(batch["responses"].ravel(), "norm").pvalue > 1e-3
    assert stats.chisquare(batch["labels"].sum(0)).pvalue > 1e-3
    assert (batch["labels"].sum(1) == 1).all()


def test_a_sample_is_a_function_of_seed_role_and_number():
    some = np.array([4, 2])
    reader = synthetic(synth_dimensions="6")
    values = reader.read(some)["samples"]
    np.testing.assert_array_equal(values, reader.read(np.arange(5), epoch=3)["samples"][some])
    np.testing.assert_array_equal(values, synthetic(synth_dimensions="6").read(some)["samples"])
    assert (values != synthetic(seed=1, synth_dimensions="6").read(some)["samples"]).all()
    assert (values != synthetic(role="test", synth_dimensions="6").read(some)["samples"]).all()


@pytest.mark.parametrize("text", ["", "3 x 4", "0 4", "-1", "2.5"])
def test_shape_that_is_none(text):
    with pytest.raises(ConfigurationError, match=f"synth_dimensions must be sizes >= 1 .*, got '{text}'"):
        synthetic(synth_dimensions=text)


def test_opening_allocates_nothing_of_the_size_of_a_sample():
    """A check opens the readers: 100000 x 100000 numbers in float32 would take 37 GiB."""
    transforms = [Scale(0.5), Pad(1), SampleNormalize()]
    reader = synthetic(synth_dimensions="1 100000 100000", transforms=transforms)
    assert reader.fields["samples"].shape == (1, 100002, 100002)
