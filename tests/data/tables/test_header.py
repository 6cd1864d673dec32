"""The first row of a table: what pandas and others write as names, and samples that look like names."""

import csv
import gzip
import io

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.tables.header import has_names, is_table
from descend.errors import DataError


def judged(text, **options):
    first, *below = csv.reader(io.StringIO(text))
    return has_names(first, below, **options)


@pytest.mark.parametrize(
    "text",
    [
        "0,1,2\n0.5,1.5,0.1\n2.5,3.5,0.2\n",  # DataFrame(array).to_csv(index=False)
        ",0,1,2\n0,0.5,1.5,0.1\n1,2.5,3.5,0.2\n",  # to_csv()
        ",0,1\n0,5,3\n1,4,4\n",
        "0,1\n0.5,1.5\n2.5,3.5\n",
        "0,1,2,3,4,5\n5,3,1,2,2,2\n1,1,1,1,1,1\n",
        "0,1,2\n0.5,1.5,1\n2.5,3.5,0\n",
        ",2019,2020\n0,5,6\n1,7,8\n",
        "name,2019,2020\nx,1,2\ny,3,4\n",
        "2019,2020\n1,2\n3,4\n",
        "2019,2020,2021\n5,3.5,1\n7,2.5,0\n",
        "400,410,420,label\n0.1,0.2,0.3,a\n0.2,0.1,0.5,b\n",
        "400,410,420,430\n0.5,0.1,0.2,0.3\n1.5,0.2,0.4,0.2\n",
        "0.5,1.0,1.5,label\n3,4,5,a\n4,4,4,b\n",
        "id,0,1\n7,0.5,0.6\n9,1.5,1.6\n",
        "a,b\n1,2\n",
        "a,b\nx,y\n",
        "kind,x\nkind,1\nup,2\n",
    ],
)
def test_names(text):
    assert judged(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2,3\n4,5,6\n7,8,9\n",
        "0,1,2,3\n4,5,6,7\n8,9,10,11\n",  # np.arange
        "0,1\n0.1,0.995\n0.2,0.98\n",  # times, and a curve
        "0,1,1\n1,0,1\n0,0,0\n",
        "0\n1\n1\n0\n",
        "0,0,1\n0.5,0.2,0.1\n0.3,0.2,0.1\n",
        "5,0,0,1\n4,0,3,2\n1,2,0,0\n",
        "5.1,3.5,1.4,0.2,Iris-setosa\n4.9,3.0,1.4,0.2,Iris-setosa\n7.0,3.2,4.7,1.4,Iris-versicolor\n",
        "39,State-gov,77516\n50,Self-emp,83311\n38,State-gov,215646\n",
        "18.0,8,307.0,chevrolet\n15.0,8,350.0,buick\n18.0,8,318.0,plymouth\n",
        "1e3,a\n",
        ",\n1,2\n",
        "nan,1\n2,3\n",
    ],
)
def test_samples(text):
    assert judged(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n0,2\n1,2\n",  # edges of a graph, or integers of pandas
        "0\n0.5\n1.7\n",
        "0\n5\n3\n",
        "400,410,420\n1523,1610,1502\n1400,1500,1450\n",
        "400,label\n350,a\n420,b\n390,a\n300,a\n310,b\n300,b\n",
        "left\nup\nleft\ndown\nleft\n",
        "yes,8\n4,35\n",
    ],
)
def test_in_doubt(text):
    assert judged(text) is None


def test_random_tables_are_read_without_a_question():
    """And with the names that pandas gives them they have names, or are in doubt where all are integers."""
    rng = np.random.default_rng(0)
    makers = {
        "normal": lambda n, k: rng.normal(size=(k, n)).round(4),
        "large": lambda n, k: rng.normal(scale=100, size=(k, n)).round(1),
        "pixels": lambda n, k: rng.integers(0, 256, size=(k, n)) * rng.integers(0, 2, size=(k, n)),
    }
    for name, make in makers.items():
        judgements = []
        for _ in range(300):
            width = int(rng.integers(2, 9))
            rows = [[str(one) for one in row] for row in make(width, int(rng.integers(5, 60))).tolist()]
            judgements.append(has_names(rows[0], rows[1:]))
            numbered = [[str(i), *row] for i, row in enumerate(rows)]
            assert has_names(["", *map(str, range(width))], numbered) is True
            assert has_names([str(i) for i in range(width)], rows) is not False or name == "pixels"
        assert True not in judgements
        assert judgements.count(None) < 6


def test_quotes_around_the_first_row_alone(tmp_path):
    assert judged("5,7\n1,2\n3,4\n", is_marked=True)
    path = tmp_path / "a.csv"
    path.write_text('"5","7"\n1,2\n3,4\n')
    same(read(path), {"5": np.array([1, 3]), "7": np.array([2, 4])})
    path.write_text('"5"\t"7"\n1\t2\n3\t4\n')
    same(read(path), {"5": np.array([1, 3]), "7": np.array([2, 4])})
    path.write_text('"5","7"\n"1","2"\n"3","4"\n')
    assert len(read(path)) == 3


def test_a_doubt_is_asked_about(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1\n0,2\n1,2\n")
    assert "pass header=True if it has names, header=False if not" in refusal(path)
    assert len(read(path, header=True)) == 2
    assert len(read(path, header=False)) == 3


def test_row_numbers_of_pandas_are_no_field(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",0,1,2\n0,0.5,1.5,0.1\n1,2.5,3.5,0.2\n")
    reader = read(path)
    same(reader, {"0": np.array([0.5, 2.5]), "1": np.array([1.5, 3.5]), "2": np.array([0.1, 0.2])})
    assert "as the row numbers that pandas writes" in reader.left_out["column 1"]


def test_names_beyond_the_first_characters(tmp_path):
    """Rows of a spectrum are longer than what is looked at of other tables."""
    path = tmp_path / "a.csv"
    names = [str(400 + i) for i in range(20_000)]
    rows = np.random.default_rng(0).random((3, len(names))).round(3)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows.tolist())]) + "\n")
    assert len(read(path)) == 3


def test_evenly_spaced_numbers_may_be_a_sample_too():
    below = [["4.9", "3.0", "1.4"], ["4.7", "3.2", "1.3"], ["5.0", "3.6", "1.4"]]
    assert has_names(["5", "3", "1"], below) is None
    assert has_names(["1", "3", "5"], below) is None
    assert has_names(["1", "2", "3"], below) is True
    assert has_names(["400", "410", "420"], below) is True


def test_a_first_row_with_marks_of_missing_values():
    assert has_names(["NA"], [["?"], ["2.5"], [""]]) is False
    assert has_names(["red", "NA"], [["red", "1"], ["blue", ""]]) is None
    assert has_names(["", "True"], [["2.5", "True"], ["1", "False"]]) is None
    assert has_names(["", "x"], [["a", "1"], ["b", "2"]]) is True


def test_a_number_above_texts_alone_is_in_doubt():
    assert has_names(["2000"], [["red"], ["blue"], ["red"]]) is None
    assert has_names(["7", "1"], [["A1", "2"], ["B2", "1"], ["C3", "5"]]) is None


@pytest.mark.parametrize("text", ['"a b";"7"\n"l1\nl2";"8"\n"a b";"9"\n', '"7";"l1\nl2"\n"8";"x"\n"9";"l1\nl2"\n'])
def test_quotes_of_cells_of_several_lines_mark_no_names(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert len(read(tmp_path / "a.csv")) == 3


def test_decimal_commas_beside_points_without_names(tmp_path):
    (tmp_path / "a.csv").write_text("71,64;2.5\n51,44;1\n43,69;1\n")
    same(read(tmp_path / "a.csv", separator=";"), {"0": ["71,64", "51,44", "43,69"], "1": [2.5, 1.0, 1.0]})
    assert list(read(tmp_path / "a.csv").fields) == ["0", "1"]
    assert read(tmp_path / "a.csv").column("1").tolist() == [2.5, 1, 1]


def test_a_row_of_texts_that_comes_again_is_no_row_of_names():
    assert has_names(["True", "red"], [["False", "blue"], ["True", "red"], ["True", "blue"]]) is None
    assert has_names(["kind", "price"], [["red", "1"], ["kind", "price"], ["blue", "2"]]) is True


def test_a_single_number_below_shows_no_kind():
    assert has_names(["red", "2.5"], [["blue", ""], ["blue", "1"], ["green", "NA"]]) is False


def test_a_zero_beside_an_empty_cell_is_the_name_of_a_series_where_row_names_are_below():
    assert has_names(["", "0"], [["0", "1.5"], ["1", "2.5"]]) is True
    assert has_names(["", "0"], [["2020-01-01", "1.5"], ["2020-01-02", "2.5"]]) is True
    assert has_names(["", "0"], [["", "8"], ["2.5", "3"], ["", "8"], ["7", "0"]]) is not True


# ---- tables as programs other than spreadsheets write them: what is between their cells is found

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
