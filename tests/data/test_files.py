"""`read`, apart from single formats."""

import numpy as np
import pytest
from data.files import refusal, same

import descend.data
from descend.data import FileFormat, file_format, read, register
from descend.data.files import format_of
from descend.data.reader_protocol import Field
from descend.errors import ConfigurationError, DataError

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


@pytest.fixture
def archive(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    return tmp_path / "a.npz"


def test_content_goes_before_the_ending(archive):
    assert format_of(archive.rename(archive.with_name("a.csv"))).name == "npz"


def test_a_tfrecord_is_named(tmp_path):
    """A record of 16 bytes: its length, and TensorFlow's masked CRC-32C of that."""
    path = tmp_path / "train-00000-of-00010"
    path.write_bytes(bytes.fromhex("1000000000000000") + 0x18FEFB95.to_bytes(4, "little") + bytes(20))
    assert "TFRecord" in refusal(path)
    path.write_bytes(bytes.fromhex("1000000000000000") + bytes(24))
    assert "no known format" in refusal(path)


def test_fields_are_chosen_and_renamed(archive):
    same(read(archive, fields=["y"]), {"y": Y})
    same(read(archive, fields={"input": "x", "0": "y"}), {"input": X, "0": Y})


def test_a_mapping_reads_each_field_from_files_of_its_own(archive, tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "t.csv").write_text("label\n" + "a\nb\n" * 3)
    reader = read({"x": tmp_path / "x.npy", "kind": tmp_path / "t.csv"}, target="kind")
    assert reader.read(np.array([1]))["kind"] == [1]
    assert reader.classes == {"kind": ["a", "b"]}
    same(read({"a": archive, "b": tmp_path / "x.npy"}), {"a.x": X, "a.y": Y, "b": X})
    np.save(tmp_path / "short.npy", X[:2])
    assert "'x' 6, 'y' 2" in refusal({"x": tmp_path / "x.npy", "y": tmp_path / "short.npy"})


def test_roles(archive):
    reader = read(archive, role="validate")
    assert (reader.role, reader.shuffle, read(archive).shuffle) == ("validate", False, True)
    assert reader.in_role("train").shuffle


def test_samples_that_do_not_exist(archive):
    for indices, part in (
        ([6], "no sample 6: reader 'npz' for 'train' has 6"),
        ([-1], "sample -1"),
        ([0.5], "integers"),
    ):
        with pytest.raises(DataError, match=part):
            read(archive).read(np.array(indices))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"role": "training"}, "did you mean 'train'"),
        ({"separatr": ","}, "did you mean 'separator'"),
        ({"separator": ","}, "the format 'npz' does not use it"),
        ({"separator": ""}, "separator must be a character"),
        ({"format": "csvv"}, "did you mean 'csv'"),
        ({"length": 0}, "integer >= 1"),
        ({"image_size": (1, 2, 3)}, "image_size must be"),
        ({"columns": "x"}, "list of names or a mapping"),
        ({"header": 1}, "True or False"),
        ({"fields": ["z"]}, "no field 'z'"),
        ({"fields": "x"}, "must be a list of names"),
        ({"fields": []}, "at least one"),
        ({"target": "z"}, "the target 'z' is not a field"),
        ({"target": "y", "fields": ["x"]}, "the target 'y' is not a field"),
    ],
)
def test_wrong_arguments(archive, options, part):
    with pytest.raises(ConfigurationError, match=part):
        read(archive, **options)


def test_files_of_different_formats(archive, tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "readme.md").write_text("about")
    assert "must have one format" in refusal([archive, tmp_path / "x.npy"])
    archive.unlink()
    (tmp_path / "y.npy").write_bytes((tmp_path / "x.npy").read_bytes())
    same(read(tmp_path), {"samples": np.concatenate([X, X])})  # a folder may hold others


def test_files_of_no_format(tmp_path):
    (tmp_path / "a.xyz").write_text("what is it")
    assert "a.xyz is of no known format: it begins with the bytes 77 68 61 74" in refusal(tmp_path / "a.xyz")
    (tmp_path / "a.npy").write_bytes(b"")
    assert "a.npy is empty" in refusal(tmp_path)


class Lengths:
    """The lines of a file as their lengths; a line of three characters cannot be read."""

    def __init__(self, paths, options):
        self.lines = [line for path in paths for line in path.read_text().splitlines()]
        self.fields = {"n": Field((), np.dtype(np.int64))}

    def __len__(self):
        return len(self.lines)

    def read(self, samples):
        found = [len(self.lines[i]) for i in samples]
        if 3 in found:
            raise RuntimeError("a line of three")
        return {"n": np.array(found)}

    def place(self, sample):
        return f"line {sample + 1}"


@pytest.fixture
def lengths(monkeypatch):
    monkeypatch.setattr(file_format, "_ADDED", [])
    return register(FileFormat("lengths", (".len",), Lengths))


def test_a_format_of_one_s_own(tmp_path, lengths):
    (tmp_path / "a.len").write_text("a\nbb\n\n")
    same(descend.data.read(tmp_path / "a.len"), {"n": [1, 2, 0]})
    with pytest.raises(ConfigurationError, match="a file format 'lengths' already"):
        register(lengths)


def test_a_format_of_one_s_own_whose_text_looks_like_a_table(tmp_path, lengths):
    (tmp_path / "a.len").write_text("1.5 2.5\n3.5 4.25\n5.0 6.0\n")
    same(descend.data.read(tmp_path / "a.len"), {"n": [7, 8, 7]})


def test_the_sample_that_cannot_be_read_is_named(tmp_path, lengths):
    (tmp_path / "a.len").write_text("a\nbb\nccc\nd\n")
    text = refusal(tmp_path / "a.len")
    assert text == "sample 2 of reader 'lengths' for 'train' (line 3) cannot be read: a line of three (RuntimeError)"


def test_an_error_of_a_library_names_the_reader(tmp_path, lengths):
    (tmp_path / "a.len").write_bytes(b"\xff")
    assert "reader 'lengths' for 'train'" in refusal(tmp_path / "a.len")
    assert "UnicodeDecodeError" in refusal(tmp_path / "a.len")


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.csv", None)
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(ConfigurationError, match="needs the library pyarrow: pip install pyarrow"):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("begin", "name"), [(b"BZh91AY", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")]
)
def test_other_compressed_files_are_refused_by_name(tmp_path, begin, name):
    (tmp_path / "a").with_suffix("." + name).write_bytes(begin * 10)
    with pytest.raises(DataError, match=f"is compressed by {name}"):
        read(tmp_path / f"a.{name}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("a.csv", b"\n<!DOCTYPE html>\n<html></html>", "is a page of HTML"),
        ("a.csv", b"<html lang='en'>", "is a page of HTML"),
        ("a.xlsx", b"PK\x03\x04" + bytes(100), "is a workbook: save its sheet as CSV"),
        ("a.csv.zip", b"PK\x03\x04" + bytes(100), "is a zip archive: unpack it"),
        ("a.pkl", b"\x80\x05\x95" + bytes(100), "reading them would run code"),
        ("a.mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + b" " * 90, "save(..., '-v7.3'), which is HDF5"),
        ("a.db", b"SQLite format 3\0" + bytes(90), "is a database of SQLite, which is not read"),
        ("a.pt", b"PK\x03\x04" + bytes(100), "save tensors as safetensors"),
    ],
)
def test_files_that_stand_for_data_or_need_another_form(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    text = refusal(tmp_path / name)
    assert words in text
    assert name in text


def test_what_is_skipped_is_said_of_mappings_and_of_readers_as_well(tmp_path):
    for name in "xy":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", Y)
    (tmp_path / "x" / ".hidden").write_text("x")
    reader = read({name: tmp_path / name for name in "xy"})
    assert reader.notes == (f"skipped 1 of 2 files in {tmp_path / 'x'}: 1 hidden (.hidden)",)
    assert read(reader).notes == reader.notes
