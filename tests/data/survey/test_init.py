"""Surveys of data with known contents and known faults."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from descend.data import read, split
from descend.data.survey import readers_of, survey

RNG = np.random.default_rng(0)
X = RNG.normal(size=100)
KIND = np.where(X > 0, "up", "down")


def kinds(found):
    return sorted({(problem.kind, problem.field) for problem in found.problems})


def surveyed(columns, **options):
    return survey({"train": read({name: np.asarray(values) for name, values in columns.items()}, **options)})


def test_numbers_of_a_clean_table(tmp_path):
    pq.write_table(
        pa.table({"x": X, "kind": KIND, "v": list(np.arange(200.0).reshape(100, 2))}), tmp_path / "a.parquet"
    )
    found = survey({"train": read(tmp_path / "a.parquet", target="kind")})
    assert found.problems == []
    assert (found.format, found.counts, found.read) == ("parquet", {"train": 100}, {"train": 100})
    x, kind, v = (found.fields["train"][name] for name in ("x", "kind", "v"))
    assert (x.count, x.missing, x.minimum, x.maximum) == (100, 0, X.min(), X.max())
    np.testing.assert_allclose([x.mean, x.deviation], [X.mean(), X.std()], rtol=1e-12)
    assert (v.count, v.minimum, v.maximum, v.mean) == (200, 0, 199, 99.5)
    assert dict(kind.values) == {0: (KIND == "down").sum(), 1: (KIND == "up").sum()}
    assert kind.classes == ["down", "up"]
    assert len(found.samples) == 8
    assert found.samples[3]["x"] == X[3]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"x": np.where(np.arange(100) == 7, np.nan, X)}, [("missing", "x")]),
        ({"x": X, "t": np.where(np.arange(100) < 3, "", KIND)}, [("missing", "t")]),
        ({"x": np.where(np.arange(100) == 7, np.inf, X)}, [("infinite", "x")]),
        ({"x": X, "c": np.ones(100)}, [("constant", "c")]),
        ({"x": X, "c": np.full(100, "a")}, [("constant", "c")]),
        ({"x": np.where(np.arange(100) == 7, 1e9, X)}, [("out of range", "x")]),
        ({"x": X, "label": np.arange(100) % 3 + 1}, [("labels", "label")]),
        ({"x": X, "label": np.arange(100) % 3 - 1}, [("labels", "label")]),
        ({"x": np.where(np.arange(100) == 7, X[0], X), "id": np.arange(100)}, [("duplicate", "")]),
        ({"x": X, "label": np.arange(100) % 3, "id": [f"a{i}" for i in range(100)]}, []),
        ({"x": np.arange(100)}, []),
    ],
)
def test_each_fault_is_found(columns, wanted):
    assert kinds(surveyed(columns)) == wanted


def test_problems_say_where():
    [missing] = surveyed({"x": np.where(np.isin(np.arange(100), [7, 9]), np.nan, X), "z": X}).problems
    assert (missing.message, missing.samples, missing.count) == ("'x' is missing in 2 of 100 samples", (7, 9), 2)
    [labels] = surveyed({"x": X, "label": np.arange(100) % 3 + 1}).problems
    assert labels.message == "'label' goes to 3 and never is 0"


def test_leaks_between_roles():
    columns = {"x": X, "y": np.where(np.arange(100) == 3, 9.0, X), "id": np.arange(100)}
    assert survey(split(columns, {"train": 0.5, "test": 0.5})).problems == []
    test = {name: values[[3, 5]].copy() for name, values in columns.items()}
    test["y"][0], test["id"][:] = 8.0, [1000, 1001]
    readers = {"train": read(columns, target="y"), "test": read(test, role="test", target="y")}
    [leak] = [problem for problem in survey(readers).problems if problem.kind == "leak"]
    assert (leak.role, leak.count, leak.samples) == ("test", 2, (0,))
    assert "sample 0 that of 3" in leak.message


def test_unreadable_samples(tmp_path):
    for i in range(6):
        Image.fromarray(RNG.integers(0, 256, (4, 4)).astype(np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "4.png").write_bytes(b"no image")
    found = survey({"train": read(tmp_path)})
    [problem] = found.problems
    assert (problem.kind, problem.samples, problem.count) == ("unreadable", (4,), 1)
    assert "sample 4 of reader 'images'" in problem.message
    assert (found.read, found.fields["train"]["image"].count) == ({"train": 6}, 5 * 16)


def test_large_data_are_sampled():
    found = survey({"train": read({"x": np.arange(1000.0)})}, limit=50)
    assert 40 < found.read["train"] <= 50
    assert [sample["x"] for sample in found.samples] == list(range(8))
    assert found.fields["train"]["x"].maximum > 900


def test_deviations_of_large_numbers():
    times = 1.7e9 + RNG.normal(size=300)
    one = surveyed({"x": times}).fields["train"]["x"]
    np.testing.assert_allclose([one.mean, one.deviation], [times.mean(), times.std()], rtol=4e-7)  # 1.7e9 ε


def test_roles_of_files(tmp_path):
    np.save(tmp_path / "one.npy", X)
    assert list(readers_of(tmp_path / "one.npy")) == ["train"]
    (tmp_path / "both").mkdir()
    for role, count in (("train", 80), ("val", 20)):
        np.save(tmp_path / "both" / f"{role}.npy", X[:count])
    readers = readers_of(tmp_path / "both")
    assert {role: len(reader) for role, reader in readers.items()} == {"train": 80, "validate": 20}
    assert ("leak", "") in kinds(survey(readers))
    assert list(readers_of(tmp_path / "both", role="validate")) == ["validate"]


def test_padding_of_lists_of_text_is_not_missing(tmp_path):
    pq.write_table(pa.table({"t": [["a", "bcd"], [], ["e", ""]]}), tmp_path / "a.parquet")
    found = survey({"train": read(tmp_path / "a.parquet")})
    one = found.fields["train"]["t"]
    assert (one.count, one.missing, one.minimum, one.maximum) == (3, 1, 0, 3)
    assert ("missing", "t") in kinds(found)
    assert next(problem.count for problem in found.problems if problem.kind == "missing") == 1


def test_roles_of_arrays_and_of_groups_within_a_file(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, x_test=np.append(X[:1], 7.0))
    readers = readers_of(tmp_path / "a.npz")
    assert {role: len(reader) for role, reader in readers.items()} == {"train": 100, "test": 2}
    assert ("leak", "") in kinds(survey(readers))
    np.savez(tmp_path / "a.npz", x=X)
    assert list(readers_of(tmp_path / "a.npz")) == ["train"]
