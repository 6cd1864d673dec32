"""Arrays of any kind: torch computes with the values that they have, or an error says why not."""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.masked import masked_tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import descend
from descend.data.nested_fields import as_rows
from descend.data.plain_arrays import columns_of, native, plain_array, plain_sample, plain_tensor, widened
from descend.data.tensor_reader import tensor_reader
from descend.errors import DataError

N = 12
X = np.arange(N * 4, dtype=np.float32).reshape(N, 4) / 10
Y = np.arange(N) % 3
NAN = float("nan")
MASK = np.zeros((N, 4), bool)
MASK[5, 2] = MASK[7] = True


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def mapped(array, folder):
    np.save(folder / "mapped.npy", array)
    return np.load(folder / "mapped.npy", mmap_mode="r")


def beside_a_byte(array):
    """A column of a structured array, whose strides are no multiples of its items."""
    rows = np.zeros(len(array), [("byte", "u1"), ("x", array.dtype, array.shape[1:])])
    rows["x"] = array
    return rows["x"]


PLAIN = {
    "reversed": lambda: (X[::-1], X[::-1].copy()),
    "flipped": lambda: (np.fliplr(X), np.fliplr(X).copy()),
    "every other, backwards": lambda: (np.repeat(X, 2, 0)[::-2], X[::-1].copy()),
    "of columns": lambda: (np.asfortranarray(X), X),
    "transposed": lambda: (np.ascontiguousarray(X.T).T, X),
    "read-only": lambda: (read_only(X), X),
    "broadcast": lambda: (np.broadcast_to(X[:1], X.shape), np.repeat(X[:1], N, 0)),
    "of a structured array": lambda: (beside_a_byte(X), X),
    "big-endian": lambda: (X.astype(">f4"), X),
    "matrix": lambda: (np.asmatrix(X), X),
    "masked": lambda: (np.ma.masked_array(X, MASK), np.where(MASK, np.float32(NAN), X)),
    "masked, big-endian and reversed": lambda: (
        np.ma.masked_array(X, MASK).astype(">f4")[::-1],
        np.where(MASK, np.float32(NAN), X)[::-1].copy(),
    ),
    "masked nowhere": lambda: (np.ma.masked_array(X), X),
    "masked nowhere, integers": lambda: (np.ma.masked_array(Y), Y),
    "bool": lambda: (X > 1, X > 1),
    "float16": lambda: (X.astype("f2"), X.astype("f2")),
    "complex": lambda: (X + 1j, (X + 1j)),
    "uint8": lambda: (X.astype("u1"), X.astype("u1")),
    "uint16": lambda: (np.array([1, 65535, 3], "u2"), np.array([1, 65535, 3])),
    "uint32": lambda: (np.array([1, 2**32 - 1, 3], "u4")[::-1], np.array([3, 2**32 - 1, 1])),
    "uint64": lambda: (np.array([1, 2**63 - 1, 3], ">u8"), np.array([1, 2**63 - 1, 3])),
    "long double": lambda: (np.array([0.1, 2**53, NAN, np.inf], np.longdouble), np.array([0.1, 2**53, NAN, np.inf])),
    "long complex": lambda: (np.array([0.5 + 1j], np.clongdouble), np.array([0.5 + 1j])),
    "empty": lambda: (np.zeros((0, 4), "u8"), np.zeros((0, 4), np.int64)),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_the_tensor_has_the_values_of_the_array(kind):
    given, expected = PLAIN[kind]()
    before = given.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = as_rows({"x": given}, "here")["x"]
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.numpy().dtype == expected.dtype
    if not given.flags.writeable:
        found.zero_()  # what a module may do must not reach memory that cannot be written to
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ma.masked_array(Y, Y == 2), "field 'x' must have all its values, as int64 has no NaN, got 4 masked ones"),
        (np.ma.masked_array(Y, Y == 2), "the first at index 2"),
        (np.ma.masked_array(X > 1, MASK), "got 5 masked ones, the first at index 5"),
        (np.array([1, 2**63], "u8"), r"must be <= 9,223,372,036,854,775,807.*at index 1: 9223372036854775808"),
        (np.array([1, 2**53 + 1], np.longdouble), "must have numbers that float64 has.*at index 1: 9007199254740993"),
        (np.array([np.longdouble("1e4000")]), "must have numbers that float64 has.*at index 0"),
        (np.array(["a", "b"]), "number the classes"),
        (np.array([b"a", b"b"]), "number the classes"),
        (np.array(["2024-01-01"], "M8[D]"), "which torch has no type for: make numbers of them"),
        (np.array([1], "m8[s]"), "which torch has no type for: make numbers of them"),
        (np.array([1, None]), r"x\.astype\('float32'\)"),
        (np.array([(1, 2.0)], "i4,f4"), "pass its columns by name"),
        (np.array([b"12"], "V2"), "which torch has no type for"),
        (np.ma.masked_array(["a", "b"], [True, False]), "number the classes"),
    ],
)
def test_what_torch_has_not_is_an_error_that_names_the_field(given, message):
    with pytest.raises(DataError, match=message) as error:
        as_rows({"x": given}, "here")
    assert str(error.value).startswith("here: field 'x'")


TENSORS = {
    "of grad": lambda: (torch.tensor(X).requires_grad_(), torch.tensor(X)),
    "not contiguous": lambda: (torch.tensor(X).t().contiguous().t(), torch.tensor(X)),
    "conjugate": lambda: (torch.tensor(X + 1j).conj(), torch.tensor(X - 1j)),
    "negative": lambda: (torch.tensor(X + 1j).conj().imag, -torch.ones(N, 4)),
    "uint16": lambda: (torch.tensor([1, 65535], dtype=torch.uint16), torch.tensor([1, 65535])),
    "uint32": lambda: (torch.tensor([1, 2**32 - 1], dtype=torch.uint32), torch.tensor([1, 2**32 - 1])),
    "uint64": lambda: (torch.tensor([1, 2**63 - 1], dtype=torch.uint64), torch.tensor([1, 2**63 - 1])),
    "bool": lambda: (torch.tensor(Y > 0), torch.tensor(Y > 0)),
    "bfloat16": lambda: (torch.tensor(X).bfloat16(), torch.tensor(X).bfloat16()),
    "expanded": lambda: (torch.tensor(X[:1]).expand(N, 4), torch.tensor(X[:1]).repeat(N, 1)),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_all_kinds_are_gathered(kind):
    given, expected = TENSORS[kind]()
    index = np.arange(len(given))[::-1]
    found = descend.predict(nn.Identity(), given, batch_size=1)
    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype
    made = tensor_reader({"x": given}, "test")
    assert torch.equal(made.read(index.copy())["x"], expected.flip(0))
    assert torch.equal(made.read_consecutive(0, len(given))["x"], expected)
    assert not made.read(index.copy())["x"].requires_grad


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masked_tensors_and_those_without_rows():
    found = widened(plain_tensor("x", masked_tensor(torch.tensor(X), torch.tensor(~MASK))))
    np.testing.assert_array_equal(found.numpy(), np.where(MASK, np.float32(NAN), X))
    with pytest.raises(DataError, match=r"'x' must have all its values.* got 4 masked ones, the first at index 2"):
        plain_tensor("x", masked_tensor(torch.tensor(Y), torch.tensor(Y != 2)))
    with pytest.raises(DataError, match="at index 1: 9223372036854775808"):
        plain_tensor("x", torch.tensor([1, 2**63], dtype=torch.uint64))
    for odd in (
        torch.tensor(X).to_sparse_csr(),
        torch.ones(3, device="meta"),
        torch.nested.nested_tensor([torch.ones(2)]),
    ):
        with pytest.raises(DataError, match="'x' must be a tensor with a row for each sample, got one that is"):
            plain_tensor("x", odd)


def test_rows_of_a_sparse_tensor_are_samples():
    found = descend.predict(nn.Identity(), torch.tensor(X).to_sparse(), batch_size=5)
    assert torch.equal(found.to_dense(), torch.tensor(X))


def test_a_plain_array_is_not_copied(tmp_path):
    for array in (X, X[::2], X.T, np.broadcast_to(X, (2, N, 4)), mapped(X, tmp_path), np.zeros(3, "u2")):
        assert np.shares_memory(plain_array("x", array), array)
        assert native(array) is array
    large = mapped(np.arange(10, dtype="u2"), tmp_path)
    reader = tensor_reader({"x": large}, "train")
    assert reader.read(np.array([3, 0]))["x"].tolist() == [3, 0]
    assert np.shares_memory(reader._rows["x"].numpy(), large)  # a file larger than the memory stays one


# ---- samples


class Samples(Dataset):
    def __init__(self, *fields):
        self.fields = fields

    def __len__(self):
        return len(self.fields[0])

    def __getitem__(self, i):
        return tuple(field[i] for field in self.fields)


class Stream(IterableDataset):
    def __init__(self, *fields):
        self.fields = fields

    def __iter__(self):
        return zip(*self.fields, strict=True)


def test_samples_with_odd_arrays_are_put_into_batches():
    masked = np.ma.masked_array(X, MASK)
    odd = [row[::-1] if i % 2 else row for i, row in enumerate(masked)]
    expected = np.where(MASK, np.float32(NAN), X)
    expected[1::2] = expected[1::2, ::-1]
    pair = Samples(odd, Y.astype("u2"))
    loader = DataLoader(pair, batch_size=5)
    streams = (Stream(odd, Y.astype("u2")), DataLoader(Stream(odd, Y.astype("u2")), batch_size=5))
    for data in (pair, loader, *streams):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = descend.predict(nn.Identity(), data, batch_size=5)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_read_only_samples_give_no_warning(tmp_path):
    for rows in (mapped(X, tmp_path), read_only(X)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = descend.predict(nn.Identity(), Samples(rows, Y), batch_size=5)
        np.testing.assert_array_equal(found.numpy(), X)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (np.ma.masked_array(Y, Y == 2), "sample 2 of Samples for 'test' cannot be used: field '1' must have a value"),
        (np.ma.masked_array(X, MASK)[:, 2], "sample 5 of Samples for 'test' cannot be used: field '1' must have a val"),
        (np.ma.masked_array(X.astype(int), MASK), r"sample 5 of .*: field '1' must have all its values.*at index 2"),
    ],
)
def test_a_masked_value_of_a_sample_is_an_error_that_names_it(field, message):
    with pytest.raises(DataError, match=message):
        descend.predict(nn.Identity(), Samples(X, field), batch_size=5)


def test_samples_that_are_plain_already_are_handed_on():
    for sample in ((X[0], 1), {"x": X[0], "y": (X[1], "a")}, [torch.ones(2)], X[0], 3, None):
        assert plain_sample(sample) is sample
    changed = plain_sample({"x": (X[0][::-1], 3), "y": np.longdouble(0.5)})
    assert changed["x"][0].tolist() == X[0][::-1].tolist()
    assert changed["x"][1] == 3
    assert type(changed["y"]) is np.float64


# ---- every door


def train(data, module=None, **more):
    given = {"batch_size": 5, "stop": descend.Epochs(1), "verbose": False, "shuffle": False, **more}
    return descend.fit(
        module or nn.Linear(4, 3), "cross_entropy", data, optimizer=functools.partial(torch.optim.SGD, lr=0.1), **given
    )


def weights_after(data):
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    train(data, module, shuffle=False)
    return module.weight.detach()


LABELS = [lambda d=d: Y.astype(d) for d in ("u2", "u4", "u8", ">u8", "i1", "i2", ">i4", "bool")]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: torch.from_numpy(native(a)), lambda a: a[::-1][::-1]])
def test_labels_of_any_type_of_integers_train_alike(labels, wrap):
    given = labels()
    expected = weights_after((X, given.astype(np.int64)))
    for data in ((X, wrap(given)), {"x": X, "y": wrap(given)}, Samples(X, wrap(given))):
        assert torch.equal(weights_after(data), expected)
    batches = [(X[first : first + 5], wrap(given)[first : first + 5]) for first in (0, 5, 10)]
    assert torch.equal(weights_after(batches), expected)


def test_flipped_arrays_train_evaluate_and_compare_as_their_copies():
    flipped, module = (X[::-1, ::-1], Y[::-1]), nn.Linear(4, 3)
    copied = tuple(part.copy() for part in flipped)
    assert torch.equal(weights_after(flipped), weights_after(copied))
    assert torch.equal(descend.predict(module, flipped[0]), descend.predict(module, copied[0]))
    first, second = (
        descend.evaluate(module, "cross_entropy", data, metrics=["accuracy"]) for data in (flipped, copied)
    )
    assert first == second
    found = [
        descend.find_learning_rate(
            nn.Linear(4, 3), "cross_entropy", data, optimizer=torch.optim.SGD, batch_size=5, steps=5
        ).losses
        for data in (flipped,)
    ]
    assert np.isfinite(found[0]).all()


def test_a_comparison_takes_odd_arrays():
    found = descend.compare(
        lambda: nn.Linear(4, 3),
        "cross_entropy",
        (X[::-1], Y.astype("u2")[::-1]),
        arms=["SGD"],
        batch_size=4,
        steps=2,
        trials=1,
        seeds=2,
        searches=1,
    )
    assert found is not None


def test_masked_features_reach_a_module_as_nan_and_masked_labels_are_an_error():
    masked = np.ma.masked_array(X, MASK)
    expected = torch.from_numpy(np.where(MASK, np.float32(NAN), X))
    for data in (masked, (masked,), {"a": masked}, [(masked[:5],), (masked[5:],)], descend.data.read((masked, Y))):
        found = descend.predict(nn.Identity(), data, targets=1 if hasattr(data, "fields") else 0)
        assert torch.equal(found.isnan(), expected.isnan())
    with pytest.raises(DataError, match=r"field '1' must have all its values.*got 4 masked ones, the first at index 2"):
        train((X, np.ma.masked_array(Y, Y == 2)))
    with pytest.raises(DataError, match=r"field 'y' must have all its values"):
        descend.data.read({"x": X, "y": np.ma.masked_array(Y, Y == 2)}, target="y")
    with pytest.raises(DataError, match="4 targets are not finite numbers"):
        descend.evaluate(nn.Linear(4, 1), "mse", (X, np.ma.masked_array(Y, Y == 2).astype("f4")[:, None]))


def test_a_structured_array_is_a_table():
    kind = [("a", "f8"), ("b", [("c", "i4"), ("d", "u2", 2)]), ("y", "i8")]
    table = np.zeros(N, kind)
    table["a"], table["b"]["c"], table["y"] = X[:, 0], Y, Y
    assert list(columns_of(table)) == ["a", "b.c", "b.d", "y"]
    assert columns_of(table)["b.d"].shape == (N, 2)
    plain = table[["a", "y"]]
    for data in (plain, plain.view(np.recarray)):
        assert train(data, nn.Linear(1, 3), targets=["y"]).reason == "finished 1 of 1 epochs"
        assert descend.predict(nn.Linear(1, 3), data[["a"]]).shape == (N, 3)
        np.testing.assert_array_equal(descend.data.read(data).read(np.arange(N))["a"], table["a"])
    with pytest.raises(DataError, match=r"field '0' is an array of .* pass its columns by name"):
        train((plain, Y))


def test_a_reader_of_ones_own_may_return_any_array():
    class Own:
        role, shuffle = "test", False

        def __init__(self):
            self.fields = {"x": descend.data.Field((4,), np.dtype("f4"))}

        def __len__(self):
            return N

        def read(self, indices, epoch=0):
            return {"x": read_only(np.ma.masked_array(X, MASK)[indices][:, ::-1])}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = descend.predict(nn.Identity(), Own())
    np.testing.assert_array_equal(found.numpy(), np.where(MASK, np.float32(NAN), X)[:, ::-1])


def test_a_data_set_of_tensors_of_unsigned_integers():
    data = TensorDataset(torch.from_numpy(X), torch.tensor(Y, dtype=torch.uint16))
    assert torch.equal(weights_after(data), weights_after((X, Y)))
    assert torch.equal(weights_after(DataLoader(data, batch_size=5)), weights_after((X, Y)))
    assert descend.data.read(data).read(np.arange(N))["1"].tolist() == Y.tolist()
