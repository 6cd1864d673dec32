"""The form of a data set: by images from everywhere in it, in any order."""

import numpy as np
import pytest
from data.images.test_pictures import COLOR, DEEP, GRAY, encoded, form_of
from PIL import Image

from descend.data import read
from descend.data.images.pictures import ImageKind, header_of
from descend.data.images.survey import spread, strided
from descend.errors import DataError


def test_many_images_are_looked_at_and_spread_over_all():
    assert spread(3, 5) == [0, 1, 2]
    assert spread(11, 3) == [0, 5, 10]
    assert sorted(strided(5000, 1024)) == spread(5000, 1024)
    assert max(np.diff(sorted(strided(5000, 1024)[:64]))) < 200
    odd, contents = encoded(COLOR), [encoded(GRAY)] * 900
    for place in (0, 1, 450, 899):
        assert form_of(*contents[:place], odd, *contents[place + 1 :]).colors == "rgb"


def test_the_form_is_of_sound_images_and_those_of_other_roles():
    broken = encoded(COLOR)[:30]
    assert form_of(broken, encoded(GRAY)).colors == "grey"
    known = (("image", ImageKind("rgb", 16)),)
    form = form_of(encoded(GRAY), kinds_beside=known)
    assert (form.colors, form.depth) == ("rgb", 16)
    assert form_of(encoded(GRAY), kinds_beside=known, colors="grey", depth=8).field.shape[0] == 1
    with pytest.raises(DataError, match=r"sample 0 \(image 0\) is the first image and cannot be read: .*32 bits"):
        form_of(encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"))


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG", "AVIF"])
def test_later_frames_are_said(tmp_path, kind):
    frames = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)) for i in range(3)]
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        frames[0].save(tmp_path / f"{name}.{kind.lower()}", kind, save_all=True, append_images=frames[1:count])
    for options in ({}, {"colors": "rgb", "depth": 8}):
        reader = read(tmp_path, **options)
        assert len(reader) == 3
        (note,) = reader.notes
        assert f"b.{kind.lower()} has several frames or pages, and the first is read; so it is in 2 of the" in note
    (tmp_path / f"b.{kind.lower()}").unlink()
    assert "c." in read(tmp_path).notes[0]
    (tmp_path / f"c.{kind.lower()}").unlink()
    assert not read(tmp_path).notes


def test_images_of_a_camera_beside_which_it_keeps_a_small_one_have_no_later_frames(tmp_path):
    frames = [Image.new("RGB", (16, 16), (i, 0, 0)) for i in range(2)]
    frames[0].save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=frames[1:])
    assert not read(tmp_path).notes


def test_an_avif_of_ten_bits_is_read_with_eight_only_where_that_is_said():
    """The flags of an image of 8 bits are changed, as Pillow writes no other."""
    content = bytearray(encoded(COLOR, "AVIF"))
    content[content.find(b"av1C") + 6] |= 0x40  # high_bitdepth of AV1CodecConfigurationRecord
    bits = content.find(b"pixi") + 9
    content[bits : bits + 3] = b"\x0a" * 3
    assert header_of(bytes(content)).kind.depth == 16
    with pytest.raises(ValueError, match="3 channels of more than 8 bits, and 8 of each are read: pass depth=8"):
        form_of(bytes(content)).decode(bytes(content))
    assert form_of(bytes(content), depth=8).depth == 8
    assert header_of(encoded(COLOR, "AVIF")).kind.depth == 8
