"""IDX files as samples, alone and in pairs."""

import numpy as np
from data.files import refusal, same

from descend.data import read
from descend.data.formats.idx import open_idx


def test_read_gives_the_array_and_pairs_images_with_labels(tmp_path, write_idx, mnist_folder):
    array = np.random.default_rng(0).normal(size=(7, 3, 2)).astype(np.float32)
    more = tmp_path / "more"
    more.mkdir()
    for name in ("a.idx", "b.gz", "c"):
        same(read(write_idx(more / name, array)), {"samples": array})
    both = read([more / "a.idx", more / "c"])
    np.testing.assert_array_equal(both.read(np.array([8]))["samples"], array[1:2])
    assert both.source.place(8) == f"{more / 'c'}, index 1"
    for path in [*more.iterdir(), more]:
        path.rmdir() if path.is_dir() else path.unlink()
    reader = read(mnist_folder)
    images = open_idx(mnist_folder / "train-images-idx3-ubyte.gz").array()
    same(reader, {"image": images[:, None], "label": np.arange(20) % 10})
    assert reader.pixels == {"image"}
    assert len(read(mnist_folder, role="test")) == 8


def test_files_of_one_reader_are_alike(tmp_path, write_idx):
    images = write_idx(tmp_path / "a", np.zeros((3, 2, 2), np.uint8))
    fewer = write_idx(tmp_path / "b", np.zeros(2, np.uint8))
    assert "3 images and" in refusal([images, fewer])
    assert "samples of () float32 and" in refusal([images, write_idx(tmp_path / "c", np.zeros(3, np.float32))])
    (tmp_path / "d").write_bytes(images.read_bytes()[:-1])
    assert "truncated" in refusal(tmp_path / "d")
