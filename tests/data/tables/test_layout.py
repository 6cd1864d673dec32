"""Tables as programs other than spreadsheets write them: what is between their cells is found."""

import csv
import gzip

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.tables.layout import is_table
from descend.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))
N = np.arange(20)


def fixed_width(rows):
    """As UCI's files: columns of a width, with blanks before numbers."""
    return "".join(" ".join(f"{cell!s:>24}" for cell in row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.dat", "a.data", "a", "a.txt.gz"])
def test_runs_of_blanks(tmp_path, name):
    content = fixed_width(X.tolist()).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    same(read(tmp_path / name), {str(i): X[:, i] for i in range(3)})


@pytest.mark.parametrize("header", ["", "a b c"])
@pytest.mark.parametrize("delimiter", [" ", "\t", ",", ";"])
def test_what_savetxt_writes(tmp_path, header, delimiter):
    np.savetxt(tmp_path / "a.txt", X, delimiter=delimiter, header=header.replace(" ", delimiter))
    names = header.split() or ["0", "1", "2"]
    same(read(tmp_path / "a.txt"), {name: X[:, i] for i, name in enumerate(names)})


def test_names_of_cars(tmp_path):
    """UCI's auto-mpg.data: blanks, then a tab before a text in quotes."""
    rows = [(18.0, 8, 307.0, "chevrolet chevelle"), (15.0, 8, 350.0, "buick"), (18.5, 6, 199.0, "amc gremlin")]
    text = "".join(f'{a}   {b}   {c}      {1}\t"{name}"\n' for a, b, c, name in rows)
    (tmp_path / "auto.data").write_text(text.replace("307.0", "?    "))
    truth = {"0": [18.0, 15.0, 18.5], "1": [8, 8, 6], "2": [np.nan, 350.0, 199.0], "3": [1, 1, 1]}
    same(read(tmp_path / "auto.data"), {**truth, "4": [name for *_, name in rows]})


def test_what_r_writes(tmp_path):
    """write.table: all texts in quotes, and no name above the names of rows."""
    rows = "".join(f'"{i + 1}"{{0}}{x!r}{{0}}"class {i % 2}"\n' for i, x in enumerate(X[:, 0].tolist()))
    truth = {"x": X[:, 0], "kind": [f"class {i % 2}" for i in range(20)]}
    for name, separator in (("a.txt", " "), ("b.csv", ","), ("c.tsv", "\t")):
        (tmp_path / name).write_text(f'"x"{separator}"kind"\n' + rows.format(separator))
        reader = read(tmp_path / name)
        same(reader, truth)
        assert list(reader.left_out) == ["column 1"]


def test_what_to_string_of_pandas_writes(tmp_path):
    text = f"{'a':>30}{'n':>5}\n" + "".join(f"{i:<5}{x!r:>25}{i:>5}\n" for i, x in enumerate(X[:, 0].tolist()))
    (tmp_path / "a.txt").write_text(text)
    same(read(tmp_path / "a.txt"), {"a": X[:, 0], "n": N})


@pytest.mark.parametrize("separator", [", ", " ; ", " | "])
def test_blanks_around_cells(tmp_path, separator):
    """As in UCI's adult.data, whose missing values have blanks as well."""
    rows = [["age", "kind", "pay"], ["39", "State-gov", "77516"], ["50", '"a, b;\n| c"', "?"], ["38", "Private", "5"]]
    (tmp_path / "a.data").write_text("".join(separator.join(row) + "\n" for row in rows))
    truth = {"age": [39, 50, 38], "kind": ["State-gov", "a, b;\n| c", "Private"], "pay": [77516, np.nan, 5]}
    same(read(tmp_path / "a.data"), truth)


@pytest.mark.parametrize("separator", [" ", ";", "\t", "|", "  "])
@pytest.mark.parametrize("header", [True, False])
def test_decimal_commas(tmp_path, separator, header):
    names = separator.join("abc") + "\n" if header else ""
    rows = "".join(separator.join(f"{x!r}".replace(".", ",") for x in row) + "\n" for row in X.round(6).tolist())
    (tmp_path / "a.csv").write_text(names + rows)
    same(read(tmp_path / "a.csv"), {name: X[:, i].round(6) for i, name in enumerate("abc" if header else "012")})


def test_a_blank_that_is_asked_for_is_a_run_of_blanks(tmp_path):
    (tmp_path / "a.csv").write_text("a b\nx   y\nz w\n")
    same(read(tmp_path / "a.csv", separator=" "), {"a": ["x", "z"], "b": ["y", "w"]})
    (tmp_path / "a.csv").write_text("a b\n1 2\n3\n5 6\n7 8\n")
    assert "Expected 2 columns, got 1" in refusal(tmp_path / "a.csv", separator=" ")
    reader = read(tmp_path / "a.csv", separator=" ", skip_bad=1)
    assert reader.read(np.array([3, 0]))["a"].tolist() == [7, 1]
    with pytest.raises(DataError, match="it has 1 cells, and the first row has 2"):
        reader.read(np.array([1]))


SENTENCES = ["very good film", "not so good", "it was, I think, 1984"]


@pytest.mark.parametrize(
    "column", [["review", *SENTENCES], ["the review", "so good", "too bad"], ["text", "12 monkeys", "7 samurai"]]
)
def test_sentences_in_one_column_stay_whole(tmp_path, column):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([one] for one in column)
    same(read(tmp_path / "a.csv"), {column[0]: column[1:]})


def test_sentences_with_numbers_stay_whole_where_a_tab_is_between_cells(tmp_path):
    (tmp_path / "a.tsv").write_text("1 good\t1\n2 bad\t0\n")
    same(read(tmp_path / "a.tsv"), {"0": ["1 good", "2 bad"], "1": [1, 0]})


@pytest.mark.parametrize(
    "text",
    [
        "Chapter 1\nChapter 2\nChapter 3\n",
        "It was, I think, 1984.\nHe said, no, 5.\nThen, well, 3.\n",
        "1984\n2001\n",
        "a.jpg 1\nb.jpg 2\n",
        '{"a": 1, "b": 2}\n{"a": 1, "b": 2}\n',
        "[1, 2]\n[3, 4]\n",
        "1 2 3\n",
        "",
    ],
)
def test_other_texts_are_no_tables(text):
    assert not is_table(text.encode())


def test_the_last_line_of_a_beginning_may_be_cut_off():
    assert is_table(fixed_width(X.tolist()).encode()[:1024])
    assert not is_table((b"1 2 3\n" * 3 + b"and a text\n").ljust(1000, b"x"))


def test_lines_before_the_table_are_named(tmp_path):
    (tmp_path / "a.dat").write_text("# made by a program\n# of 2020\n1 2\n3 4\n")
    assert "leave out those with # by comment='#'" in refusal(tmp_path / "a.dat")
    same(read(tmp_path / "a.dat", comment="#"), {"0": [1, 3], "1": [2, 4]})


def test_names_that_come_again(tmp_path):
    """Files that were joined; the column would be one of text."""
    (tmp_path / "a.csv").write_text("a,b\n1,x\na,b\n2,y\n3,z\n")
    text = refusal(tmp_path / "a.csv")
    assert "row 1 has the names of the columns again ('a')" in text
    assert "skip_bad=1" in text
    assert read(tmp_path / "a.csv", skip_bad=1).read(np.array([0, 3]))["a"].tolist() == [1, 3]
    (tmp_path / "a.csv").write_text("a,b\nx,1\na,2\n")
    same(read(tmp_path / "a.csv"), {"a": ["x", "a"], "b": [1, 2]})


def test_names_in_another_encoding(tmp_path):
    (tmp_path / "a.csv").write_bytes("é,b\n1,2\n".encode("latin-1"))
    assert "names in the first row are not utf-8; say its encoding=" in refusal(tmp_path / "a.csv")
    same(read(tmp_path / "a.csv", encoding="latin-1"), {"é": [1], "b": [2]})
