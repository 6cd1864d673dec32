"""Tables in memory, and frames that hand out their columns as Arrow does."""

import functools

import numpy as np
import pyarrow as pa
import pytest
import torch

import descend
from descend.data import Loading, open_data, read
from descend.data.tensor_reader import is_table
from descend.errors import ConfigurationError, DataError

N = 40
COLUMNS = {
    "a": np.linspace(0, 1, N, dtype=np.float32),
    "b": np.linspace(1, 0, N, dtype=np.float32),
    "kind": ["u", "v"] * (N // 2),
}


class Frame:
    """As a frame of pandas: columns, and with them row numbers, which are no field."""

    def __init__(self, columns):
        self.columns = list(columns)
        self._table = pa.table({**columns, "__index_level_0__": np.arange(len(next(iter(columns.values()))))})

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("table", [Frame(COLUMNS), pa.table(COLUMNS), pa.concat_tables([pa.table(COLUMNS)] * 2)])
def test_columns_are_fields(table):
    assert is_table(table)
    reader = read(table, target="kind")
    assert list(reader.fields) == ["a", "b", "kind"]
    rows = np.array([7, 0, 39])
    found = reader.read(rows)
    np.testing.assert_array_equal(found["a"], COLUMNS["a"][rows])
    np.testing.assert_array_equal(found["kind"], [1, 0, 1])
    assert reader.classes == {"kind": ["u", "v"]}


def test_no_other_data_are_tables():
    others = [torch.ones(2, 2), np.ones((2, 2)), pa.array([1]), [1], {"a": np.ones(2)}, "a.csv"]
    assert not any(map(is_table, others))


def test_fit_takes_it_and_its_target():
    data = Frame(COLUMNS)
    options = {"optimizer": functools.partial(torch.optim.SGD, lr=0.5), "batch_size": 10, "stop": descend.Epochs(1)}
    result = descend.fit(torch.nn.Linear(2, 2), "cross_entropy", data, targets="kind", verbose=False, **options)
    assert result.steps == 4


def test_the_order_of_samples_is_that_of_a_file(tmp_path):
    from pyarrow import parquet

    parquet.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    how = Loading(batch_size=8, seed=3, targets=("kind",))
    ours, file = (open_data(data, how).epoch(0) for data in (Frame(COLUMNS), tmp_path / "t.parquet"))
    for one, other in zip(ours, file, strict=True):
        for name in ("a", "b", "kind"):
            torch.testing.assert_close(one.fields[name], other.fields[name], rtol=0, atol=0)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(DataError, match="the Frame has 0 samples"):
        read(Frame({"a": []}))
    with pytest.raises(ConfigurationError, match="separator"):
        read(Frame(COLUMNS), separator=";")
    with pytest.raises(DataError, match="the Broken has no form as an Arrow table: mixed"):
        read(Broken(COLUMNS))
    with pytest.raises(ConfigurationError, match="'kind' is not a field, as fields= leaves it out: name it there"):
        read(Frame(COLUMNS), fields=["a"], target="kind")


class Broken(Frame):
    def __arrow_c_stream__(self, requested_schema=None):
        raise pa.ArrowInvalid("mixed")


def test_two_columns_of_one_name_are_an_error():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match="the Table has two columns 'a'; give them different names"):
        read(table)
