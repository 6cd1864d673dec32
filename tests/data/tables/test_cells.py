"""Columns of text that were meant as numbers, from tables of every format."""

import functools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data.files import refusal, same
from pyarrow import feather

import descend
from descend.data import read
from descend.data.tables.cells import MISSING, count_texts
from descend.data.tables.numbers import count_cells
from descend.errors import ConfigurationError, DataError

ODD = ["missing", "1,5", "1 234", "$5", "12.5 USD", "ERR", "1e", "0x", "#DIV/0!"]
X = np.arange(400) / 10
SGD = functools.partial(torch.optim.SGD, lr=0.1)
PRICES = [str(i * 1.5 + 0.25) for i in range(400)]


def with_odd(cell, prices=PRICES):
    return [*prices[:200], cell, *prices[201:]]


def write(path, cells):
    """A table of numbers and a column of text."""
    columns = {"x": X[: len(cells)], "price": cells}
    match path.suffix:
        case ".csv" | ".tsv":
            separator = "\t" if path.suffix == ".tsv" else ","
            quoted = [f'"{cell}"' if separator in cell else cell for cell in cells]
            rows = [f"{x}{separator}{cell}" for x, cell in zip(X, quoted, strict=False)]
            path.write_text("\n".join([f"x{separator}price", *rows]) + "\n")
        case ".parquet":
            pq.write_table(pa.table(columns), path)
        case ".feather":
            feather.write_feather(pa.table({**columns, "price": pa.array(cells).dictionary_encode()}), path)
        case ".npz":
            np.savez(path, x=columns["x"], price=np.array(cells))
        case _:
            path.write_text("".join(json.dumps({"x": x, "price": p}) + "\n" for x, p in zip(X, cells, strict=False)))
    return path


@pytest.mark.parametrize("cell", ODD)
def test_one_odd_cell_of_a_target_is_an_error(tmp_path, cell):
    message = refusal(write(tmp_path / "a.csv", with_odd(cell)), target="price")
    assert f"row 200 (line 202), column 'price': {cell!r} is no number, and 399 of 400 cells are" in message
    assert "missing=[...]" in message
    assert "text=['price'] says that they are texts, each of them a class" in message


@pytest.mark.parametrize("name", ["a.tsv", "a.parquet", "a.feather", "a.jsonl", "a.npz"])
def test_in_every_format(tmp_path, name):
    path = write(tmp_path / name, with_odd("ERR"))
    assert "'ERR' is no number, and 399 of 400 cells are" in refusal(path, target="price")
    said = {"classes": sorted(set(with_odd("ERR")))} if name == "a.npz" else {"text": ["price"]}
    assert len(read(path, target="price", **said).classes["price"]) == 400


def test_in_tables_and_arrays_in_memory():
    cells = with_odd("ERR")
    with pytest.raises(DataError, match="row 200, column 'price': 'ERR' is no number"):
        read(pa.table({"x": X, "price": cells}), target="price")
    module = torch.nn.Linear(1, 1)
    for target in (np.array(cells), np.array(cells, dtype=object), cells):
        with pytest.raises(DataError, match="entry 200: 'ERR' is no number, and 399 of 400 cells are; pass numbers"):
            descend.fit(module, "mse", (X[:, None], target), optimizer=SGD, batch_size=8, stop=descend.Epochs(1))


def test_what_a_caller_can_say(tmp_path):
    path = write(tmp_path / "a.csv", with_odd("ERR"))
    found = read(path, target="price", missing=["ERR"]).column("price")
    np.testing.assert_array_equal(np.isnan(found), np.arange(400) == 200)
    assert read(path, text=["price"]).column("price")[200] == "ERR"
    assert len(read(path, target="price", classes={"price": with_odd("ERR")}).classes["price"]) == 400
    assert read(path, target="price", skip_bad=1).column("price")[0] == 0.25
    with pytest.raises(DataError, match="'price' names a class, and is missing"):
        read(path, target="price", text=["price"], missing=["ERR"]).read(np.array([200]))


def test_classes_that_are_numbers_with_an_odd_one(tmp_path):
    """As texts all would have other numbers: 10 comes before 2."""
    path = write(tmp_path / "a.csv", [str(i % 12) for i in range(100)])
    assert read(path, label="price").column("price").tolist() == [i % 12 for i in range(100)]
    message = refusal(write(path, with_odd("x", [str(i % 12) for i in range(400)])), label="price")
    assert "'x' is no number, and 399 of 400" in message


@pytest.mark.parametrize(
    ("cells", "target", "feature"),
    [
        (["A1", "7", "12b"] * 10, None, None),  # codes
        (["A1", "7"] * 10, "is no number", None),  # half are numbers
        (["A1", *["7"] * 2] * 10, "is no number", "said"),
        (["A1", *["7"] * 9] * 10, "is no number", "is no number"),
        (["A1", "7", "8"], "is no number", "is no number"),  # one
        (["1,5", "2,5", "3,5"] * 4, "in a form such as '1,5'", "said"),
        (["$5", "$7.50", "$1,200"] * 4, "in a form such as '$5'", "said"),
        (["5%", "7.5 %"] * 4, "in a form such as '5%'", "said"),
        (["5 stars", "3 stars"] * 4, None, None),
        (["<30", "30-40", ">40"] * 4, None, None),
        (["up", "down"] * 4, None, None),
    ],
)
def test_where_most_lies(tmp_path, cells, target, feature):
    path = write(tmp_path / "a.csv", cells)
    if target is None:
        assert sorted(read(path, target="price").classes["price"]) == sorted(set(cells))
    else:
        assert target in refusal(path, target="price")
    if feature in (None, "said"):
        reader = read(path)
        assert reader.column("price").tolist() == cells
        assert ["the column is read as text" in note for note in reader.notes] == [True] * (feature is not None)
    else:
        assert feature in refusal(path)
    assert read(path, columns=["x"]).notes == ()  # a column that is not read is not judged


def test_text_of_typed_tables_is_what_the_type_says(tmp_path):
    digits = [str(i % 10) for i in range(100)]
    path = write(tmp_path / "a.parquet", digits)
    assert read(path, target="price").column("price").tolist() == [i % 10 for i in range(100)]
    assert read(write(path, with_odd("SW1A"))).column("price")[200] == "SW1A"
    assert "all 400 cells are numbers with fractions" in refusal(write(path, PRICES), target="price")


def test_text_as_it_is_written(tmp_path):
    (tmp_path / "a.csv").write_text("id,v\n00123,1.10\n123,1.1\n")
    same(read(tmp_path / "a.csv", text=["id", "v"]), {"id": np.array(["00123", "123"]), "v": np.array(["1.10", "1.1"])})
    (tmp_path / "a.jsonl").write_text('{"a": {"id": 9223372036854775809}, "v": 1.10}\n{"a": {"id": 7}, "v": 1.1}\n')
    same(
        read(tmp_path / "a.jsonl", text=["a.id", "v"]),
        {"a.id": np.array(["9223372036854775809", "7"]), "v": np.array(["1.10", "1.1"])},
    )
    pq.write_table(pa.table({"id": [2**53, 2**53 + 1, None]}), tmp_path / "a.parquet")
    reader = read(tmp_path / "a.parquet", text=["id"])
    assert reader.column("id").tolist() == ["9007199254740992", "9007199254740993", ""]
    with pytest.raises(ConfigurationError, match="text names 'ids', and there is no such column; did you mean 'id'"):
        read(tmp_path / "a.parquet", text=["ids"])
    with pytest.raises(ConfigurationError, match="text must be a list of texts, got 'id'"):
        read(tmp_path / "a.parquet", text="id")


def test_counts_of_arrow_and_of_python_are_the_same():
    cells = [*sorted(MISSING), "1", "-2.5", "+3", ".5", "5.", "1e5", "inf", "x", "1,5", "1,234.5", "1_0", " 7 ", "0x1f"]
    rng = np.random.default_rng(0)
    for _ in range(100):
        some = rng.choice(cells, size=int(rng.integers(1, 12))).tolist()
        assert count_cells(pa.chunked_array([pa.array(some)])) == count_texts(some)


def test_a_column_of_numbers_that_stays_text_is_said():
    assert count_texts(["1", "1.5"]).of_feature() == (
        None,
        "all 2 cells are numbers, and other columns have commas before fractions",
    )
    assert count_texts(["1,5", "2"]).of_text() == (0, "all 2 cells are numbers in a form such as '1,5'")
    assert count_texts(["A1", "7", "B"]).of_text() is None
