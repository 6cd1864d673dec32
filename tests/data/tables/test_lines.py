"""Lines that are no rows of a table, as other programs write and read them."""

import csv
import gzip
import io

import numpy as np
import pytest
from data.files import refusal

from descend.data import read
from descend.data.tables.lines import TableCopy, excel_separator
from descend.errors import DataError

CELLS = [["1", "x"], ["2", "a\n# no comment, within quotes"], ["3", "# neither"]]


def written(comments, terminator="\n"):
    """A table by Python's own writer, with comments between its rows."""
    parts = []
    for row in [["a", "b"], *CELLS]:
        text = io.StringIO()
        csv.writer(text, lineterminator=terminator).writerow(row)
        parts.append(('# a comment, with "quotes' + terminator if comments else "") + text.getvalue())
    return "".join(parts)


@pytest.mark.parametrize("terminator", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_comments_are_left_out(tmp_path, terminator, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes(written(True, terminator).encode(encoding))
    found = read(path, comment="#").read(np.arange(3))
    assert found["a"].tolist() == [1, 2, 3]
    assert [text.replace("\r", "") for text in found["b"].tolist()] == [row[1] for row in CELLS]


def test_a_copy_has_all_other_bytes_and_goes_with_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.data.tables.lines._AT_ONCE", 3)
    path = tmp_path / "a.csv.gz"
    whole = b"a,b\n#x,\xff\n1,caf\xe9\n##\n2,#\n#"
    path.write_bytes(gzip.compress(whole))
    copy = TableCopy(path, "utf-8", "#", '"')
    assert copy.path.read_bytes() == b"a,b\n1,caf\xe9\n2,#\n"
    place = copy.path
    del copy
    assert not place.exists()


def test_a_table_with_comments_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("# of 2026\na,b\n1,2\n")
    assert "comment='#'" in refusal(path)
    assert str(path) in refusal(path)


def test_the_line_of_excel(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sep=|\na,x|b\n1|2\n")
    assert excel_separator(path) == "|"
    assert read(path).read(np.array([0])) == {"a,x": [1], "b": [2]}
    path.write_text("sep=,length\n1,2\n")
    assert excel_separator(path) is None
    assert list(read(path).fields) == ["sep=", "length"]


def test_other_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n'x,y',1\nz,2\nz,3,4\n")
    reader = read(path, quote="'", skip_bad=1)
    assert reader.read(np.arange(2))["a"].tolist() == ["x,y", "z"]
    with pytest.raises(DataError, match=r"sample 2 .* it has 3 cells"):
        reader.read(np.array([2]))
