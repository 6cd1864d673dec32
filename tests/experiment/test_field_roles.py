"""Which fields a module is called with and which the loss."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError, DataError
from descend.experiment.field_roles import TARGET_NAMES, assign_fields, check_fields
from descend.experiment.losses import loss_of

X = torch.zeros(2, 3)


class Named(nn.Module):
    def forward(self, left, right):
        return left - right


class AnyNumber(nn.Module):
    def forward(self, x, *others):
        return x


class AnyNames(nn.Module):
    def forward(self, **given):
        return given


def roles(*names, module=None, loss="mse", targets=None, **more):
    return assign_fields(dict.fromkeys(names, X), module or AnyNumber(), loss_of(loss), targets, **more)


@pytest.mark.parametrize(
    ("names", "given", "inputs", "targets"),
    [
        (("0", "1"), {}, ("0",), ("1",)),
        (("0", "1", "2"), {}, ("0", "1"), ("2",)),
        (("0", "1", "2"), {"targets": 2}, ("0",), ("1", "2")),
        (("0",), {}, ("0",), ("0",)),
        (("0",), {"needs_targets": False}, ("0",), ()),
        (("0",), {"targets": 0, "loss": lambda o: o.mean()}, ("0",), ()),
        (("x", "answer"), {"targets": ["answer"]}, ("x",), ("answer",)),
        *((("x", name), {}, ("x",), (name,)) for name in TARGET_NAMES),
        (("x",), {"needs_targets": False}, ("x",), ()),
    ],
)
def test_inputs_and_targets(names, given, inputs, targets):
    found = roles(*names, **given)
    assert (found.inputs, found.targets) == (inputs, targets)


@pytest.mark.parametrize(
    ("names", "module", "by_name"),
    [
        (("0", "1", "2"), Named(), False),
        (("left", "right", "y"), Named(), True),
        (("x", "y"), nn.Linear(3, 3), False),  # a single input may have any name
        (("input", "y"), nn.Linear(3, 3), True),
        (("a", "b", "y"), AnyNames(), True),
    ],
)
def test_inputs_go_by_name_where_forward_has_their_names(names, module, by_name):
    assert roles(*names, module=module).by_name is by_name


def test_the_module_is_called_with_its_inputs():
    fields = {"left": X + 2, "y": X, "right": X + 1}
    found = assign_fields(fields, Named(), loss_of("mse"))
    assert found.call(Named(), found.values(fields)).eq(1).all()


def test_parts_of_nested_samples_are_put_together():
    found = roles("0/a", "0/b", "1")
    assert found.is_nested
    assert found.inputs == ("0",)
    assert found.values({"0/a": X, "0/b": X, "1": X})["0"].keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (("x", "answer"), {}, r"not clear from their names \(x, answer\): pass targets="),
        (("x", "y", "label"), {}, "not clear from their names"),
        (("x", "label"), {"targets": ["labels"]}, "no field 'labels'; it has x, label; did you mean 'label'"),
        (("0", "1"), {"targets": 3}, "the fields 0, 1, and 3 targets are needed"),
        (("0", "1"), {"targets": 2}, r"all fields \(0, 1\) are targets"),
        (
            ("left", "rihgt", "y"),
            {"module": Named()},
            "field 'rihgt' and Named.forward takes left, right; did you",
        ),
    ],
)
def test_ambiguous_fields_are_refused(names, given, message):
    with pytest.raises(ConfigurationError, match=message):
        roles(*names, **given)


@pytest.mark.parametrize(
    ("found", "known", "message"),
    [
        ("0", "0 1", r"samples of the data for 'validate' have the fields 0 .* 0, 1 \(missing: 1\)"),
        ("0 1 2", "0 1", "have the fields 0, 1, 2 and .* 0, 1: all samples need the same"),
        ("x y", "0 1", r"missing: 0, 1"),
        ("x", "x label", r"missing: label"),
        ("0/a 1", "0/a 0/b 1", r"missing: 0/b"),
    ],
)
def test_samples_without_the_fields_of_the_first_are_refused(found, known, message):
    with pytest.raises(DataError, match=message):
        check_fields(found.split(), known.split(), "the data for 'validate'")


@pytest.mark.parametrize(("found", "known"), [("0 1", "0 1"), ("y x", "x y"), ("x y number", "x y")])
def test_samples_with_the_fields_of_the_first_pass(found, known):
    check_fields(found.split(), known.split())


COLUMN = torch.arange(4.0)
NUMBERS = torch.arange(4)


class Own(nn.Module):
    """A forward of a user's; its parameter is called x."""

    def __init__(self, layer, change=lambda x: x):
        super().__init__()
        self.layer, self.change = layer, change

    def forward(self, x):
        return self.layer(self.change(x))


def output(module, fields, targets=None):
    found = assign_fields(fields, module, loss_of("mse"), targets, needs_targets=False)
    return found.call(module, found.values(fields))


@pytest.mark.parametrize("column", [COLUMN, NUMBERS, COLUMN.double(), NUMBERS > 1, COLUMN.half()], ids=repr)
@pytest.mark.parametrize("name", ["a", "input", "x"])
@pytest.mark.parametrize("module", [nn.Linear(1, 3), nn.Sequential(nn.Linear(1, 3)), Own(nn.Linear(1, 3))], ids=repr)
def test_one_column_is_the_matrix_that_two_are(module, name, column):
    """Whatever its type and its name, which may be the one that torch gave a parameter."""
    assert output(module, {name: column}).shape == (4, 3)
    wanted = module(column.float().reshape(-1, 1))
    torch.testing.assert_close(output(module, {name: column}), wanted, rtol=0, atol=0)


def test_one_column_beside_a_target():
    found = assign_fields({"a": COLUMN, "y": COLUMN}, nn.Linear(1, 1), loss_of("mse"))
    assert (found.inputs, found.targets, found.joined) == (("a",), ("y",), True)


@pytest.mark.parametrize(
    ("fields", "module"),
    [
        ({"0": COLUMN}, nn.Identity()),  # an array, and no table
        ({"0": COLUMN, "1": COLUMN}, nn.Identity()),
        ({"samples": COLUMN}, nn.Identity()),  # a file that is one array
        ({"x": COLUMN}, Own(nn.Linear(1, 3), lambda x: x.unsqueeze(1))),
        ({"x": COLUMN}, Own(nn.Identity())),  # computes with the column as it is
        ({"a": COLUMN + 1j}, nn.Identity()),
        ({"a": COLUMN[:, None]}, nn.Linear(1, 3)),
        ({"a": NUMBERS}, nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3))),
        ({"a": NUMBERS}, Own(nn.Embedding(4, 3))),
        ({"x": NUMBERS}, Own(nn.Embedding(4, 3))),
    ],
)
def test_what_is_no_table_of_numbers_stays_as_it_is(fields, module):
    found = assign_fields(fields, module, loss_of("mse"), needs_targets=False)
    assert not found.joined
    name = found.inputs[0]
    assert torch.equal(output(module, fields), module(fields[name]))


def test_several_columns_of_indices_stay_integers_where_an_embedding_takes_them():
    module = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(4, 3))
    assert output(module, {"a": NUMBERS, "b": NUMBERS}).shape == (4, 3)
    with pytest.raises(RuntimeError, match="indices"):  # a column of them is a number, so all are
        output(module, {"a": NUMBERS, "b": COLUMN})


def test_finding_out_the_form_of_a_column_leaves_no_trace():
    module = Own(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1), nn.Linear(1, 3)))
    module.layer[2].eval()
    state, before = torch.get_rng_state(), {name: t.clone() for name, t in module.state_dict().items()}
    assert assign_fields({"x": COLUMN, "y": COLUMN}, module, loss_of("mse")).joined
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert [part.training for part in module.layer] == [True, True, False]


def _written(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text(",".join(columns) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("values", [[i + 0.5 for i in range(12)], list(range(12))], ids=["floats", "integers"])
@pytest.mark.parametrize("form", ["csv", "parquet", "npz", "arrow", "dictionary", "structured"])
def test_a_table_of_one_feature_goes_through_every_door(tmp_path, form, values):
    """What comes out is that of the matrix (n, 1)."""
    columns = {"a": values, "y": [i % 3 for i in range(12)]}
    arrays = {name: np.array(some) for name, some in columns.items()}
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", **arrays)
    rows = np.array(list(zip(*columns.values(), strict=True)), [(name, some.dtype) for name, some in arrays.items()])
    data = {
        "csv": _written(tmp_path / "a.csv", columns),
        "parquet": str(tmp_path / "a.parquet"),
        "npz": str(tmp_path / "a.npz"),
        "arrow": table,
        "dictionary": arrays,
        "structured": rows,
    }[form]
    matrix = (torch.tensor(values, dtype=torch.float32)[:, None], torch.tensor(columns["y"]))
    module = nn.Linear(1, 3)
    assert torch.equal(descend.predict(module, data, targets=["y"]), descend.predict(module, matrix[0]))
    found = descend.evaluate(module, "cross_entropy", data, targets=["y"], metrics=["accuracy"])
    assert found == descend.evaluate(module, "cross_entropy", matrix, metrics=["accuracy"])
    trained = []
    for given, targets in ((data, ["y"]), (matrix, None)):
        module = nn.Linear(1, 3)
        with torch.no_grad():
            module.weight.fill_(0.1)
            module.bias.zero_()
        how = {"batch_size": 5, "stop": descend.Epochs(2), "targets": targets, "verbose": False}
        descend.fit(module, "cross_entropy", given, optimizer=functools.partial(torch.optim.SGD, lr=0.01), **how)
        trained.append(module.weight.detach())
    assert torch.equal(*trained)


def test_a_comparison_takes_a_table_of_one_feature():
    data = {"a": torch.arange(12.0), "y": torch.arange(12) % 3}
    more = {"batch_size": 4, "steps": 2, "trials": 1, "seeds": 2, "searches": 1, "targets": ["y"]}
    assert descend.compare(lambda: nn.Linear(1, 3), "cross_entropy", data, arms=["SGD"], **more) is not None


class _OfTwo(nn.Module):
    def forward(self, a, b, scale=1.0):
        return (a + b) * scale


@pytest.mark.parametrize("given", [{"a"}, {"a", "scale"}])
def test_a_field_that_forward_needs_and_samples_do_not_have_is_named(given):
    fields = {name: torch.ones(4, 2) for name in (*sorted(given), "y")}
    with pytest.raises(ConfigurationError, match=r"_OfTwo\.forward needs 'b' and a sample has a.* beside its targets"):
        assign_fields(fields, _OfTwo(), loss_of("mse"))
