"""HDF5 files that h5py wrote, read by schemas; expected values are computed from the arrays that were written."""

import h5py
import numpy as np
import pytest

from tests.lbann.readers.opening import everything, opened, refusal

RNG = np.random.default_rng(0)
DATA = """
inputs:
  metadata: {pack: datum}
  p0: {metadata: {ordering: 2, scale: 2, bias: -1}}
  p1: {metadata: {ordering: 1}}
outputs:
  scalars: {metadata: {pack: response, coerce: double}}
  image:
    metadata: {dims: [4, 5], channels: 2, scale: [1, 10], bias: [0, 5]}
class: {metadata: {pack: label}}
"""


def sample(number):
    return {
        "inputs/p0": RNG.normal(),
        "inputs/p1": RNG.normal(size=3).astype(np.float32),
        "outputs/scalars": RNG.normal(size=2),
        "outputs/image": RNG.normal(size=(4, 5, 2)).astype(np.float32),
        "class": number % 3,
    }


@pytest.fixture
def folder(tmp_path):
    truth = {}
    for file in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / file, "w") as out:
            for number in range(4):
                values = truth[file, f"id{number}"] = sample(number)
                for path, value in values.items():
                    out[f"id{number}/{path}"] = value
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "list").write_text("CONDUIT_HDF5_EXCLUSION\n5 3 2\n.\nb.h5 2 2 id0 id3\na.h5 3 1 id2\n")
    names = [("b.h5", "id1"), ("b.h5", "id2"), ("a.h5", "id0"), ("a.h5", "id1"), ("a.h5", "id3")]
    return tmp_path, [truth[name] for name in names]


FIELDS = {"data_schema_filename": "data.yaml", "experiment_schema_filename": "experiment.yaml", "sample_list": "list"}


def test_packed_fields(folder):
    path, truth = folder
    (path / "experiment.yaml").write_text("inputs:\noutputs: {scalars: }\nclass:\n")
    reader = opened("hdf5_data_reader", path, **FIELDS, enable_labels=True, enable_responses=True, num_labels=3)
    found = everything(reader)
    assert reader.fields["samples"].pieces == (np.size(truth[0]["inputs/p1"]), np.size(truth[0]["inputs/p0"]))
    assert reader.fields["responses"].pieces == ()
    wanted = [np.append(one["inputs/p1"], 2 * one["inputs/p0"] - 1) for one in truth]
    np.testing.assert_allclose(found["samples"], wanted, rtol=1e-6)
    np.testing.assert_allclose(found["responses"], [one["outputs/scalars"] for one in truth], rtol=1e-6)
    np.testing.assert_array_equal(found["labels"].argmax(1), [one["class"] for one in truth])
    shuffled = reader.read(np.array([4, 0, 4]))
    np.testing.assert_array_equal(shuffled["samples"], found["samples"][[4, 0, 4]])
    fewer = opened("hdf5_data_reader", path, **FIELDS)
    assert set(fewer.fields) == {"samples"}


def test_images_come_with_channels_first(folder):
    path, truth = folder
    (path / "experiment.yaml").write_text("inputs: {p1: }\noutputs: {image: }\n")
    found = everything(opened("hdf5_data_reader", path, **FIELDS))
    images = np.stack([one["outputs/image"] for one in truth])
    np.testing.assert_allclose(found["outputs/image"][:, 0], images[..., 0], rtol=1e-6)
    np.testing.assert_allclose(found["outputs/image"][:, 1], images[..., 1] * 10 + 5, rtol=1e-5)
    np.testing.assert_array_equal(found["samples"], [one["inputs/p1"] for one in truth])


def test_the_experiment_goes_before_the_data(folder):
    path, truth = folder
    text = "inputs:\n  metadata: {scale: 3}\n  p0:\nclass: {metadata: {pack: kind}}\n"
    (path / "experiment.yaml").write_text(text)
    found = everything(opened("hdf5_data_reader", path, **FIELDS))
    np.testing.assert_allclose(found["samples"][:, 0], [3 * one["inputs/p0"] - 1 for one in truth], atol=1e-6)
    np.testing.assert_array_equal(found["kind"][:, 0], [one["class"] for one in truth])


@pytest.mark.parametrize(
    ("experiment", "fields", "words"),
    [
        ("inputs: {p9: }\n", {}, "the data schema has no inputs/p9"),
        ("inputs: {metadata: {pakc: datum}}\n", {}, "'pakc'; did you mean 'pack'?"),
        ("inputs: {metadata: {scale: x}}\n", {}, "must be numbers"),
        ("inputs: {p1: {metadata: {scale: [1, 2]}}}\n", {}, "one number or one for each of 0 channels"),
        ("inputs: {p1: {metadata: {dims: [4]}}}\n", {}, "sample 0 ("),
        ("inputs: {p1: {metadata: {coerce: int}}}\n", {}, "coerce float or double"),
        ("inputs: [p1]\n", {}, "must be a mapping"),
        ("a: [\n", {}, "is not a YAML file"),
        ("- a\n", {}, "must be a mapping"),
        ("inputs: {p1: }\n", {"enable_labels": True}, "no node of"),
        ("inputs: {p1: }\n", {"sample_list": ""}, "sample_list is not set"),
    ],
)
def test_schemas_that_are_wrong(folder, experiment, fields, words):
    path, _ = folder
    (path / "experiment.yaml").write_text(experiment)
    assert words in refusal("hdf5_data_reader", path, **{**FIELDS, **fields})


def test_no_code_is_run(folder):
    path, _ = folder
    (path / "experiment.yaml").write_text("inputs: !!python/object/apply:os.system ['touch ran']\n")
    assert "must be a mapping" in refusal("hdf5_data_reader", path, **FIELDS)


def test_samples_that_differ(folder):
    path, _ = folder
    (path / "experiment.yaml").write_text("inputs: {p1: }\n")
    with h5py.File(path / "a.h5", "a") as file:
        del file["id1/inputs/p1"]
        file["id1/inputs/p1"] = np.zeros(9)
    assert "sample 3 (" in refusal("hdf5_data_reader", path, **FIELDS)


def test_a_sample_without_a_data_set(folder):
    path, _ = folder
    (path / "experiment.yaml").write_text("inputs: {p1: }\n")
    with h5py.File(path / "a.h5", "a") as file:
        del file["id0/inputs/p1"]
    text = refusal("hdf5_data_reader", path, **FIELDS)
    assert "sample 2 (" in text
    assert "'id0') cannot be read" in text
