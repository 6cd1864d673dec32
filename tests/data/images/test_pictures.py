"""Images as arrays: against Pillow's own pixels, and what is refused before it is decoded."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from system_needs import library

from descend.data.file_format import ReadOptions
from descend.data.images import pictures
from descend.data.images.pictures import ImageForm, ImageKind, header_of, is_image
from descend.data.images.survey import form_of_images
from descend.errors import DataError

DRAW = np.random.default_rng(0)
GRAY = DRAW.integers(0, 256, (4, 6), dtype=np.uint8)
COLOR = DRAW.integers(0, 256, (4, 6, 3), dtype=np.uint8)
LARGE = DRAW.integers(0, 256, (37, 51, 3), dtype=np.uint8)
DEEP = DRAW.integers(0, 2**16, (4, 6), dtype=np.uint16)


ANY = frozenset({"colors", "depth"})  # what may be lost


def form_of(*contents, **options):
    """The form of a data set of these images."""
    return form_of_images(len(contents), contents.__getitem__, ReadOptions(**options), "image {}".format)


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
    ("image", "colors", "shape", "dtype"),
    [
        (GRAY, "grey", (1, 4, 6), np.uint8),
        (COLOR, "rgb", (3, 4, 6), np.uint8),
        (DEEP, "grey", (1, 4, 6), np.uint16),
        (Image.fromarray(GRAY > 127), "grey", (1, 4, 6), np.uint8),
        (Image.fromarray(GRAY).convert("LA"), "grey", (1, 4, 6), np.uint8),
        (Image.fromarray(COLOR).convert("RGBA"), "rgb", (3, 4, 6), np.uint8),
        (Image.fromarray(COLOR).convert("P"), "rgb", (3, 4, 6), np.uint8),
    ],
)
def test_images_of_one_kind_keep_it(image, colors, shape, dtype):
    form = form_of(encoded(image))
    assert (form.colors, form.size, form.scaled) == (colors, (4, 6), False)
    assert (form.field.shape, form.field.dtype) == (shape, dtype)
    found = form.decode(encoded(image))
    assert (found.shape, found.dtype, found.flags["C_CONTIGUOUS"]) == (shape, dtype, True)


def test_pixels_are_those_that_were_written():
    np.testing.assert_array_equal(ImageForm("grey", 8, (4, 6), False).decode(encoded(GRAY))[0], GRAY)
    np.testing.assert_array_equal(ImageForm("grey", 16, (4, 6), False).decode(encoded(DEEP))[0], DEEP)
    np.testing.assert_array_equal(ImageForm("rgb", 8, (4, 6), False).decode(encoded(COLOR)).transpose(1, 2, 0), COLOR)


def test_images_of_another_kind_are_converted_to_the_form():
    found = ImageForm("rgb", 8, (4, 6), False).decode(encoded(GRAY))
    np.testing.assert_array_equal(found, np.stack([GRAY] * 3))
    found = ImageForm("grey", 8, (4, 6), False, ANY).decode(encoded(COLOR))
    np.testing.assert_array_equal(found[0], np.asarray(Image.fromarray(COLOR).convert("L")))


def triangle(old, new):
    """(new, old) weights of a bilinear filter over all source pixels of an output pixel, each row of sum 1."""
    stretch = max(old / new, 1.0)
    centre = (np.arange(new)[:, None] + 0.5) * old / new
    weights = np.clip(1 - np.abs((np.arange(old) + 0.5 - centre) / stretch), 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(2, 9), (3, 3), (40, 30), (1, 1)])
def test_scaling_is_the_bilinear_filter_and_both_sides_are_independent(size):
    form = form_of(encoded(COLOR), image_size=size)
    assert (form.size, form.scaled) == (size, True)
    found = form.decode(encoded(COLOR)).astype(float)
    down, across = (triangle(old, new) for old, new in zip(COLOR.shape[:2], size, strict=True))
    truth = np.einsum("ij,jkc,lk->cil", down, COLOR, across)
    assert np.abs(found - truth).max() <= 1.01  # rounded after each direction, with weights of 16 bits
    pillow = np.asarray(Image.fromarray(COLOR).resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(found - pillow).max() <= 1
    gray = form_of(encoded(COLOR[..., 0]), image_size=size).decode(encoded(COLOR[..., 0]))
    np.testing.assert_array_equal(gray[0], found[0])


def test_an_image_of_another_size_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"4 x 6 pixels \(height x width\) and .* 6 x 4: scale .*image_size=\(6, 4\)"):
        ImageForm("grey", 8, (6, 4), False).decode(encoded(GRAY))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_mark_of_a_camera_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(GRAY, exif=exif)
    form = form_of(content)
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
        ImageForm("grey", 8, (4, 6), False).decode(encoded(GRAY))
    with pytest.raises(
        DataError, match=r"sample 0 \(image 0\) is the first image and cannot be read: the image promises 6 x 4"
    ):
        form_of(encoded(GRAY))
    monkeypatch.setattr(pictures, "MAX_PIXELS", 24)
    assert ImageForm("grey", 8, (4, 6), False).decode(encoded(GRAY)).shape == (1, 4, 6)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_damaged_images_are_errors(tmp_path):
    with pytest.raises(OSError, match=r"truncated|broken|unexpected|read"):
        ImageForm("rgb", 8, (4, 6), False).decode(encoded(COLOR)[:-40])
    with pytest.raises(DataError, match=r"sample 0 \(image 0\) is the first image and cannot be read"):
        form_of(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "a.png").write_bytes(encoded(GRAY))
    np.testing.assert_array_equal(ImageForm("grey", 8, (4, 6), False).decode(tmp_path / "a.png")[0], GRAY)


def test_transparent_palettes_are_converted_without_a_warning(recwarn):
    image = Image.fromarray(COLOR).convert("P")
    image.info["transparency"] = bytes(range(256))
    ImageForm("rgb", 8, (4, 6), False, ANY).decode(encoded(image, transparency=bytes(range(256))))
    assert not recwarn.list


@pytest.mark.parametrize("turned", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path, turned):
    """The result is that of the whole image, as far as eight bits and the compression allow."""
    coarse = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((1200, 900), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = turned
    image.save(tmp_path / "a.jpg", quality=95, exif=exif)
    form = form_of(tmp_path / "a.jpg", image_size=(60, 80))
    upright = image if turned == 1 else image.rotate(-90, expand=True)
    wanted = np.asarray(upright.resize((80, 60), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
    found = form.decode(tmp_path / "a.jpg").astype(int)
    assert np.abs(found - wanted).max() <= 6
    assert np.abs(found - wanted).mean() < 1


def test_bits_are_converted_by_their_range():
    """Pillow itself cuts 16 bits off at 255, and takes 8 bits as small values of 16."""
    deep = ImageForm("grey", 16, GRAY.shape, scaled=False)
    assert np.array_equal(deep.decode(encoded(GRAY))[0], GRAY.astype(np.uint16) * 257)
    flat = ImageForm("grey", 8, DEEP.shape, False, ANY)
    assert np.array_equal(flat.decode(encoded(DEEP))[0], np.rint(DEEP / 257).astype(np.uint8))
    color = ImageForm("rgb", 8, DEEP.shape, False, ANY)
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
        for colors, size in itertools.product(("grey", "rgb"), sizes):
            form = ImageForm(colors, 8, size, size != LARGE.shape[:2], ANY)
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
@pytest.mark.parametrize("colors", ["grey", "rgb", "rgba"])
@pytest.mark.parametrize("depth", [8, 16])
def test_an_image_that_is_converted_some_rows_at_a_time_is_the_same(mode, colors, depth, monkeypatch, tmp_path):
    """Large ones are, since a whole conversion takes several times the memory of the pixels."""
    draw = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(draw.integers(0, 2**16, (7, 5)).astype(np.uint16))
    else:
        image = Image.fromarray(draw.integers(0, 256, (7, 5, 3)).astype(np.uint8)).convert(mode.split()[-1])
    more = {"transparency": 3} if mode == "transparent P" else {}
    ending = "tif" if mode == "CMYK" else "png"
    image.save(tmp_path / f"one.{ending}", **more)
    form = pictures.ImageForm(colors, depth, (7, 5), False, ANY)
    whole = form.decode(tmp_path / f"one.{ending}")
    own = None if mode == "I;16" else pictures.decoded(tmp_path / f"one.{ending}")
    monkeypatch.setattr(pictures, "_PIXELS_AT_ONCE", 11)  # two rows, and one at the end
    assert np.array_equal(form.decode(tmp_path / f"one.{ending}"), whole)
    assert own is None or np.array_equal(pictures.decoded(tmp_path / f"one.{ending}"), own)
    assert whole.flags.writeable
    assert whole.dtype == form.field.dtype


def png_of_16_bits(kind, channels):
    """A PNG of 16 bits a channel, which Pillow does not write: (4, 6) pixels of a colour type of the format."""
    values = DRAW.integers(0, 2**16, (4, 6 * channels)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 6, 4, 16, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body, values.reshape(4, 6, channels)


ALPHA = DRAW.integers(0, 256, (4, 6), dtype=np.uint8)
TRANSPARENT = np.dstack([COLOR, ALPHA])
KINDS = {
    "1-bit": (Image.fromarray(GRAY > 127), ("grey", 8)),
    "grey": (GRAY, ("grey", 8)),
    "opaque LA": (Image.fromarray(GRAY).convert("LA"), ("grey", 8)),
    "palette": (Image.fromarray(COLOR).convert("P"), ("rgb", 8)),
    "RGB": (COLOR, ("rgb", 8)),
    "opaque RGBA": (Image.fromarray(COLOR).convert("RGBA"), ("rgb", 8)),
    "16 bits": (DEEP, ("grey", 16)),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.product(KINDS, KINDS)))
def test_the_form_holds_all_images_whatever_their_order(one, other):
    """Each image comes out as Pillow's own pixels of it, repeated and scaled without a loss."""
    images = [KINDS[name][0] for name in (one, other)]
    contents = [encoded(image) for image in images]
    form = form_of(*contents)
    assert form == form_of(*contents[::-1])
    grey, depth = ImageKind(*KINDS[one][1]).joined(ImageKind(*KINDS[other][1]))
    assert (form.colors, form.depth) == (grey, depth)
    for image, content in zip(images, contents, strict=True):
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        deep = picture.mode == "I;16"
        truth = np.asarray(picture)[..., None] if deep else np.asarray(picture.convert("RGB"))
        truth = truth.astype(np.uint16) * (257 if depth == 16 and not deep else 1)
        np.testing.assert_array_equal(
            form.decode(content), np.broadcast_to(truth, (4, 6, 3))[..., : len(form.decode(content))].transpose(2, 0, 1)
        )


@pytest.mark.parametrize(
    ("form", "content", "words"),
    [
        (("grey", 8), encoded(COLOR), "must be grey, .*got colours: pass colors='rgb' .*, or colors='grey'"),
        (("grey", 8), encoded(Image.fromarray(COLOR), "JPEG"), "must be grey"),
        (("grey", 8), encoded(Image.fromarray(COLOR).convert("P")), "must be grey"),
        (("grey", 8), encoded(DEEP), "must have 8 bits, .* got 16: pass depth=16 .*, or depth=8"),
        (("rgb", 8), encoded(DEEP), "must have 8 bits"),
        (("rgb", 8), encoded(TRANSPARENT), "must be opaque, .*colors='rgba' .*, or colors='rgb' to leave it out"),
        (("grey", 8), encoded(np.dstack([GRAY, ALPHA])), "must be opaque"),
        (("rgb", 8), encoded(Image.fromarray(COLOR).convert("P"), transparency=bytes(range(256))), "must be opaque"),
        (("rgb", 8), encoded(COLOR, transparency=tuple(COLOR[0, 0].tolist())), "must be opaque"),
        (("grey", 8), encoded(GRAY, transparency=int(GRAY[0, 0])), "must be opaque"),
        (("rgb", 8), png_of_16_bits(2, 3)[0], "has 3 channels of 16 bits, and 8 of each are read: pass depth=8"),
        (("rgb", 16), png_of_16_bits(2, 3)[0], "has 3 channels of 16 bits"),
        (("rgb", 8), png_of_16_bits(6, 4)[0], "has 4 channels of 16 bits"),
        (("rgb", 8), b"P6 6 4 1023\n" + bytes(144), "has 3 channels of 16 bits"),
    ],
)
def test_what_would_lose_something_is_refused_unless_it_is_asked_for(form, content, words):
    with pytest.raises(ValueError, match=words):
        ImageForm(*form, (4, 6), False).decode(content)
    assert ImageForm(*form, (4, 6), False, ANY).decode(content).shape[1:] == (4, 6)


def test_what_a_conversion_gives_that_is_asked_for():
    np.testing.assert_array_equal(
        form_of(encoded(COLOR), colors="grey").decode(encoded(COLOR))[0],
        np.asarray(Image.fromarray(COLOR).convert("L")),
    )
    for colors, channels in (("rgb", 3), ("rgba", 4)):
        found = form_of(encoded(TRANSPARENT), colors=colors).decode(encoded(TRANSPARENT))
        np.testing.assert_array_equal(found.transpose(1, 2, 0), TRANSPARENT[..., :channels])
    found = form_of(encoded(GRAY), colors="rgba", depth=16).decode(encoded(np.dstack([GRAY, ALPHA])))
    np.testing.assert_array_equal(found, np.stack([GRAY, GRAY, GRAY, ALPHA]).astype(np.uint16) * 257)
    assert form_of(encoded(COLOR), colors="rgba").decode(encoded(COLOR))[3].min() == 255
    content, values = png_of_16_bits(2, 3)
    np.testing.assert_array_equal(form_of(content, depth=8).decode(content).transpose(1, 2, 0), values >> 8)


def test_a_conversion_that_loses_nothing_is_none():
    """Pixels decide, not the header: RGB of equal channels is grey, and 257 times 8 bits are 8 bits."""
    grey = ImageForm("grey", 8, (4, 6), False)
    np.testing.assert_array_equal(grey.decode(encoded(np.dstack([GRAY] * 3)))[0], GRAY)
    np.testing.assert_array_equal(grey.decode(encoded(GRAY.astype(np.uint16) * 257))[0], GRAY)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_the_depth_of_a_jpeg_2000_is_in_its_header(bits):
    """In a file with boxes, and in a bare codestream."""
    boxed = b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x16ihdr" + struct.pack(">IIHBBBB", 4, 6, 3, bits - 1, 7, 0, 0)
    bare = b"\xff\x4f\xff\x51" + struct.pack(">HHIIIIIIIIHBBB", 47, 0, *[6] * 8, 3, bits - 1, 1, 1)
    assert pictures._bits_of_jpeg_2000(io.BytesIO(boxed)) == pictures._bits_of_jpeg_2000(io.BytesIO(bare)) == bits
    saved = encoded(COLOR, "JPEG2000")
    assert header_of(saved).kind == ("rgb", 8)


@pytest.mark.parametrize("size", [(2, 9), (8, 12)])
def test_colours_of_16_bits_are_scaled_as_grey_ones(size):
    form = ImageForm("rgb", 16, size, scaled=True)
    found = form.decode(encoded(COLOR))
    small = np.asarray(Image.fromarray(COLOR).resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert found.shape == (3, *size)
    assert np.abs(found / 257 - small).max() <= 1
