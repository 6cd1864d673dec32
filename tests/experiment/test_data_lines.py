"""What a run says of its data before it trains, and targets of tables that are class numbers or are missing."""

import functools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import descend
from descend.errors import DataError, DescendError

N = 12
X = np.random.default_rng(0).normal(size=(N, 2)).round(3)


def fit(data, loss="cross_entropy", **options):
    given = {"batch_size": 4, "stop": descend.Epochs(1), "targets": ["y"], **options}
    outputs = 3 if loss == "cross_entropy" else 1
    module = torch.nn.Linear(2, outputs)
    return descend.fit(module, loss, data, optimizer=functools.partial(torch.optim.SGD, lr=0.01), **given)


def write(path, y):
    match path.suffix:
        case ".csv":
            rows = [f"{a},{b},{'' if one is None else one}" for (a, b), one in zip(X.tolist(), y, strict=True)]
            path.write_text("\n".join(["a,b,y", *rows]) + "\n")
        case ".parquet":
            pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": pa.array(y)}), path)
        case _:
            rows = [{"a": a, "b": b, "y": one} for (a, b), one in zip(X.tolist(), y, strict=True)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl"])
@pytest.mark.parametrize("number", [int, float])
def test_a_missing_class_number_is_named(tmp_path, name, number):
    """pandas writes integers of which one is missing as 0.0, 1.0."""
    y = [number(i % 3) for i in range(N)]
    fit(write(tmp_path / name, y))
    y[5] = None
    path = write(tmp_path / name, y)
    with pytest.raises(DataError, match=r"sample 5 of reader .*row 5\) cannot be read: 'y' is a .* and is missing"):
        fit(path)
    with pytest.warns(UserWarning, match="sample 5 .* is replaced by the next one"):
        fit(path, skip_bad=1)


def test_class_numbers_with_a_point_are_those_without(tmp_path):
    results = []
    for number in (int, float):
        torch.manual_seed(0)
        path = write(tmp_path / "a.csv", [number(i % 3) for i in range(N)])
        results.append(fit(path, metrics=["accuracy"]).history[-1]["objective"])
        torch.manual_seed(0)
        results.append(descend.evaluate(torch.nn.Linear(2, 3), "cross_entropy", path, targets=["y"])["objective"])
    assert results[:2] == results[2:]
    with pytest.raises(DataError, match=r"row 1\).*'y' is a class number, and 0\.5 is no integer"):
        fit(write(tmp_path / "a.csv", [0.0, 0.5, *[1.0] * (N - 2)]))


def test_missing_targets_of_a_regression(tmp_path):
    for y in ([3, None, *range(N - 2)], [True, None, *[False] * (N - 2)]):
        path = write(tmp_path / "a.parquet", y)
        reader = descend.data.read(path, target="y")
        assert reader.fields["y"].dtype.kind in "ib"
        with pytest.raises(DataError, match=r"row 1\) cannot be read: 'y' is a target, and is missing"):
            reader.read(np.arange(3))
        assert reader.read(np.array([0]))["y"] == y[0]
    floats = descend.data.read(write(tmp_path / "a.parquet", [0.5, None, *[1.5] * (N - 2)]), target="y")
    assert np.isnan(floats.column("y")).sum() == 1
    assert np.isnan(descend.data.read(write(tmp_path / "a.parquet", [3, None, *[1] * 10])).column("y")).sum() == 1


def test_what_is_left_out_is_said_before_training(tmp_path, capsys):
    rows = [f"{i},{a},{i % 3},caf\xe9" for i, a in enumerate(X[:, 0].tolist())]
    (tmp_path / "a.csv").write_bytes("\n".join([",a,y,name", *rows]).encode("latin-1"))
    module = Column()
    optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    data = str(tmp_path / "a.csv")
    descend.fit(module, "cross_entropy", data, optimizer=optimizer, batch_size=4, stop=descend.Epochs(1), targets=["y"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("left out: 'column 1': it has no name in the first row") for line in lines) == 1
    assert sum(line.startswith("left out: 'name': 'name' holds text that is not UTF-8") for line in lines) == 1
    assert lines.index(next(line for line in lines if line.startswith("left out"))) == 0


class Column(torch.nn.Module):
    """Takes one column."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 3)

    def forward(self, a):
        return self.layer(a.reshape(-1, 1))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "memory"])
@pytest.mark.parametrize(("kind", "said"), [(torch.float32, True), (torch.float64, False)])
def test_integers_that_weights_cannot_hold_are_said(tmp_path, capsys, name, kind, said):
    table = {"a": np.arange(2**24 - 1, 2**24 - 1 + N), "b": X[:, 0], "y": np.arange(N) % 3}
    data = {key: torch.as_tensor(value) for key, value in table.items()}
    if name != "memory":
        data = str(tmp_path / name)
        pq.write_table(pa.table(table), data) if name == "a.parquet" else (tmp_path / name).write_text(
            "a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in zip(*(v.tolist() for v in table.values()), strict=True))
        )
    module = torch.nn.Linear(2, 3).to(kind)
    optimizer = functools.partial(torch.optim.SGD, lr=1e-20)
    descend.fit(module, "cross_entropy", data, optimizer=optimizer, batch_size=4, stop=descend.Epochs(1), targets=["y"])
    out = capsys.readouterr().out
    assert ("rounded: integers beyond 16,777,216 are not all numbers of float32" in out) == said
    assert ("'a' up to 16,777,226" in out) == said


def test_text_beside_integers_that_weights_cannot_hold_is_an_error_of_ours(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n" + "".join(f"{2**24 + i},word {i},{i % 3}\n" for i in range(N)))
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(DescendError, match="'b'"):
        descend.fit(
            torch.nn.Linear(2, 3),
            "cross_entropy",
            str(tmp_path / "a.csv"),
            optimizer=optimizer,
            batch_size=4,
            stop=descend.Epochs(1),
            targets=["y"],
        )
