"""`read` of objects: the samples that the object itself gives, and those that `fit` is given."""

import functools

import numpy as np
import pyarrow as pa
import pytest
import torch
from data.files import same
from data.torch_sets import Augmented, Failing
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import descend
from descend.data import ArrayReader, Loading, object_source, open_data, read
from descend.data.tensor_reader import is_table
from descend.errors import ConfigurationError, DataError

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)
TRUTH = {"0": X.numpy(), "1": Y.numpy()}


class Rows(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return X[index], int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[i], Y[i]) for i in range(10)])


KINDS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "mapping": {"0": X, "1": Y},
    "TensorDataset": TensorDataset(X, Y),
    "Subset": Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(10, 20)),
    "Dataset": Rows(),
    "DataLoader": DataLoader(Rows(), batch_size=3, shuffle=True),
    "IterableDataset": Stream(),
    "DataLoader of a stream": DataLoader(Stream(), batch_size=3),
    "ArrayReader": ArrayReader(TRUTH),
    "a reader": read(Rows()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_read_and_fit_give_the_samples_of_the_object(kind):
    reader = read(KINDS[kind])
    same(reader, TRUTH)
    how = Loading(batch_size=3, seed=5)
    ours, theirs = (list(open_data(data, how).epoch(1)) for data in (reader, KINDS[kind]))
    assert len(ours) == len(theirs) == 4
    for one, other in zip(ours, theirs, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        for name in TRUTH:
            np.testing.assert_array_equal(np.asarray(one.fields[name]), np.asarray(other.fields[name]))


def test_fields_are_chosen_and_targets_are_kept():
    reader = read({"x": X, "y": Y}, target="y", fields={"z": "x", "y": "y"})
    assert (list(reader.fields), reader.target) == (["z", "y"], ("y",))
    assert read(reader).target == ("y",)
    batch = next(iter(open_data(reader, Loading(batch_size=10, shuffle=False)).epoch(0)))
    np.testing.assert_array_equal(np.asarray(batch.fields["z"]), X.numpy())


def test_random_numbers_belong_to_the_sample_and_the_epoch():
    reader = read(Augmented())
    whole = reader.read(np.arange(13), 1)["0"]
    np.testing.assert_array_equal(reader.read(np.array([7, 2]), 1)["0"], whole[[7, 2]])
    assert not np.array_equal(reader.read(np.arange(13), 2)["0"], whole)
    renamed = read(Augmented(), fields={"x": "0"})
    a, b = (next(open_data(one, Loading(batch_size=13, seed=4)).epoch(0)).fields for one in (renamed, Augmented()))
    np.testing.assert_array_equal(a["x"], b["0"])


def test_a_collate_function_is_used():
    loader = DataLoader(Rows(), batch_size=2, collate_fn=lambda some: {"x": torch.stack([x for x, _ in some]) * 2})
    same(read(loader), {"x": 2 * X.numpy()})


def test_bfloat16_becomes_what_numpy_has():
    assert read((X.bfloat16(),)).read(np.arange(2))["0"].dtype == np.float32


def test_what_cannot_be_read_is_named():
    with pytest.raises(DataError, match=r"sample 5 of reader 'Failing' .*Failing\[5\].*disk on fire"):
        read(Failing({5: "raises"})).read(np.array([4, 5]))
    with pytest.raises(DataError, match="0 samples"):
        read(Failing({}, samples=0))
    with pytest.raises(ConfigurationError, match="separator=';' is set and Rows does not use it"):
        read(Rows(), separator=";")
    with pytest.raises(ConfigurationError, match="must be a path"):
        read(3)


def test_streams_are_bounded(monkeypatch):
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(100)

    class Odd(IterableDataset):
        def __iter__(self):
            return iter([torch.zeros(2)] * 256 + [torch.zeros(3)])

    monkeypatch.setattr(object_source, "MAX_GATHERED_BYTES", 2**17)
    with pytest.raises(DataError, match=r"Endless is a stream.*more than 131,072 bytes"):
        read(Endless())
    with pytest.raises(DataError, match="the batches of Odd cannot be joined"):
        read(Odd())
    with pytest.raises(DataError, match="yields 0 samples"):
        read(DataLoader(Stream(), batch_size=20, drop_last=True))


class RandomAccessStream(IterableDataset):
    """A stream that has its samples by number, as those of `streaming`; its length is the share of one of two ranks."""

    size = 10

    def __iter__(self):
        raise AssertionError("it is not gone through")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return {"x": X[index].numpy(), "y": int(Y[index])}


def test_a_stream_with_numbers_is_read_by_number():
    reader = read(RandomAccessStream())
    same(reader, {"x": X.numpy(), "y": Y.numpy()})


class Source:
    """A source of grain: nothing but `__len__` and `__getitem__`, and samples of NumPy."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": X[index].numpy(), "y": int(Y[index])}


def test_an_object_with_numbers_is_read_by_number():
    same(read(Source()), {"x": X.numpy(), "y": Y.numpy()})


def test_fit_takes_such_a_stream_by_number_as_well():
    batches = list(open_data(RandomAccessStream(), Loading(batch_size=4, seed=1)).epoch(0))
    ids = np.concatenate([batch.ids for batch in batches])
    assert sorted(ids) == list(range(10))
    np.testing.assert_array_equal(np.concatenate([batch.fields["y"] for batch in batches]), ids)


@pytest.mark.parametrize("sample", [({1}, 2), ({"image": None},)], ids=["a set", "none"])
def test_a_stream_of_what_makes_no_batch(sample):
    class Odd(IterableDataset):
        def __iter__(self):
            yield from [sample] * 3

    with pytest.raises(DataError, match="Odd yields samples that cannot be put into a batch"):
        read(Odd())


# ---- tables in memory, and frames that hand out their columns as Arrow does

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
