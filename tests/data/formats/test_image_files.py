"""Images written by Pillow, in folders of classes and in lists."""

import struct
import zlib

import numpy as np
import pytest
from data.files import refusal, same
from PIL import Image

from descend.data import read
from descend.errors import ConfigurationError

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 6, 5, 3)).astype(np.uint8)
CLASSES = ["bee", "ant", "cow"]


@pytest.fixture
def folder(tmp_path):
    for i, pixels in enumerate(PIXELS):
        path = tmp_path / CLASSES[i % 3] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


ORDER = [1, 4, 7, 0, 3, 6, 2, 5, 8]  # ant, bee, cow


def test_a_folder_of_classes(folder):
    reader = read(folder)
    same(reader, {"image": PIXELS[ORDER].transpose(0, 3, 1, 2), "label": np.repeat([0, 1, 2], 3)})
    assert reader.classes == {"label": ["ant", "bee", "cow"]}
    assert reader.pixels == {"image"}
    assert reader.source.place(0) == str(folder / "ant" / "1.png")
    given = read(folder, classes=["cow", "ant", "bee"])
    assert given.read(np.array([0, 3, 6]))["label"].tolist() == [1, 2, 0]
    assert "'bee' is none of the classes ant, cow" in refusal(folder, classes=["ant", "cow"])


def test_images_without_labels(folder):
    same(read(folder / "ant"), {"image": PIXELS[[1, 4, 7]].transpose(0, 3, 1, 2)})
    Image.fromarray(PIXELS[0]).save(folder / "0.png")
    assert "images beside folders with images" in refusal(folder)


def test_a_list(folder):
    lines = [f"{CLASSES[i % 3]}/{i}.png {7 - i}" for i in range(4)]
    (folder / "list.txt").write_text("\n".join(lines) + "\n\n")
    same(read(folder / "list.txt"), {"image": PIXELS[:4].transpose(0, 3, 1, 2), "label": [7, 6, 5, 4]})
    (folder / "named.txt").write_text("ant/1.png b\nbee/0.png a\n")
    assert read(folder / "named.txt").read(np.arange(2))["label"].tolist() == [1, 0]
    (folder / "plain.txt").write_text("ant/1.png\nbee/0.png\n")
    assert list(read(folder / "plain.txt").fields) == ["image"]
    (folder / "gone.txt").write_text("ant/1.png 0\nant/none.png 1\n")
    assert "gone.txt, line 2: there is no file" in refusal(folder / "gone.txt")
    (folder / "half.txt").write_text("ant/1.png 0\nbee/0.png\n")
    assert "others have none" in refusal(folder / "half.txt")


def test_sizes(folder):
    Image.fromarray(PIXELS[0]).resize((9, 7)).save(folder / "cow" / "9.png")
    text = refusal(folder)
    assert "sample 9 of reader 'images'" in text
    assert "7 x 9 pixels (height x width) and the first one of the data set 6 x 5" in text
    found = read(folder, image_size=(4, 3)).read(np.array([0]))["image"][0]
    wanted = np.asarray(Image.fromarray(PIXELS[1]).resize((3, 4), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(found, wanted.transpose(2, 0, 1))
    assert read(folder, image_size=8).fields["image"].shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("mode", "channels", "dtype"),
    [("L", 1, np.uint8), ("I;16", 1, np.uint16), ("RGBA", 3, np.uint8), ("P", 3, np.uint8)],
)
def test_kinds_of_pixels(tmp_path, mode, channels, dtype):
    gray = PIXELS[0, :, :, 0].astype(np.uint16) * 257
    image = Image.fromarray(gray) if mode == "I;16" else Image.fromarray(PIXELS[0]).convert(mode)
    image.save(tmp_path / "a.png")
    found = read(tmp_path).read(np.array([0]))["image"][0]
    assert found.dtype == dtype
    wanted = np.asarray(image if mode in ("L", "I;16") else image.convert("RGB"))
    np.testing.assert_array_equal(found, wanted[None] if channels == 1 else wanted.transpose(2, 0, 1))


def test_the_orientation_of_a_camera(tmp_path):
    image = Image.fromarray(PIXELS[0])
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    image.save(tmp_path / "a.png", exif=exif)
    found = read(tmp_path).read(np.array([0]))["image"][0]
    np.testing.assert_array_equal(found, np.rot90(PIXELS[0], -1).transpose(2, 0, 1))


def bomb(width, height):
    """A PNG of a few bytes that promises many pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


def test_damaged_and_hostile_images(folder):
    path = folder / "bee" / "3.png"
    whole = path.read_bytes()
    for content, part in (
        (whole[: len(whole) // 2], "truncated"),
        (b"\x89PNG\r\n\x1a\nnot one", "cannot be read"),
        (b"", "cannot identify"),
        (bomb(60_000, 60_000), "promises 60000 x 60000 pixels"),
    ):
        path.write_bytes(content)
        text = refusal(folder)
        assert f"sample 4 of reader 'images' for 'train' ({path})" in text
        assert part in text
    (folder / "ant" / "1.png").write_bytes(bomb(60_000, 60_000))
    assert f"sample 0 of reader 'images' for 'train' ({folder / 'ant' / '1.png'}) cannot be read" in refusal(folder)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"\xff\xd8\xff")
    assert "is the first image and cannot be read" in refusal(folder)


def test_the_label_has_one_name(folder):
    with pytest.raises(ConfigurationError, match="is the field 'label'"):
        read(folder, label="species")


def test_a_first_image_that_is_damaged_is_a_bad_sample(folder):
    first = sorted(folder.rglob("*.png"))[0]
    first.write_bytes(first.read_bytes()[:50])
    reader = read(folder)
    assert reader.fields["image"].shape == PIXELS.shape[3:] + PIXELS.shape[1:3]
    assert f"sample 0 of reader 'images' for 'train' ({first}) cannot be read" in refusal(folder)
    np.testing.assert_array_equal(reader.read(np.array([1]))["image"][0], PIXELS[ORDER[1]].transpose(2, 0, 1))


@pytest.mark.parametrize("between", [" ", "\t", "   "])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_lists_of_other_systems(folder, between, encoding):
    """With a mark of UTF-8 at the beginning, tabs before labels and carriage returns behind them."""
    lines = [f"{CLASSES[i % 3]}/{i}.png{between}{CLASSES[i % 3]}\r\n" for i in range(9)]
    (folder / "list.txt").write_bytes("".join(lines).encode(encoding))
    same(read(folder / "list.txt"), {"image": PIXELS.transpose(0, 3, 1, 2), "label": [1, 0, 2] * 3})


def test_lists_with_commas_and_with_several_numbers(folder):
    (folder / "a.txt").write_text("bee/0.png,2\nant/1.png,1\n")
    same(read(folder / "a.txt"), {"image": PIXELS[:2].transpose(0, 3, 1, 2), "label": [2, 1]})
    (folder / "a.txt").write_text("bee/0.png 0 1 1\nant/1.png 1 0 -1\n")
    same(read(folder / "a.txt"), {"image": PIXELS[:2].transpose(0, 3, 1, 2), "label": [[0, 1, 1], [1, 0, -1]]})
    (folder / "a.txt").write_text("bee/0.png 0 1 1\nant/1.png 1\n")
    assert "1.png has 1 labels and" in refusal(folder / "a.txt")


def test_classes_of_another_role_have_the_numbers_of_the_training_images(tmp_path):
    for name in ("train/ant", "train/bee", "train/cow", "test/ant", "test/cow"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(tmp_path / name / "0.png")
    reader = read(tmp_path, role="test")
    assert reader.classes == {"label": ["ant", "bee", "cow"]}
    assert reader.read(np.arange(2))["label"].tolist() == [0, 2]


def test_roles_beside_folders_of_other_files(tmp_path):
    """As COCO has them."""
    for name in ("train2017", "val2017", "annotations"):
        (tmp_path / name).mkdir()
    (tmp_path / "annotations" / "a.json").write_text('{"images": []}')
    for number, name in enumerate(("train2017/0.png", "train2017/1.png", "val2017/2.png")):
        Image.fromarray(PIXELS[number]).save(tmp_path / name)
    same(read(tmp_path), {"image": PIXELS[:2].transpose(0, 3, 1, 2)})
    same(read(tmp_path, role="validate"), {"image": PIXELS[2:3].transpose(0, 3, 1, 2)})
