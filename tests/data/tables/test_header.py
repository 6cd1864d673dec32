"""The first row of a table: what pandas and others write as names, and samples that look like names."""

import csv
import io

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.tables.header import has_names


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
