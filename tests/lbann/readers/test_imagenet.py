"""Image files that Pillow wrote, and what Pillow reads of them."""

import numpy as np
import pytest
from PIL import Image

from descend.data import Loading, open_data
from descend.data.transforms import (
    CenterCrop,
    Colorize,
    HorizontalFlip,
    NormalizeToLBANNLayout,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ToLBANNLayout,
)
from descend.errors import DataError
from tests.lbann.readers.opening import everything, opened, refusal

RNG = np.random.default_rng(0)
SIZES = [(20, 30), (25, 16), (40, 40), (18, 18)]


@pytest.fixture
def images(tmp_path):
    """Four images of different sizes in a folder of ImageNet's form, the last one gray, and their list."""
    lines = []
    arrays = []
    for number, size in enumerate(SIZES):
        shape = (*size, 3) if number < 3 else size
        array = RNG.integers(0, 256, shape).astype(np.uint8)
        path = tmp_path / "train" / f"n{number % 2}" / f"an image {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
        lines.append(f"n{number % 2}/an image {number}.png {number * 3}")
        arrays.append(array)
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    return tmp_path, arrays


FIELDS = {"data_filename": "../train.txt", "num_labels": 10}


def test_labels_and_blue_first(images):
    """The middle of each image, with the channels in the order of OpenCV."""
    folder, arrays = images
    reader = opened("imagenet", folder / "train", **FIELDS, transforms=[CenterCrop(16, 16), Colorize()])
    found = everything(reader)
    assert reader.fields["samples"].shape == (3, 16, 16)
    assert found["labels"].argmax(1).tolist() == [0, 3, 6, 9]
    for array, sample in zip(arrays, found["samples"], strict=True):
        top, left = (array.shape[0] - 16) // 2, (array.shape[1] - 16) // 2
        part = array[top : top + 16, left : left + 16]
        colour = part if part.ndim == 3 else np.stack([part] * 3, axis=-1)
        np.testing.assert_array_equal(sample, colour[..., ::-1].transpose(2, 0, 1))


def test_means_are_those_of_blue_green_red(images):
    folder, arrays = images
    normalize = NormalizeToLBANNLayout("0.1 0.2 0.3", "1 2 4")
    one = opened("imagenet", folder / "train", **FIELDS, transforms=[CenterCrop(16, 16), Colorize(), normalize])
    blue, green, red = everything(one)["samples"][2]
    part = arrays[2][12:28, 12:28].astype(float) / 255
    np.testing.assert_allclose(blue, part[..., 2] - 0.1, atol=1e-6)
    np.testing.assert_allclose(green, (part[..., 1] - 0.2) / 2, atol=1e-6)
    np.testing.assert_allclose(red, (part[..., 0] - 0.3) / 4, atol=1e-6)


def test_a_sample_does_not_depend_on_its_batch(images):
    folder, _ = images
    random = [RandomResizedCrop(12, 12), Colorize(), RandomCrop(8, 9), HorizontalFlip(0.5), ToLBANNLayout()]
    reader = opened("imagenet", folder / "train", **FIELDS, transforms=random)
    together = everything(reader, epoch=3)["samples"]
    for i in range(4):
        np.testing.assert_array_equal(reader.read(np.array([i]), 3)["samples"][0], together[i])
    assert (together != everything(reader, epoch=4)["samples"]).any()
    assert reader.read(np.empty(0, np.int64))["samples"].shape == (0, 3, 8, 9)


def test_several_images_a_sample(tmp_path):
    for name, value in (("a", 10), ("b", 200)):
        Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "list").write_text("a.png b.png 0\nb.png a.png 1\n")
    found = everything(opened("imagenet", tmp_path, data_filename="list", num_image_srcs=2))
    assert found["samples"].shape == (2, 6, 4, 4)
    assert found["samples"][:, :, 0, 0].tolist() == [[10] * 3 + [200] * 3, [200] * 3 + [10] * 3]
    assert found["labels"].shape == (2, 1000)


def test_sample_list(images):
    folder, arrays = images
    (folder / "list").write_text("SINGLE-SAMPLE\n1\ntrain\nn0/x.png\n")
    Image.fromarray(arrays[0]).save(folder / "train" / "n0" / "x.png")
    (folder / "labels.txt").write_text("n0/x.png 5\n")
    fields = {"sample_list": "list", "label_filename": "labels.txt", "num_labels": 6}
    found = everything(opened("imagenet", folder, **fields))
    np.testing.assert_array_equal(found["samples"][0], arrays[0][..., ::-1].transpose(2, 0, 1))
    assert found["labels"].argmax(1).tolist() == [5]


def test_what_is_wrong(images):
    folder, _ = images
    train = folder / "train"
    assert "images differ in shape" in refusal("imagenet", train, **FIELDS)
    resized = {**FIELDS, "transforms": [Resize(8, 8), Colorize()]}
    (train / "n1" / "an image 1.png").write_bytes(b"no image")
    text = refusal("imagenet", train, **resized)
    assert "sample 1 of reader 'imagenet' for 'train' cannot be used: " in text
    assert "an image 1.png cannot be read" in text
    assert "train.txt:2: the label is '3', and labels are integers from 0 to 2" in refusal(
        "imagenet", train, data_filename="../train.txt", num_labels=3
    )
    assert "one of the two" in refusal("imagenet", train)
    (folder / "train.txt").write_text("a.png\n")
    assert "must be 1 names and a label" in refusal("imagenet", train, **FIELDS)


def test_a_damaged_image_is_named_or_replaced(images):
    """By its number in the reader, the reader and its path; `skip_bad` takes the next one in its place."""
    folder, _ = images
    path = folder / "train" / "n0" / "an image 2.png"
    path.write_bytes(path.read_bytes()[:-200])
    reader = opened("imagenet", folder / "train", **FIELDS, transforms=[Resize(8, 8), Colorize()])
    with pytest.raises(DataError, match=rf"sample 2 of reader 'imagenet' for 'train' cannot be used: {path} cannot"):
        reader.read(np.array([3, 2, 0]))
    with pytest.raises(DataError, match="sample 2 of reader 'imagenet'"):
        list(open_data(reader, Loading(batch_size=4)).epoch(0))
    with pytest.warns(UserWarning, match="sample 2 of reader 'imagenet' for 'train' is replaced by the next one"):
        (batch,) = open_data(reader, Loading(batch_size=4, shuffle=False, skip_bad=1)).epoch(0)
    assert batch.ids.tolist() == [0, 1, 3, 3]
    assert batch.fields["labels"].argmax(1).tolist() == [0, 3, 9, 9]


def test_a_list_with_a_mark_of_utf_8_and_tabs(images):
    folder, _ = images
    text = (folder / "train.txt").read_text().replace(".png ", ".png\t").replace("\n", "\r\n")
    (folder / "train.txt").write_text(text, encoding="utf-8-sig", newline="")
    reader = opened("imagenet", folder / "train", **FIELDS, transforms=[CenterCrop(16, 16), Colorize()])
    assert everything(reader)["labels"].argmax(1).tolist() == [0, 3, 6, 9]


def test_whole_paths_beside_a_folder(images):
    """LBANN joins the folder and the name; where that is no file and the name is one, the name is meant."""
    folder, _ = images
    lines = [f"{path} {n}" for n, path in enumerate(sorted((folder / "train").rglob("*.png")))]
    (folder / "train.txt").write_text("\n".join(lines))
    found = everything(opened("imagenet", folder / "train", **FIELDS, transforms=[CenterCrop(4, 4), Colorize()]))
    assert found["labels"].argmax(1).tolist() == [0, 1, 2, 3]
