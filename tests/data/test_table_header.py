"""The first row of a table: what pandas and others write as names, and samples that look like names."""

import csv
import io

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.table_header import has_names


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
