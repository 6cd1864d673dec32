"""Normalized fields against NumPy over the whole array."""

import json

import numpy as np
import pytest
from PIL import Image

import descend.data
from descend.data import normalize, read, split
from descend.data.normalization import statistics_of
from descend.errors import ConfigurationError, DataError, StorageError

RNG = np.random.default_rng(0)
COLUMNS = {
    "x": 1e6 + RNG.normal(size=700),
    "v": RNG.normal(size=(700, 2, 3)).astype(np.float32),
    "n": np.arange(700),
    "c": np.full(700, 3.0),
    "y": RNG.normal(size=700),
}


def everything(reader):
    return reader.read(np.arange(len(reader)))


def test_fields_have_mean_0_and_deviation_1():
    columns = {**COLUMNS, "x": np.where(np.arange(700) == 5, np.nan, COLUMNS["x"])}
    made = everything(normalize(read(columns, target="y")))
    wanted = (columns["x"] - np.nanmean(columns["x"])) / np.nanstd(columns["x"])
    np.testing.assert_allclose(made["x"], wanted, atol=1e-6)
    v = COLUMNS["v"].astype(np.float64)
    np.testing.assert_allclose(made["v"], (v - v.mean(0)) / v.std(0), atol=1e-6)
    assert made["v"].dtype == np.float32
    assert not made["c"].any()
    for name in ("n", "y"):
        np.testing.assert_array_equal(made[name], COLUMNS[name])
    named = everything(normalize(read(COLUMNS), ["n"]))["n"]
    np.testing.assert_allclose(named, (np.arange(700) - 349.5) / np.arange(700).std(), rtol=1e-6)


def test_images_have_statistics_for_each_channel(tmp_path):
    pixels = RNG.integers(0, 256, (5, 4, 3, 3)).astype(np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    reader = normalize(tmp_path, keep=tmp_path / "statistics.json")
    values = pixels.transpose(0, 3, 1, 2) / 255
    mean, deviation = (of(values, axis=(0, 2, 3)).reshape(3, 1, 1) for of in (np.mean, np.std))
    np.testing.assert_allclose(everything(reader)["image"], (values - mean) / deviation, atol=1e-5)
    assert reader.fields["image"].dtype == np.float32
    assert reader.pixels == frozenset()
    batch = next(descend.data.open_data(reader, descend.data.Loading(batch_size=5, shuffle=False)).epoch(0))
    np.testing.assert_array_equal(batch.fields["image"], everything(reader)["image"])


def test_statistics_are_those_of_the_training_samples_and_are_kept(tmp_path, monkeypatch):
    file = tmp_path / "statistics.json"
    parts = split(COLUMNS, {"train": 0.5, "test": 0.5})
    made = normalize(parts, ["x"], keep=file)
    x = parts["train"].column("x")
    for role, part in parts.items():
        np.testing.assert_allclose(everything(made[role])["x"], (part.column("x") - x.mean()) / x.std(), atol=1e-6)
        assert made[role].role == role
    monkeypatch.setattr("descend.data.normalization.statistics_of", None)  # not computed again
    later = normalize({"x": np.array([x.mean()])}, ["x"], keep=file)
    np.testing.assert_allclose(everything(later)["x"], [0], atol=1e-6)
    with pytest.raises(DataError, match=r"has no statistics for 'v', whose shape is \(2, 3\)"):
        normalize(parts, ["v"], keep=file)
    with pytest.raises(DataError, match=r"statistics of the shape \(\) for 'x'"):
        normalize({"x": np.zeros((3, 2))}, ["x"], keep=file)
    for content in ("[]", "{", '{"x": {"shape": []}}', json.dumps({"x": 3}), "[" * 100_000):
        file.write_text(content)
        with pytest.raises(DataError, match=r"statistics"):
            normalize(parts, ["x"], keep=file)


def test_what_is_wrong_is_said(tmp_path):
    for data, fields, part in (
        (COLUMNS, ["z"], "there is no field 'z'"),
        ({"t": np.array(["a", "b"])}, ["t"], "holds <U1"),
        ({"n": np.arange(3)}, None, "name some"),
        ({"test": read(COLUMNS)}, None, "none for 'train'"),
    ):
        with pytest.raises(ConfigurationError, match=part):
            normalize(data, fields)
    with pytest.raises(StorageError, match="cannot write"):
        normalize(read(COLUMNS), ["x"], keep=tmp_path / "none" / "statistics.json")
    assert statistics_of(read({"x": np.array([1.0, 3.0])}), ["x"])["x"].means == (2.0,)
