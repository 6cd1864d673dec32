"""Images as arrays: against Pillow's own pixels, and what is refused before it is decoded."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image
from system_needs import library

from descend.data import pictures
from descend.data.pictures import ImageForm, form_of_image, is_image
from descend.errors import DataError

DRAW = np.random.default_rng(0)
GRAY = DRAW.integers(0, 256, (4, 6), dtype=np.uint8)
COLOR = DRAW.integers(0, 256, (4, 6, 3), dtype=np.uint8)
LARGE = DRAW.integers(0, 256, (37, 51, 3), dtype=np.uint8)
DEEP = DRAW.integers(0, 2**16, (4, 6), dtype=np.uint16)


def encoded(image, kind="PNG", **more):
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **more)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_images_are_recognized_by_their_first_bytes(kind):
    assert is_image(encoded(COLOR, kind)[:16])


@pytest.mark.parametrize("begin", [b"", b"RIFF\0\0\0\0WAVE", b"PK\3\4", b"\x89PN", b"label,x\n"])
def test_other_files_are_not(begin):
    assert not is_image(begin)


@pytest.mark.parametrize(
    ("image", "mode", "shape", "dtype"),
    [
        (GRAY, "L", (1, 4, 6), np.uint8),
        (COLOR, "RGB", (3, 4, 6), np.uint8),
        (DEEP, "I;16", (1, 4, 6), np.uint16),
        (Image.fromarray(GRAY > 127), "L", (1, 4, 6), np.uint8),
        (Image.fromarray(COLOR).convert("RGBA"), "RGB", (3, 4, 6), np.uint8),
        (Image.fromarray(COLOR).convert("P"), "RGB", (3, 4, 6), np.uint8),
    ],
)
def test_the_first_image_determines_the_form(image, mode, shape, dtype):
    form = form_of_image(encoded(image), None, "here")
    assert (form.mode, form.size, form.scaled) == (mode, (4, 6), False)
    assert (form.field.shape, form.field.dtype) == (shape, dtype)
    found = form.decode(encoded(image))
    assert (found.shape, found.dtype, found.flags["C_CONTIGUOUS"]) == (shape, dtype, True)


def test_pixels_are_those_that_were_written():
    np.testing.assert_array_equal(ImageForm("L", (4, 6), False).decode(encoded(GRAY))[0], GRAY)
    np.testing.assert_array_equal(ImageForm("I;16", (4, 6), False).decode(encoded(DEEP))[0], DEEP)
    np.testing.assert_array_equal(ImageForm("RGB", (4, 6), False).decode(encoded(COLOR)).transpose(1, 2, 0), COLOR)


def test_images_of_another_kind_are_converted_to_the_form():
    found = ImageForm("RGB", (4, 6), False).decode(encoded(GRAY))
    np.testing.assert_array_equal(found, np.stack([GRAY] * 3))
    found = ImageForm("L", (4, 6), False).decode(encoded(COLOR))
    np.testing.assert_array_equal(found[0], np.asarray(Image.fromarray(COLOR).convert("L")))


def triangle(old, new):
    """(new, old) weights of a bilinear filter over all source pixels of an output pixel, each row of sum 1."""
    stretch = max(old / new, 1.0)
    centre = (np.arange(new)[:, None] + 0.5) * old / new
    weights = np.clip(1 - np.abs((np.arange(old) + 0.5 - centre) / stretch), 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(2, 9), (3, 3), (40, 30), (1, 1)])
def test_scaling_is_the_bilinear_filter_and_both_sides_are_independent(size):
    form = form_of_image(encoded(COLOR), size, "here")
    assert (form.size, form.scaled) == (size, True)
    found = form.decode(encoded(COLOR)).astype(float)
    down, across = (triangle(old, new) for old, new in zip(COLOR.shape[:2], size, strict=True))
    truth = np.einsum("ij,jkc,lk->cil", down, COLOR, across)
    assert np.abs(found - truth).max() <= 1.01  # rounded after each direction, with weights of 16 bits
    pillow = np.asarray(Image.fromarray(COLOR).resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(found - pillow).max() <= 1
    gray = form_of_image(encoded(COLOR[..., 0]), size, "here").decode(encoded(COLOR[..., 0]))
    np.testing.assert_array_equal(gray[0], found[0])


def test_an_image_of_another_size_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"4 x 6 pixels \(height x width\) and .* 6 x 4: scale .*image_size=\(6, 4\)"):
        ImageForm("L", (6, 4), False).decode(encoded(GRAY))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_mark_of_a_camera_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(GRAY, exif=exif)
    form = form_of_image(content, None, "here")
    upright = {
        1: GRAY,
        2: GRAY[:, ::-1],
        3: GRAY[::-1, ::-1],
        4: GRAY[::-1],
        5: GRAY.T,
        6: np.rot90(GRAY, -1),
        7: GRAY.T[::-1, ::-1],
        8: np.rot90(GRAY),
    }[orientation]
    assert form.size == upright.shape
    np.testing.assert_array_equal(form.decode(content)[0], upright)


def test_more_pixels_than_the_limit_are_refused_before_decoding(monkeypatch):
    limit = Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(pictures, "MAX_PIXELS", 23)
    with pytest.raises(ValueError, match="the image promises 6 x 4 pixels; at most 23 are read"):
        ImageForm("L", (4, 6), False).decode(encoded(GRAY))
    with pytest.raises(DataError, match="here is the first image and cannot be read: the image promises 6 x 4"):
        form_of_image(encoded(GRAY), None, "here")
    monkeypatch.setattr(pictures, "MAX_PIXELS", 24)
    assert ImageForm("L", (4, 6), False).decode(encoded(GRAY)).shape == (1, 4, 6)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_damaged_images_are_errors(tmp_path):
    with pytest.raises(OSError, match=r"truncated|broken|unexpected|read"):
        ImageForm("RGB", (4, 6), False).decode(encoded(COLOR)[:-40])
    with pytest.raises(DataError, match="here is the first image and cannot be read"):
        form_of_image(b"\x89PNG\r\n\x1a\n", None, "here")
    (tmp_path / "a.png").write_bytes(encoded(GRAY))
    np.testing.assert_array_equal(ImageForm("L", (4, 6), False).decode(tmp_path / "a.png")[0], GRAY)


def test_transparent_palettes_are_converted_without_a_warning(recwarn):
    image = Image.fromarray(COLOR).convert("P")
    image.info["transparency"] = bytes(range(256))
    ImageForm("RGB", (4, 6), False).decode(encoded(image, transparency=bytes(range(256))))
    assert not recwarn.list


@pytest.mark.parametrize("turned", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path, turned):
    """The result is that of the whole image, as far as eight bits and the compression allow."""
    coarse = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((1200, 900), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = turned
    image.save(tmp_path / "a.jpg", quality=95, exif=exif)
    form = form_of_image(tmp_path / "a.jpg", (60, 80), "a.jpg")
    upright = image if turned == 1 else image.rotate(-90, expand=True)
    wanted = np.asarray(upright.resize((80, 60), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
    found = form.decode(tmp_path / "a.jpg").astype(int)
    assert np.abs(found - wanted).max() <= 6
    assert np.abs(found - wanted).mean() < 1


def test_bits_are_converted_by_their_range():
    """Pillow itself cuts 16 bits off at 255, and takes 8 bits as small values of 16."""
    deep = ImageForm("I;16", GRAY.shape, scaled=False)
    assert np.array_equal(deep.decode(encoded(GRAY))[0], GRAY.astype(np.uint16) * 257)
    flat = ImageForm("L", DEEP.shape, scaled=False)
    assert np.array_equal(flat.decode(encoded(DEEP))[0], np.rint(DEEP / 257).astype(np.uint8))
    color = ImageForm("RGB", DEEP.shape, scaled=False)
    assert np.array_equal(color.decode(encoded(DEEP))[2], np.rint(DEEP / 257).astype(np.uint8))
    with pytest.raises(ValueError, match="of 32 bits"):
        flat.decode(encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"))


def jpegs():
    """JPEG files of all kinds that simplejpeg decodes."""
    for quality, sampling, progressive in itertools.product((50, 95), (0, 1, 2), (False, True)):
        yield encoded(LARGE, "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
    yield encoded(LARGE[..., 0], "JPEG")


def test_simplejpeg_gives_the_pixels_of_pillow(monkeypatch):
    """Both are libjpeg-turbo; a resumed run may find one of them alone."""
    library("simplejpeg")
    for content in jpegs():
        fast = pictures.decoded(content)
        with Image.open(io.BytesIO(content)) as image:
            assert np.array_equal(fast[0] if len(fast) == 1 else fast.transpose(1, 2, 0), np.asarray(image))
        sizes = [LARGE.shape[:2], (9, 9), (4, 5), (2, 2)]  # whole, a half, a quarter, an eighth
        for mode, size in itertools.product(("L", "RGB"), sizes):
            form = ImageForm(mode, size, scaled=size != LARGE.shape[:2])
            with_simplejpeg = form.decode(content)
            with monkeypatch.context() as without:
                without.setattr(pictures, "_simplejpeg", lambda: None)
                assert np.array_equal(form.decode(content), with_simplejpeg)
                assert np.array_equal(pictures.decoded(content), fast)


def test_what_simplejpeg_does_not_decode(monkeypatch, tmp_path):
    library("simplejpeg")
    turned = Image.Exif()
    turned[0x0112] = 6
    content = encoded(LARGE, "JPEG", exif=turned)
    assert pictures._plain_jpeg(content, None) is None
    assert pictures.decoded(content).shape == (3, LARGE.shape[1], LARGE.shape[0])
    assert pictures._plain_jpeg(encoded(Image.fromarray(LARGE).convert("CMYK"), "JPEG"), None) is None
    assert pictures._plain_jpeg(encoded(LARGE), None) is None
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(LARGE, "JPEG"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((OSError, ValueError)):
        pictures.decoded(path)
    path.write_bytes(whole)
    monkeypatch.setattr(pictures, "MAX_PIXELS", LARGE.shape[0] * LARGE.shape[1] - 1)
    with pytest.raises(ValueError, match="promises 51 x 37 pixels"):
        pictures.decoded(path)


def test_marks_of_a_camera_are_looked_for_before_the_pixels_alone():
    """Each of these segments has a length, and bytes of pixels are no marks, whatever they look like."""
    exif, other = Image.Exif(), b"\xff\xfe\x00\x07Exif\0"
    exif[0x0112] = 6
    plain, marked = encoded(LARGE, "JPEG"), encoded(LARGE, "JPEG", exif=exif)
    for content, found in (
        (plain, False),
        (plain + b"Exif\0", False),
        (plain[:2] + other + plain[2:], False),
        (plain[:2] + b"\xff\xff" + plain[2:], False),
        (marked, True),
        (marked[:2] + other + marked[2:], True),
        (plain[:100], True),  # what is no proper file is Pillow's
        (b"\xff\xd8\xff", True),
        (b"\xff\xd8\xff\xe0\x00\x00", True),
    ):
        assert pictures._has_exif(content) is found


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "transparent P"])
@pytest.mark.parametrize("first", ["L", "RGB", "I;16"])
def test_an_image_that_is_converted_some_rows_at_a_time_is_the_same(mode, first, monkeypatch, tmp_path):
    """Large ones are, since a whole conversion takes several times the memory of the pixels."""
    draw = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(draw.integers(0, 2**16, (7, 5)).astype(np.uint16))
    else:
        image = Image.fromarray(draw.integers(0, 256, (7, 5, 3)).astype(np.uint8)).convert(mode.split()[-1])
    more = {"transparency": 3} if mode == "transparent P" else {}
    ending = "tif" if mode == "CMYK" else "png"
    image.save(tmp_path / f"one.{ending}", **more)
    form = pictures.ImageForm(first, (7, 5), scaled=False)
    whole = form.decode(tmp_path / f"one.{ending}")
    own = None if mode == "I;16" else pictures.decoded(tmp_path / f"one.{ending}")
    monkeypatch.setattr(pictures, "_PIXELS_AT_ONCE", 11)  # two rows, and one at the end
    assert np.array_equal(form.decode(tmp_path / f"one.{ending}"), whole)
    assert own is None or np.array_equal(pictures.decoded(tmp_path / f"one.{ending}"), own)
    assert whole.flags.writeable
    assert whole.dtype == form.field.dtype
