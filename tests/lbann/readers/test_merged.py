import numpy as np

from tests.lbann.readers.opening import everything, opened, refusal

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3))
NONE = {"disable_labels": True, "disable_responses": True}


def test_samples_of_several_files(tmp_path):
    for name, array, labels in (("p0", A, [0, 1, 0, 1, 0]), ("p1", B, [2, 2, 0, 1])):
        np.save(tmp_path / f"{name}.npy", np.column_stack((array, labels)))
    reader = opened("merge_samples", tmp_path, data_file_pattern="p*.npy", format="npy")
    found = everything(reader)
    np.testing.assert_array_equal(found["samples"], np.concatenate([A, B]).astype(np.float32))
    np.testing.assert_array_equal(found["labels"].argmax(1), [0, 1, 0, 1, 0, 2, 2, 0, 1])
    np.testing.assert_array_equal(reader.read(np.array([6, 0]))["samples"], np.stack([B[1], A[0]]).astype(np.float32))
    one = opened("merge_samples", tmp_path, data_file_pattern="p*.npy", format="npy", max_files_to_load=1)
    assert len(one) == 5
    whole = opened("merge_samples", tmp_path, data_file_pattern=str(tmp_path / "p*.npy"), format="npy")
    np.testing.assert_array_equal(everything(whole)["samples"], found["samples"])
    np.save(tmp_path / "p2.npy", np.zeros((2, 9)))
    assert "'samples' is (3,) of float32 in one and (8,)" in refusal(
        "merge_samples", tmp_path, data_file_pattern="p*.npy", format="npy"
    )


def test_features_of_several_files(tmp_path):
    np.savetxt(tmp_path / "f0.csv", A, delimiter=";", header="a;b;c", comments="")
    np.savetxt(tmp_path / "f1.csv", A[:, :2] * 2, delimiter=";", header="d;e", comments="")
    np.savetxt(
        tmp_path / "labels.csv", [[7, 0], [7, 1], [7, 2], [7, 0], [7, 1]], delimiter=";", header="x;y", comments=""
    )
    fields = {"data_file_pattern": "f*.csv", "format": "csv", "separator": ";", "has_header": True}
    found = everything(opened("merge_features", tmp_path, **fields, label_filename="labels.csv", label_col=1))
    np.testing.assert_allclose(found["samples"], np.column_stack((A, A[:, :2] * 2)), rtol=1e-6)
    np.testing.assert_array_equal(found["labels"].argmax(1), [0, 1, 2, 0, 1])
    reader = opened("merge_features", tmp_path, **fields)
    assert reader.fields["samples"].pieces == (3, 2)
    assert set(everything(reader)) == {"samples"}
    np.savetxt(tmp_path / "f2.csv", B, delimiter=";", header="a;b;c", comments="")
    assert "equally many samples, got 5, 5, 4" in refusal("merge_features", tmp_path, **fields)


def test_what_is_wrong(tmp_path):
    assert "format must be one of csv, npy" in refusal("merge_samples", tmp_path, data_file_pattern="*", format="cvs")
    assert "data_file_pattern is not set" in refusal("merge_samples", tmp_path, format="csv")
    assert "matches data_file_pattern 'x*'" in refusal("merge_samples", tmp_path, data_file_pattern="x*", format="csv")
    unused = {"data_file_pattern": "x*", "format": "npy", "has_header": True}
    assert "has_header is set" in refusal("merge_samples", tmp_path, **unused)
