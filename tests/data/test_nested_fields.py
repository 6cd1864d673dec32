"""Nested samples as named fields, and back."""

import numpy as np
import pytest
import torch

from descend.data.nested_fields import as_rows, fields_of, form_of, nested, samples_as_batches
from descend.data.plain_arrays import native
from descend.errors import DataError


@pytest.mark.parametrize(
    ("sample", "fields"),
    [
        ((1, 2), {"0": 1, "1": 2}),
        ([1, (2, 3)], {"0": 1, "1/0": 2, "1/1": 3}),
        ({"ids": 1, "mask": 2}, {"ids": 1, "mask": 2}),
        (((1, 2), {"label": 3}), {"0/0": 1, "0/1": 2, "1/label": 3}),
        (5, {"0": 5}),
        ({}, {}),
    ],
)
def test_leaves_by_name(sample, fields):
    assert fields_of(sample) == fields
    assert list(fields_of(sample)) == list(fields)


@pytest.mark.parametrize("key", [3, "a/b", None])
def test_a_key_that_is_no_name_is_refused(key):
    with pytest.raises(DataError, match=f"keys of a sample must be strings without '/', got {key!r}"):
        fields_of((1, {key: 2}))


@pytest.mark.parametrize(
    "sample",
    [
        {"0": 1, "1": 2},
        {"x": (1, {"a": 2, "b": (3, 4)}), "y": 5},
        {"0": {"left": 1}, "1": ((2, 3), 4)},
    ],
)
def test_unflattening_gives_what_was_flattened(sample):
    assert nested(fields_of(sample)) == sample


def test_eleven_entries_of_a_tuple_stay_in_their_order():
    sample = {"x": tuple(range(11))}
    assert nested(fields_of(sample)) == sample


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (True, "a number"),
        (3, "a number"),
        (1j, "a number"),
        (np.float32(2), "a number"),
        (np.zeros((2, 3), np.uint8), "(2, 3) uint8"),
        (torch.zeros(4, dtype=torch.bfloat16), "(4,) bfloat16"),
        (torch.tensor(1), "() int64"),
        ("cat", "str"),
        (None, "NoneType"),
    ],
)
def test_forms(value, form):
    assert form_of(value) == form


def test_rows_are_tensors_that_share_memory_with_arrays():
    x, y = np.zeros((2, 3), np.float32), torch.ones(2)
    rows = as_rows({"x": x, "y": y}, "here")
    x[0, 0] = 7
    assert rows["x"][0, 0] == 7
    assert rows["y"] is y


def test_arrays_of_another_byte_order_have_their_values():
    rows = as_rows(np.array([1.5, -2.0], dtype=">f8"), "here")
    assert rows["0"].tolist() == [1.5, -2.0]
    plain = np.array([1, 2])
    assert native(plain) is plain
    assert native("text") == "text"


@pytest.mark.parametrize(
    ("batch", "count", "message"),
    [
        ((torch.zeros(2), "cats"), None, "here: field '1' must be a tensor or an array .*, got a str; remove it"),
        ((torch.zeros(2), torch.tensor(1.0)), None, "field '1' must be .*, got one number, as of a single sample"),
        ({"x": np.float64(1)}, None, "field 'x' must be .*, got one number"),
        ({"x": 3}, None, "field 'x' must be .*, got a int"),
        ({"x": np.array(["a", "b"])}, None, "field 'x' is an array of <U1, which torch has no type for"),
        ({"x": np.array([None, 1])}, None, "field 'x' is an array of object"),
        ((torch.zeros(2), torch.zeros(3)), None, "fields must be of one length, got lengths {'0': 2, '1': 3}"),
        ((torch.zeros(2), torch.zeros(2)), 3, "fields must be of length 3, got lengths {'0': 2, '1': 2}"),
        ({}, None, "fields must be of one length, got lengths {}"),
    ],
)
def test_what_are_no_rows_is_refused_with_place_and_field(batch, count, message):
    with pytest.raises(DataError, match=message):
        as_rows(batch, "here", count)


class Series:
    def to_numpy(self): ...


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([(torch.ones(4), torch.tensor(1))] * 3, "a list is taken as mini-batches"),
        ([([1.0, 2.0], 1)] * 3, "a list is taken as mini-batches"),
        ([{"x": torch.ones(4), "y": 1}], "a list is taken as mini-batches"),
        (([[1.0, 2.0]], [1]), "part 0 is a list of Python values: pass torch.tensor"),
        ((torch.ones(2, 3), ["cat", "dog"]), "part 1 is a list of Python values: number the classes"),
        ((torch.ones(2, 3), Series()), "part 1 is a Series: pass part.to_numpy()"),
    ],
)
def test_samples_that_would_be_taken_as_batches(data, said):
    assert samples_as_batches(data).startswith(said)


@pytest.mark.parametrize("data", [[(torch.ones(4, 2), torch.ones(4))], [torch.ones(4, 2)], ((torch.ones(2),),), [], ()])
def test_batches_are_no_samples(data):
    assert samples_as_batches(data) is None


def test_text_in_an_array_says_how_to_number_it():
    with pytest.raises(DataError, match=r"numpy\.unique\(labels, return_inverse=True\)"):
        as_rows({"y": np.array(["cat", "dog"])}, "data")
