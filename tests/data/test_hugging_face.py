"""Data sets of `datasets`, and objects with the methods that are used of them."""

import io

import numpy as np
import pyarrow as pa
import pytest
from data.files import same
from PIL import Image
from system_needs import library

from descend.data import Loading, open_data, read
from descend.data.hugging_face import is_hugging_face
from descend.errors import ConfigurationError, DataError

N = 30
COLUMNS = {
    "x": [i / 7 for i in range(N)],
    "text": [f"t{i}" for i in range(N)],
    "tokens": [list(range(i % 3)) for i in range(N)],
    "label": [i % 2 for i in range(N)],
}
PADDED = np.array([[j if j < i % 3 else 0 for j in range(2)] for i in range(N)])
TRUTH = {
    "x": COLUMNS["x"],
    "text": COLUMNS["text"],
    "tokens": PADDED,
    "tokens_length": np.arange(N) % 3,
    "label": COLUMNS["label"],
}


class ClassLabel:
    names = ("down", "up")


class Rows:
    """The methods of a Dataset of Hugging Face, over an Arrow table."""

    def __init__(self, table):
        self.table = table
        self.column_names = table.column_names
        self.features = dict.fromkeys(table.column_names)
        self.format = {"type": None, "columns": None}

    def with_format(self, kind, columns=None):
        assert kind == "arrow"
        return Rows(self.table.select(columns or self.column_names))

    def __len__(self):
        return len(self.table)

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            return self.table.slice(rows.start, rows.stop - rows.start)
        return self.table.take(rows)


def test_columns_are_fields():
    reader = read(Rows(pa.table(COLUMNS)))
    same(reader, TRUTH)
    assert reader.format == "hugging face"
    kept = read(Rows(pa.table(COLUMNS)), columns={"both": ["x", "label"]}, length=1)
    np.testing.assert_array_equal(kept.read(np.arange(N))["both"][:, 1], COLUMNS["label"])
    batch = next(iter(open_data(Rows(pa.table(COLUMNS).select(["x", "label"])), Loading(batch_size=N)).epoch(0)))
    np.testing.assert_array_equal(batch.fields["label"], batch.ids % 2)


def test_a_dictionary_of_splits_has_roles():
    splits = {"train": Rows(pa.table({"x": [1]})), "validation": Rows(pa.table({"x": [2, 3]}))}
    assert len(read(splits, role="validate")) == 2
    with pytest.raises(DataError, match="splits train, validation and none for 'test'"):
        read(splits, role="test")


def test_what_is_wrong_is_said():
    with pytest.raises(DataError, match="0 samples"):
        read(Rows(pa.table({"x": []})))
    with pytest.raises(ConfigurationError, match="separator"):
        read(Rows(pa.table({"x": [1]})), separator=";")
    transformed = Rows(pa.table({"x": [1]}))
    transformed.format = {"type": "custom"}
    assert not is_hugging_face(transformed)


@pytest.fixture
def datasets():
    return library("datasets")


def test_the_library_itself(datasets, tmp_path):
    made = datasets.Dataset.from_dict(COLUMNS).cast_column("label", datasets.ClassLabel(names=["down", "up"]))
    reader = read(made)
    same(reader, TRUTH)
    assert reader.classes == {"label": ["down", "up"]}
    order = np.random.default_rng(0).permutation(N)
    mixed = read(made.select(order).with_format("torch", columns=["x", "tokens"]))
    same(mixed, {name: np.asarray(TRUTH[name])[order] for name in ("x", "tokens", "tokens_length")})
    assert len(read(datasets.DatasetDict({"train": made, "test": made.select(range(3))}), role="test")) == 3
    stream = made.select_columns(["x", "label"]).to_iterable_dataset()
    same(read(stream), {"x": np.float64(COLUMNS["x"]), "label": COLUMNS["label"]})
    doubled = made.select_columns(["x"]).with_transform(lambda rows: {"x": [2 * x for x in rows["x"]]})
    same(read(doubled), {"x": 2 * np.float64(COLUMNS["x"])})


def test_images_and_arrays_of_the_library(datasets, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3)).astype(np.uint8)
    contents = []
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(buffer := io.BytesIO(), "PNG")
        contents.append({"bytes": buffer.getvalue(), "path": None})
        (tmp_path / f"{i}.png").write_bytes(buffer.getvalue())
    features = datasets.Features({"image": datasets.Image(), "grid": datasets.Array2D((2, 2), "float32")})
    grids = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    made = datasets.Dataset.from_dict({"image": contents, "grid": list(grids)}, features=features)
    reader = read(made)
    same(reader, {"image": pixels.transpose(0, 3, 1, 2), "grid": grids})
    assert reader.pixels == {"image"}
    paths = {"image": [str(tmp_path / f"{i}.png") for i in range(3)]}
    by_path = datasets.Dataset.from_dict(paths, features=datasets.Features({"image": datasets.Image()}))
    same(read(by_path), {"image": pixels.transpose(0, 3, 1, 2)})


def test_images_of_all_splits_have_one_form():
    """Of a dictionary of data sets, one of which is all grey."""

    class Image:  # the feature, which is known by its name
        pass

    def split(*images):
        rows = Rows(pa.table({"image": [{"bytes": content, "path": None} for content in images], "label": [0, 1]}))
        rows.features["image"] = Image()
        return rows

    grey, red = np.full((4, 6), 77, np.uint8), np.full((4, 6, 3), [200, 30, 30], np.uint8)
    splits = {"train": split(encoded(grey), encoded(grey)), "test": split(encoded(grey), encoded(red))}
    for role in ("train", "test"):
        assert read(splits, role=role).fields["image"].shape == (3, 4, 6)
    assert read(splits, role="test").read(np.array([1]))["image"][0, :, 0, 0].tolist() == [200, 30, 30]
    assert read(splits, colors="grey", depth=16).fields["image"].shape == (1, 4, 6)


def encoded(pixels):
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()
