"""csv, numpy and npz files that NumPy wrote, read by LBANN's names for their readers."""

import numpy as np
import pytest

from tests.lbann.readers.opening import everything, opened, refusal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).round(3)
LABELS = np.arange(12) % 3
Y = RNG.normal(size=12).round(3)


def write_csv(path, columns, header=None, separator=",", before=()):
    rows = [separator.join(f"{value:g}" for value in row) for row in np.column_stack(columns)]
    lines = [*before, *([separator.join(header)] if header else []), *rows]
    path.write_text("\n".join(lines) + "\n")


def one_hot(labels, width):
    return np.eye(width, dtype=np.float32)[labels]


def test_csv_with_the_label_in_the_last_column(tmp_path):
    write_csv(tmp_path / "t.csv", (X, LABELS), header="abcde")
    found = everything(opened("csv", tmp_path, data_filename="t.csv", has_header=True))
    np.testing.assert_array_equal(found["samples"], X.astype(np.float32))
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 3))
    assert set(found) == {"samples", "labels"}


def test_csv_takes_the_columns_that_are_named(tmp_path):
    """LBANN overwrites label_col by the last column."""
    write_csv(tmp_path / "t.csv", (X[:, :2], LABELS, X[:, 2:], Y), separator=";", before=["# a", "# b"])
    fields = {"data_filename": "t.csv", "separator": ";", "skip_rows": 2, "label_col": 2, "response_col": 5}
    found = everything(opened("csv", tmp_path, **fields))
    np.testing.assert_array_equal(found["samples"], X.astype(np.float32))
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 3))
    np.testing.assert_array_equal(found["responses"], Y.astype(np.float32)[:, None])
    without = everything(opened("csv", tmp_path, **fields, disable_labels=True, disable_responses=True))
    assert set(without) == {"samples"}
    assert without["samples"].shape == (12, 6)


def test_csv_responses_are_off_where_they_are_disabled(tmp_path):
    """LBANN turns them on then."""
    write_csv(tmp_path / "t.csv", (X, Y))
    on = everything(opened("csv", tmp_path, data_filename="t.csv", disable_labels=True))
    np.testing.assert_array_equal(on["responses"][:, 0], Y.astype(np.float32))
    off = opened("csv", tmp_path, data_filename="t.csv", disable_labels=True, disable_responses=True)
    assert set(off.fields) == {"samples"}


def test_csv_counts_labels_and_not_samples(tmp_path):
    """LBANN takes the number of samples."""
    write_csv(tmp_path / "t.csv", (LABELS, X))
    reader = opened("csv", tmp_path, data_filename="t.csv", label_col=-5)
    assert reader.fields["labels"].shape == (3,)
    assert opened("csv", tmp_path, data_filename="t.csv", label_col=-5, num_labels=7).fields["labels"].shape == (7,)


def test_csv_skips_columns(tmp_path):
    write_csv(tmp_path / "t.csv", (X, LABELS))
    found = everything(opened("csv", tmp_path, data_filename="t.csv", skip_cols=3))
    np.testing.assert_array_equal(found["samples"], X[:, 3:].astype(np.float32))


@pytest.mark.parametrize(
    ("text", "fields", "words"),
    [
        ("1,2\n3,x\n", {}, "not a table of numbers: could not convert string 'x'"),
        ("1,2\n3\n", {}, "not a table of numbers"),
        ("a,b\n", {"has_header": True}, "no rows after the 1"),
        ("1,2\n3,4.5\n", {}, "sample 1 has the label 4.5"),
        ("1,2\n3,9\n", {"num_labels": 5}, "sample 1 has the label 9, and labels are integers from 0 to 4"),
        ("1,2\n", {"label_col": 2}, "has 2 columns, and label_col is 2"),
        ("1,2\n", {"response_col": 1}, "column 1 is the label and the response"),
        ("1,2\n", {"skip_cols": 1}, "none is left for the samples"),
        ("1,2\n", {"separator": ";;"}, "separator must be one character"),
        ("1,2\n", {"data_filename": "u.csv"}, "there is no file"),
        ("1,2\n", {"data_filename": ""}, "data_filename is not set"),
    ],
)
def test_csv_that_is_wrong(tmp_path, text, fields, words):
    (tmp_path / "t.csv").write_text(text)
    assert words in refusal("csv", tmp_path, **{"data_filename": "t.csv", **fields})


def test_numpy(tmp_path):
    np.save(tmp_path / "a.npy", np.column_stack((X, LABELS)))
    found = everything(opened("numpy", tmp_path, data_filename="a.npy"))
    np.testing.assert_array_equal(found["samples"], X.astype(np.float32))  # LBANN is one column off
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 3))
    responses = everything(opened("numpy", tmp_path, data_filename="a.npy", disable_labels=True))
    np.testing.assert_array_equal(responses["responses"][:, 0], LABELS.astype(np.float32))
    none = {"disable_labels": True, "disable_responses": True}
    assert opened("numpy", tmp_path, data_filename="a.npy", **none).fields["samples"].shape == (5,)
    np.save(tmp_path / "b.npy", np.zeros((2, 3, 4)))
    assert "the last column of an array of two dimensions" in refusal("numpy", tmp_path, data_filename="b.npy")
    assert opened("numpy", tmp_path, data_filename="b.npy", **none).fields["samples"].shape == (3, 4)


def test_npz(tmp_path):
    data = RNG.integers(-3000, 3000, (12, 2, 3)).astype(np.int16)
    np.savez(tmp_path / "a.npz", data=data, labels=LABELS, responses=X)
    fields = {"data_filename": "a.npz", "scaling_factor_int16": 0.25, "num_labels": 4}
    found = everything(opened("numpy_npz", tmp_path, **fields))
    np.testing.assert_array_equal(found["samples"], data.astype(np.float32) * 0.25)
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 4))
    np.testing.assert_array_equal(found["responses"], X.astype(np.float32))


def test_npz_that_is_wrong(tmp_path):
    np.savez(tmp_path / "a.npz", data=X, labels=LABELS[:5])
    assert "set disable_responses: true" in refusal("numpy_npz", tmp_path, data_filename="a.npz")
    fields = {"data_filename": "a.npz", "disable_responses": True}
    assert "'data' has 12 samples and 'labels' has 5" in refusal("numpy_npz", tmp_path, **fields)
    scaled = {**fields, "disable_labels": True, "scaling_factor_int16": 2.0}
    assert "'data' of" in refusal("numpy_npz", tmp_path, **scaled)
    (tmp_path / "a.npz").write_text("text")
    assert "is not an .npz file" in refusal("numpy_npz", tmp_path, **fields)


def test_several_npz(tmp_path):
    for part in range(3):
        own = slice(4 * part, 4 * part + 4)
        np.savez(tmp_path / f"{part}.npz", data=X[own], labels=LABELS[own])
    (tmp_path / "list.txt").write_text("0.npz\n1.npz\n2.npz\n")
    fields = {"data_filename": "list.txt", "disable_responses": True}
    found = everything(opened("numpy_npz_conduit_reader", tmp_path, **fields))
    np.testing.assert_array_equal(found["samples"], X.astype(np.float32))
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 3))
    assert len(opened("numpy_npz_conduit_reader", tmp_path, **fields, max_files_to_load=2)) == 8
    (tmp_path / "list.txt").write_text("0.npz\n9.npz\n")
    assert "there is no file" in refusal("numpy_npz_conduit_reader", tmp_path, **fields)
    np.savez(tmp_path / "1.npz", data=X[:, :2], labels=LABELS)
    (tmp_path / "list.txt").write_text("0.npz\n1.npz\n")
    assert "different arrays" in refusal("numpy_npz_conduit_reader", tmp_path, **fields)


def test_a_local_copy_goes_first(tmp_path):
    for name, value in (("original", 1.0), ("local", 2.0)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", np.full((2, 2), value))
    fields = {"data_filename": "a.npy", "disable_labels": True, "disable_responses": True}
    reader = opened("numpy", tmp_path / "original", data_local_filedir=str(tmp_path / "local"), **fields)
    assert (everything(reader)["samples"] == 2).all()


def test_gan_labelling(tmp_path):
    np.save(tmp_path / "a.npy", np.column_stack((X, LABELS)))
    for value in (0, 1):
        reader = opened("numpy", tmp_path, data_filename="a.npy", gan_labelling=True, gan_label_value=value)
        assert reader.fields["labels"].shape == (2,)
        np.testing.assert_array_equal(everything(reader)["labels"], one_hot(np.full(12, value), 2))
    none = {"data_filename": "a.npy", "disable_labels": True, "gan_labelling": True}
    assert "the samples have no labels" in refusal("numpy", tmp_path, **none)


def test_a_mark_of_utf_8_is_no_part_of_a_number_or_a_name(tmp_path):
    write_csv(tmp_path / "t.csv", (X, LABELS))
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text, encoding="utf-8-sig")
    found = everything(opened("csv", tmp_path, data_filename="t.csv"))
    np.testing.assert_array_equal(found["samples"], X.astype(np.float32))
    np.savez(tmp_path / "a.npz", data=X, labels=LABELS)
    (tmp_path / "list").write_text("a.npz\n", encoding="utf-8-sig")
    fields = {"data_filename": "list", "disable_responses": True}
    found = everything(opened("numpy_npz_conduit_reader", tmp_path, **fields))
    np.testing.assert_array_equal(found["labels"], one_hot(LABELS, 3))
