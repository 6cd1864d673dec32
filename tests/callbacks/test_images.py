import struct
import zlib

import numpy as np
import pytest
from callback_runs import StopAt, graph_run, graph_work, samples
from run_builder import execute
from system_needs import needs_library

from descend.callbacks import SaveImages
from descend.callbacks.images import as_pixels
from descend.errors import ConfigurationError, MissingExtra, Stopped


def read_png(path):
    """Pixels of a PNG of 8 bits and without filters, read by the standard's layout of chunks."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert zlib.crc32(kind + data) == check
        chunks[kind] = data
        place += 12 + length
    width, height, bits, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    channels = {0: 1, 2: 3}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    assert bits == 8
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels).squeeze()


def test_the_first_sample_of_the_last_mini_batch_from_black_to_white(tmp_path):
    graph_run(tmp_path, SaveImages(layers="images", image_format="png", image_prefix="i/"))
    folder = tmp_path / "run" / "i"
    assert sorted(path.name for path in folder.iterdir()) == [
        "epoch1-images.png",
        "epoch2-images.png",
        "test-images.png",
    ]
    sample = samples(10, seed=2)["samples"][8, 0].astype(np.float64)  # test samples come in order, 8 and then 2
    expected = 255 * (sample - sample.min()) / (sample.max() - sample.min())
    np.testing.assert_allclose(read_png(folder / "test-images.png"), expected, atol=0.51)


def test_colours(tmp_path):
    picture = np.random.default_rng(0).normal(size=(3, 2, 5))
    assert as_pixels(picture).shape == (2, 5, 3)
    from descend.callbacks.images import _write_png

    _write_png(tmp_path / "a.png", as_pixels(picture))
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), as_pixels(picture))


def test_one_value_everywhere_is_black():
    assert not as_pixels(np.full((4, 4), 7.0)).any()


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"an image must be .* the layer.s output is \(5,\)"):
        graph_run(tmp_path, SaveImages(layers="fc1", image_format="png"))


def test_jpg_without_pillow_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.callbacks.images.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="needs the library pillow: pip install pillow, or set image_format"):
        graph_run(tmp_path, SaveImages(layers="images"))
    assert not (tmp_path / "run").exists()


@needs_library("PIL", "pillow")
def test_jpg(tmp_path):
    from PIL import Image

    graph_run(tmp_path, SaveImages(layers="images"), epochs=0)
    assert Image.open(tmp_path / "run" / "test-images.jpg").size == (4, 4)


def test_a_run_that_is_continued_between_a_pass_and_its_validation_writes_the_picture(tmp_path):
    def start(*more, resume=True, folder="parts"):
        work = graph_work(SaveImages(layers="images", image_format="png", image_prefix="i-"), *more, epochs=3)
        return execute(work, tmp_path / folder, resume=resume)

    start(resume=False, folder="whole")
    with pytest.raises(Stopped):
        start(StopAt(6))  # the last step of the second pass
    start()
    for name in ("i-epoch2-images.png", "i-epoch3-images.png", "i-test-images.png"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
