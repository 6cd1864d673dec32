"""Lines that are no rows of a table, as other programs write and read them."""

import csv
import gzip
import io
import random
import time
from pathlib import Path

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.tables import text as text_tables
from descend.data.tables.lines import QuoteCheck, TableCopy, excel_separator
from descend.errors import ConfigurationError, DataError

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


# ---- quotes of tables of text, against a machine of states that looks at one character after the other


def is_wrong(text):
    """Whether a quote is open at the end, or closes a cell of several lines in its middle."""
    is_open, begins, opened, line, i = False, True, 0, 1, 0
    wrong = False
    while i < len(text):
        one, after = text[i], text[i + 1 : i + 2]
        if is_open and one == '"' and after == '"':
            i += 2
            continue
        if is_open and one == '"':
            is_open = False
            wrong |= bool(after) and after not in ",\n\r" and line > opened
        elif one == '"' and begins and not is_open:
            is_open, opened = True, line
        begins = not is_open and one in ",\n\r"
        line += one == "\n"
        i += 1
    return wrong or is_open


def check(text, size, **options):
    followed = QuoteCheck(Path("t.csv"), '"', ",", **options)
    content = text.encode()
    for start in range(0, len(content), size):
        followed.add(content[start : start + size])
    try:
        followed.finish()
    except DataError as error:
        return str(error), followed.note
    return None, followed.note


def test_parts_of_any_size_are_followed_as_one():
    draw = random.Random(0)
    for _ in range(1500):
        parts = ["a", '"', ",", "\n", '"', '"x",', '"y"\n', '"a\nb",', '""""']
        text = "".join(draw.choice(parts) for _ in range(draw.randint(1, 25)))
        for size in (1, 2, 7, 1000):
            assert bool(check(text, size)[0]) == is_wrong(text), (text, size)


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        ('a,b\n1,x\n2,"5\n' + "".join(f"{i},t\n" for i in range(3, 100)), {}, 3),
        ('a\tb\n1\t"x\n2\ty\n3\tz\n', {}, 2),
        ('a;b\n1;"x\n2;y\n3;z\n', {}, 2),
        ("a,b\n1,'x\n2,y\n3,z\n", {"quote": "'"}, 2),
        ('# a "comment\na,b\n1,"x\n2,y\n', {"comment": "#"}, 3),
        ('a, b\n1, "x\n2, y\n', {}, 2),
        ('a,b\n1,"x\\"\n2,y\n', {"escape": "\\"}, 2),
        ('a,b\n1,"x\n2,y\n', {"header": True, "encoding": "utf-16"}, 2),
    ],
)
def test_a_quote_that_is_never_closed(tmp_path, text, options, line):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(options.get("encoding", "utf-8")))
    message = refusal(path, **options)
    assert f"{path}: the quote that opens a cell in line {line} is never closed" in message
    assert "quote=''" in message


def test_a_large_file_is_followed_too(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.data.formats.csv.IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 100)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{i},x\n" for i in range(100)) + '100,"y\n')
    assert "line 102 is never closed" in refusal(path)


def test_two_stray_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('size,b\n"5,x\n6,y\n"7,z\n')
    assert "in line 2 is closed in line 4, where text follows it" in refusal(path)
    same(read(path, quote=""), {"size": np.array(['"5', "6", '"7']), "b": np.array(["x", "y", "z"])})
    path.write_text('size,b\n5,"x\n6,y\n7,z"\n8,t\n')
    [note] = read(path).notes
    assert "a cell in quotes that begins in line 2 has 1 whole lines which look like rows" in note
    path.write_text('size,b\n5,"a text\nof lines, too\nand more"\n8,t\n')
    assert read(path).notes == ()  # sentences have blanks behind commas


def test_tables_of_spark_and_mysql(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text,n\n1,"say \\"hi\\", all",5\n2,\\N,\\N\n3,"a\\\\b",7\n')
    reader = read(path, escape="\\")
    same(
        reader,
        {"id": np.arange(1, 4), "text": np.array(['say "hi", all', "", "a\\b"]), "n": np.array([5, np.nan, 7])},
    )
    path.write_text("1\tup\t\\N\n2\t\\N\t3\n")  # of MySQL, without quotes
    found = read(path, separator="\t", escape="\\", quote="", header=False).read(np.arange(2))
    np.testing.assert_array_equal(found["2"], [np.nan, 3])
    assert found["1"].tolist() == ["up", ""]


def test_escapes_and_no_quotes_with_blanks_around_cells(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a, b\n1, say \\"hi\\"\n2, \\N\n')
    same(read(path, escape="\\"), {"a": np.array([1, 2]), "b": np.array(['say "hi"', ""])})


@pytest.mark.parametrize("text", ['"say \\"hi\\""', '"\\"hi"', '"say \\"hi, you\\", all"'])
def test_a_backslash_before_a_quote_is_an_error_unless_it_is_an_escape(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n1,{text}\n2,x\n")
    assert "opens a cell in line 2 is closed in line 2, where text follows it ('\\\\\"hi" in refusal(path)
    assert read(path, escape="\\").column("b")[1] == "x"
    path.write_text('a,b\n"C:\\dir\\",1\n"5"" pipe",2\n')  # a folder, whose last backslash is no escape
    same(read(path), {"a": np.array(["C:\\dir\\", '5" pipe']), "b": np.array([1, 2])})


def test_escapes_before_other_characters_are_counted(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\tup\\tdown\n2\t\\N\n3\tx\\\\y\\\tz\n")
    [note] = read(path, escape="\\").notes
    assert f"{path}: 1 escapes are before other characters than quotes, separators and newlines, such as" in note
    for wrong in (",", "n", ";"):
        with pytest.raises(ConfigurationError, match="escape must be no letter, digit, blank or separator"):
            read(path, escape=wrong, separator=";")


@pytest.mark.parametrize("escape", [None, "\\"])
def test_many_quotes_within_cells_take_time_for_each_alone(tmp_path, escape):
    """It took 60 times as long when what is before a quote was copied for each."""
    text = b'1,5" pipe "x\n' * 50_000
    check = QuoteCheck(tmp_path / "a.csv", '"', ",", escape)
    start = time.process_time()
    check.add(text)
    check.finish()
    assert time.process_time() - start < 3
