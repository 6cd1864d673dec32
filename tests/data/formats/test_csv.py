"""Tables of text, written by Python's csv module."""

import bz2
import csv
import gzip
import lzma

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.formats.csv import first_row
from descend.data.tables import text as text_tables
from descend.errors import ConfigurationError, DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=30)
TEXT = np.array([f'a "quoted", one\nof {i % 3} lines' for i in range(30)])


def write(path, names=("x", "n", "text"), delimiter=",", opening=open):
    with opening(path, "wt", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        if names:
            writer.writerow(names)
        writer.writerows(zip(X.tolist(), range(30), TEXT.tolist(), strict=True))
    return path


TRUTH = {"x": X, "n": np.arange(30), "text": TEXT}


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", "|")])
def test_separators_are_seen(tmp_path, name, delimiter):
    same(read(write(tmp_path / name, delimiter=delimiter)), TRUTH)


def test_compressed(tmp_path):
    same(read(write(tmp_path / "a.csv.gz", opening=gzip.open)), TRUTH)


def test_without_names(tmp_path):
    same(read(write(tmp_path / "a.csv", names=())), {"0": X, "1": np.arange(30), "2": TEXT})
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    same(read(tmp_path / "b.csv", header=True), {"1": [3], "2": [4]})
    (tmp_path / "c.csv").write_text("a,b\nc,d\n")
    same(read(tmp_path / "c.csv", header=False), {"0": ["a", "c"], "1": ["b", "d"]})


def test_missing_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,x\n,,\n3,4,NA\n")
    found = read(tmp_path / "a.csv").read(np.arange(3))
    np.testing.assert_array_equal(found["a"], [1, np.nan, 3])
    assert found["c"].tolist() == ["x", "", "NA"]


def test_classes(tmp_path):
    (tmp_path / "a.csv").write_text("x,kind\n1,dog\n2,cat\n3,dog\n")
    reader = read(tmp_path / "a.csv", label="kind")
    assert reader.read(np.arange(3))["kind"].tolist() == [1, 0, 1]
    assert reader.classes == {"kind": ["cat", "dog"]}
    assert reader.target == ("kind",)
    given = read(tmp_path / "a.csv", label="kind", classes=["dog", "eel", "cat"])
    assert given.read(np.arange(3))["kind"].tolist() == [0, 2, 0]
    text = refusal(tmp_path / "a.csv", label="kind", classes=["cat"])
    assert "sample 0 of reader 'csv'" in text
    assert "'dog' in 'kind' is none of its classes: cat" in text


def test_several_files_have_one_type_for_a_column(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n0.5,3\n")
    same(read(tmp_path), {"x": [1.0, 0.5], "y": [2, 3]})
    (tmp_path / "c.csv").write_text("x,z\n0.5,3\n")
    assert "c.csv has other columns than" in refusal(tmp_path)


def test_columns_are_joined(tmp_path):
    write(tmp_path / "a.csv")
    truth = {"features": np.stack([np.arange(30), X], axis=1), "s": TEXT}
    same(read(tmp_path / "a.csv", columns={"features": ["n", "x"], "s": "text"}), truth)


def test_a_large_file_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 100)
    monkeypatch.setattr("descend.data.formats.csv.IN_MEMORY_BYTES", 100)
    reader = read(write(tmp_path / "a.csv"))
    same(reader, TRUTH)
    folder = reader.source._files._folder
    assert [path.suffix for path in folder.iterdir()] == [".arrow"]
    del reader
    assert not folder.exists()


def test_damaged_files(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n" + "1,2,3\n" * 5 + "4,5\n")
    text = refusal(path)
    assert "Row #7: Expected 3 columns, got 2" in text
    assert f"reader 'csv' for 'train': {path}" in text
    path.write_text(",".join(f"c{i}" for i in range(10**6)) + "\n")
    assert "1,000,000 columns; at most 65,536" in refusal(path)
    path.write_bytes(b"x" * (text_tables.BLOCK_BYTES + 2))
    assert "the first row is longer than" in refusal(path)
    path.write_bytes(b"\x01\x02\0\0\n")
    assert "no table of text" in refusal(path)
    path.write_text("a,b\n")
    assert "0 samples" in refusal(path)
    path.write_text("a,a\n1,2\n")
    assert "two columns 'a'" in refusal(path)


def test_the_first_row(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffa;b,c;d\n1;2;3\n", encoding="utf-8")
    assert first_row(tmp_path / "a.csv", None) == (";", ["a", "b,c", "d"])
    assert first_row(tmp_path / "a.csv", ",")[0] == ","


def test_the_separator_of_a_table_is_one_character(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigurationError, match="separator must be one character, got ',,'"):
        read(tmp_path / "a.csv", separator=",,")


def test_rows_that_end_by_a_carriage_return_alone(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\r1,2\r3,4\r")
    assert first_row(tmp_path / "a.csv", None) == (",", ["a", "b"])
    same(read(tmp_path / "a.csv"), {"a": np.array([1, 3]), "b": np.array([2, 4])})


@pytest.mark.parametrize(("encoding", "said"), [("utf-16", None), ("utf-16-le", "utf-16-le"), ("latin-1", "latin-1")])
def test_other_encodings(tmp_path, encoding, said):
    (tmp_path / "a.csv").write_bytes("ä,b\n1,é\n2,ü\n".encode(encoding))
    same(read(tmp_path / "a.csv", encoding=said), {"ä": np.array([1, 2]), "b": np.array(["é", "ü"])})


def test_text_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes("a,b\n1,é\n".encode("latin-1"))
    assert "encoding=" in read(tmp_path / "a.csv").left_out["b"]
    assert "'b' holds text that is not UTF-8" in refusal(tmp_path / "a.csv", target="b")
    with pytest.raises(ConfigurationError, match="there is no encoding 'latin-99'"):
        read(tmp_path / "a.csv", encoding="latin-99")


def test_a_column_without_a_name_is_that_of_row_numbers(tmp_path):
    (tmp_path / "a.csv").write_text(",x,y\n0,1.5,a\n1,2.5,b\n")  # as pandas.DataFrame.to_csv writes it
    reader = read(tmp_path / "a.csv")
    same(reader, {"x": np.array([1.5, 2.5]), "y": np.array(["a", "b"])})
    assert list(reader.left_out) == ["column 1"]
    (tmp_path / "b.csv").write_text("a,b,\n1,2,\n3,4,\n")
    same(read(tmp_path / "b.csv"), {"a": np.array([1, 3]), "b": np.array([2, 4])})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a;b\n1,5;x\n-2;y\n", np.array([1.5, -2.0])),
        ("a;b\n1.5;x\n-2;y\n", np.array([1.5, -2.0])),
        ("a;b\n1,5;x\n2.5;y\n", np.array(["1,5", "2.5"])),
        ('a,b\n"1,5",x\n"2,5",y\n', np.array(["1,5", "2,5"])),
    ],
)
def test_decimal_commas(tmp_path, text, values):
    (tmp_path / "a.csv").write_text(text)
    same(read(tmp_path / "a.csv", columns=["a"]), {"a": values})


def test_blank_lines_alone(tmp_path):
    (tmp_path / "a.csv").write_text("\n\n\n")
    assert "has blank lines alone" in refusal(tmp_path / "a.csv")


def test_marks_of_missing_values(tmp_path):
    """In a column of numbers; in one of text they are what they are."""
    (tmp_path / "a.csv").write_text("a,b,c\n?,1,x\n2,-,?\n.,3,-\nNone,<NA>,y\n")
    nan = np.nan
    same(
        read(tmp_path / "a.csv"),
        {"a": np.array([nan, 2, nan, nan]), "b": np.array([1, nan, 3, nan]), "c": np.array(["x", "?", "-", "y"])},
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('a,b\n"1,234.5",x\n2,y\n"12,345,678",z\n', np.array([1234.5, 2, 12345678])),
        ('a,b\n"-1,234,567",x\n,y\n?,z\n', np.array([-1234567, np.nan, np.nan])),
        ("a;b\n1.234,5;x\n-2.000,25;y\n", np.array([1234.5, -2000.25])),
        ('a,b\n"1,234",x\n"2,500",y\n', np.array(["1,234", "2,500"])),
        ('a,b\n"1,234.5",x\nabout 2,y\n', np.array(["1,234.5", "about 2"])),
        ("a;b\n192.168,1;x\n1.5;y\n", np.array(["192.168,1", "1.5"])),
    ],
)
def test_separators_of_thousands(tmp_path, text, values):
    (tmp_path / "a.csv").write_text(text)
    same(read(tmp_path / "a.csv", columns=["a"]), {"a": values})


def test_rows_that_end_with_a_separator(tmp_path):
    """Below names that do not, too; pandas takes the first column for names of rows then."""
    (tmp_path / "a.csv").write_text("a,b\n1,2,\n3,4,\n")
    same(read(tmp_path / "a.csv"), {"a": np.array([1, 3]), "b": np.array([2, 4])})


@pytest.mark.parametrize("module", [bz2, lzma])
def test_compressed_tables(tmp_path, module):
    path = tmp_path / f"a.tsv.{'bz2' if module is bz2 else 'xz'}"
    path.write_bytes(module.compress(b"a\tb\n1\tx y\n2\tz\n"))
    same(read(path), {"a": np.array([1, 2]), "b": np.array(["x y", "z"])})


@pytest.mark.parametrize(
    ("options", "rest", "said"),
    [
        ({"missing": ["-999", "xx"]}, "-999,2\n", "missing=['xx'] has no effect: no cell is that"),
        ({"missing": ["-999"]}, "-9990,2\n", "missing=['-999'] has no effect: no cell is that"),
        ({"missing": ["-999"]}, '"-999",2\n', ""),
        ({"comment": "%"}, "2,3\n", "comment='%' has no effect: no line begins with that"),
        ({"comment": "%"}, "%2,3\n", ""),
    ],
)
def test_options_that_match_nothing_are_said(tmp_path, options, rest, said):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n" + rest)
    assert read(tmp_path / "a.csv", **options).notes == ((said,) if said else ())
    marks = options.get("missing", "%")
    (tmp_path / "b.csv").write_text("%\na,b\n1,2\n" if marks == "%" else f"a,b\n-999,2\n3,{marks[-1]}\n")
    assert not read([tmp_path / "a.csv", tmp_path / "b.csv"], **options).notes


@pytest.mark.parametrize("number", ["1e400", "-1.5E+309", "1e-400", "-2.4e-0324", "1" + "0" * 400, f"0.{'0' * 400}1"])
@pytest.mark.parametrize("blocks", [False, True])
def test_numbers_that_float64_does_not_have_are_named(tmp_path, number, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr("descend.data.formats.csv.IN_MEMORY_BYTES", 0)
    (tmp_path / "a.csv").write_text(f"a,b\n1.5,1\n{number},2\n")
    with pytest.raises(DataError, match="row 1, column 'a': a number must be in the range of float64, got "):
        read(tmp_path / "a.csv")
    same = read(tmp_path / "a.csv", text=["a"])
    assert same.read(np.arange(2))["a"].tolist() == ["1.5", number]


def test_numbers_at_the_ends_of_float64_are_read(tmp_path):
    numbers = ["1e308", "-1.7976931348623157e308", "5e-324", "0e-400", "-0.0e999", "inf", "-inf"]
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{number},x 1e-400\n" for number in numbers))
    assert read(tmp_path / "a.csv").read(np.arange(7))["a"].tolist() == [float(number) for number in numbers]
