"""Splits: sizes, proportions and groups, for any seed."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import descend
from descend.data import Loading, open_data, read, split
from descend.data.splits import data_of_roles, is_split
from descend.errors import ConfigurationError, DataError


def table(labels, groups=None):
    count = len(labels)
    return read(
        {"x": np.arange(count, dtype=np.float32), "label": labels, "group": labels if groups is None else groups}
    )


def ids(reader):
    return reader.read(np.arange(len(reader)))["x"].astype(int).tolist()


SIZES = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4)


@given(seed=st.integers(0, 5), count=st.integers(40, 200), weights=SIZES, classes=st.integers(1, 5))
def test_fractions_never_overlap_and_keep_the_proportions(seed, count, weights, classes):
    labels = np.random.default_rng(seed).integers(0, classes, count)
    fractions = dict(zip(descend.data.ROLES, (w / sum(weights) for w in weights), strict=False))
    reader = table(labels)
    for parts in (split(reader, fractions, seed=seed), split(reader, fractions, seed=seed, stratify="label")):
        assert sorted(i for part in parts.values() for i in ids(part)) == list(range(count))
        for role, fraction in fractions.items():
            assert abs(len(parts[role]) - fraction * count) < 1
            assert parts[role].role == role
    for role in fractions:
        found = np.bincount(labels[ids(parts[role])], minlength=classes)
        exact = np.bincount(labels, minlength=classes) * len(parts[role]) / count
        assert (abs(found - exact) < len(fractions)).all()
    again = split(reader, fractions, seed=seed, stratify="label")
    assert [ids(again[role]) for role in fractions] == [ids(parts[role]) for role in fractions]


def test_sizes_of_halves_are_off_by_less_than_one_sample():
    fractions = {"train": 1 / 3, "validate": 1 / 6, "test": 1 / 3, "tournament": 1 / 6}
    sizes = [len(part) for part in split(table(np.zeros(177)), fractions, seed=0).values()]
    assert sizes == [59, 30, 59, 29]


def test_another_seed_is_another_choice():
    parts = [split(table(np.zeros(100)), {"train": 0.5, "test": 0.5}, seed=seed) for seed in (0, 1)]
    assert ids(parts[0]["train"]) != ids(parts[1]["train"])


@given(seed=st.integers(0, 20), stratified=st.booleans())
def test_groups_stay_together(seed, stratified):
    rng = np.random.default_rng(seed)
    groups = np.array([f"p{i}" for i in rng.integers(0, 60, 600)])
    labels = rng.integers(0, 3, 600)
    reader = table(labels, groups)
    fractions = {"train": 0.7, "validate": 0.2, "test": 0.1}
    parts = split(reader, fractions, seed=seed, group="group", stratify="label" if stratified else None)
    members = {role: set(groups[ids(part)]) for role, part in parts.items()}
    assert len(members["train"] | members["validate"] | members["test"]) == sum(map(len, members.values())) == 60
    for role, fraction in fractions.items():
        assert abs(len(parts[role]) - fraction * 600) < 20  # two groups
        if stratified:
            shares = np.bincount(labels[ids(parts[role])], minlength=3) / len(parts[role])
            assert abs(shares - np.bincount(labels) / 600).max() < 0.2


def test_counts_lists_and_the_rest():
    reader = table(np.zeros(20))
    parts = split(reader, {"test": [3, 17], "validate": 4, "train": None})
    assert ids(parts["test"]) == [3, 17]
    assert (len(parts["validate"]), len(parts["train"])) == (4, 14)
    assert sorted(ids(parts["validate"]) + ids(parts["train"])) == sorted(set(range(20)) - {3, 17})
    assert len(split(reader, {"train": 5})["train"]) == 5
    assert parts["test"].source.place(1) == "dict[17]"


@pytest.mark.parametrize(
    ("parts", "options", "part"),
    [
        ({}, {}, "must have a size for each role"),
        ({"training": 0.5}, {}, "did you mean 'train'"),
        ({"train": 0.8, "test": 0.3}, {}, "must be 1 at most together, got 1.1"),
        ({"train": 1.5}, {}, r"a fraction in \(0, 1\]"),
        ({"train": 30}, {}, "1 to 20 samples, got 30"),
        ({"train": 15, "test": 0.5}, {}, "ask for 25 samples, and there are 20"),
        ({"train": True}, {}, "a fraction, a number of samples, a list"),
        ({"train": None, "test": None}, {}, "only one role"),
        ({"train": [1, 2], "test": [2]}, {}, "sample 2 is in 'train' and in 'test'"),
        ({"train": [20]}, {}, "names sample 20"),
        ({"train": [1, 1]}, {}, "different integers"),
        ({"train": [0.5]}, {}, "different integers"),
        ({"train": 0.5}, {"stratify": "lable"}, "did you mean 'label'"),
        ({"train": 0.5, "test": [1]}, {"group": "group"}, "use one"),
        ({"train": 0.5}, {"seed": -1}, "seed must be an integer >= 0"),
    ],
)
def test_what_is_wrong_is_said(parts, options, part):
    with pytest.raises(ConfigurationError, match=part):
        split(table(np.zeros(20)), parts, **options)


def test_a_role_between_others_that_gets_no_group_is_the_one_that_is_named():
    with pytest.raises(DataError, match="10 samples leave none for the role 'validate'"):
        split(table(np.arange(10)), {"train": 0.5, "validate": 0.001, "test": 0.499}, group="group")


def test_roles_without_samples():
    with pytest.raises(DataError, match="20 samples leave none for the role 'test'"):
        split(table(np.zeros(20)), {"train": 0.99, "test": 0.01})
    with pytest.raises(DataError, match="'group' has 1 different values, and 2 roles"):
        split(table(np.zeros(20)), {"train": 0.5, "test": 0.5}, group="group")


def test_fit_takes_the_parts_and_ranks_see_the_same(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    columns = {"x": x, "kind": np.where(x > 0, "up", "down"), "who": rng.integers(0, 30, 200)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=50)
    whole = read(tmp_path / "a.parquet", target="kind", fields=["x", "kind", "who"])
    parts = split(whole, {"train": 0.6, "validate": 0.2, "test": 0.2}, stratify="kind", group="who")
    who = [set(part.column("who").tolist()) for part in parts.values()]
    assert not (who[0] & who[1])
    assert not (who[0] & who[2])
    assert not (who[1] & who[2])
    assert is_split(parts)
    assert not is_split({"train": x})
    shares = [list(open_data(parts["train"], Loading(batch_size=16, rank=r, ranks=2)).epoch(0)) for r in (0, 1)]
    alone = list(open_data(parts["train"], Loading(batch_size=16)).epoch(0))
    for one, left, right in zip(alone, *shares, strict=True):
        assert torch.equal(one.fields["x"], torch.cat([left.fields["x"], right.fields["x"]]))
    settings = {"batch_size": 16, "stop": descend.Epochs(1), "metrics": ["accuracy"]}
    settings |= {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0)}
    result = descend.fit(nn.Linear(2, 2), "cross_entropy", parts, **settings)
    counts = {row["mode"]: row["samples"] for row in result.history}
    roles = {"train": "train", "validation": "validate", "test": "test"}
    assert counts == {mode: len(parts[role]) for mode, role in roles.items()}
    with pytest.raises(ConfigurationError, match="the role 'validate', and valid= is given as well"):
        descend.fit(nn.Linear(2, 2), "cross_entropy", parts, valid=whole, **settings)
    with pytest.raises(ConfigurationError, match="none is 'train'"):
        descend.fit(nn.Linear(2, 2), "cross_entropy", {"test": whole}, **settings)


def test_labels_of_images_are_read_without_the_images(tmp_path):
    from PIL import Image

    for i in range(12):
        path = tmp_path / f"c{i % 2}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (2, 2)).save(path)
    reader = read(tmp_path)
    (tmp_path / "c0" / "4.png").write_bytes(b"no image")
    parts = split(reader, {"train": 0.5, "test": 0.5}, stratify="label")
    assert [part.column("label").tolist() for part in parts.values()] == [[0] * 3 + [1] * 3] * 2


def test_a_dictionary_by_role_has_the_data_of_each_role():
    """As `compare` takes it; a dictionary of arrays has fields, whatever their names are."""
    pair = (np.zeros((4, 2)), np.zeros(4))
    for words in (("train", "validation"), ("train", "validate"), ("training", "val")):
        assert data_of_roles(dict.fromkeys(words, pair)) == {"train": pair, "validate": pair}
    for other in ({"train": np.zeros(4), "test": np.zeros(4)}, {"train": pair, "more": pair}, pair, {}):
        assert data_of_roles(other) is None
