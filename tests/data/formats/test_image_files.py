"""Images written by Pillow, in folders of classes and in lists."""

import functools
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from data.files import refusal, same
from PIL import Image

import descend
from descend.data import read
from descend.data.survey import readers_of, survey
from descend.errors import ConfigurationError, DataError

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


GREY = PIXELS[0, ..., 0]


def saved(folder, **images):
    """A folder of images by class, one each."""
    for name, image in images.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        picture.save(folder / name / "0.png")
    return folder


FIRST = {
    "grey": Image.fromarray(GREY),
    "1-bit": Image.fromarray(GREY > 127),
    "LA": Image.fromarray(GREY).convert("LA"),
    "palette": Image.fromarray(PIXELS[1]).convert("P"),
    "RGBA": Image.fromarray(PIXELS[1]).convert("RGBA"),
}


@pytest.mark.parametrize("first", FIRST)
def test_the_first_image_does_not_take_the_colours_of_others(tmp_path, first):
    for names in (("a", "b"), ("b", "a")):
        folder = saved(tmp_path / names[0], **{names[0]: FIRST[first], names[1]: PIXELS[0]})
        found = read(folder).read(np.arange(2))["image"]
        np.testing.assert_array_equal(found[names.index("b") if names[0] == "a" else 0], PIXELS[0].transpose(2, 0, 1))
        (folder / "list.txt").write_text("".join(f"{name}/0.png {name}\n" for name in names))
        listed = read(folder / "list.txt").read(np.array([1]))["image"][0]
        np.testing.assert_array_equal(listed, PIXELS[0].transpose(2, 0, 1))


def test_images_of_8_and_of_16_bits_have_16(tmp_path):
    deep = GREY.astype(np.uint16) * 200
    found = read(saved(tmp_path, a=GREY, b=deep)).read(np.arange(2))["image"][:, 0]
    np.testing.assert_array_equal(found, [GREY.astype(np.uint16) * 257, deep])
    assert read(tmp_path, depth=8).read(np.array([1]))["image"].dtype == np.uint8


def test_an_image_among_thousands_that_was_not_looked_at_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.data.images.survey.LOOKED_AT", 2)
    saved(tmp_path, a=GREY, b=PIXELS[0], c=GREY, d=GREY)
    text = refusal(tmp_path)
    assert f"sample 1 of reader 'images' for 'train' ({tmp_path / 'b' / '0.png'}) cannot be read" in text
    assert "the image must be grey, as the data set is read (grey, 8 bits), got colours: pass colors='rgb'" in text
    assert read(tmp_path, colors="rgb").read(np.arange(4))["image"].shape == (4, 3, 6, 5)
    assert read(tmp_path, colors="gray").read(np.arange(4))["image"].shape == (4, 1, 6, 5)
    [problem] = [one for one in survey(readers_of(tmp_path)).problems if one.kind == "unreadable"]
    assert "must be grey" in problem.message


def test_the_form_of_a_long_list_does_not_depend_on_its_order(tmp_path, monkeypatch):
    for module in ("descend.data.images.survey", "descend.data.formats.image_files"):
        monkeypatch.setattr(f"{module}.LOOKED_AT", 3)
    saved(tmp_path, **{f"{number:02}": PIXELS[0] if number == 10 else GREY for number in range(21)})
    draw, forms = np.random.default_rng(0), set()
    for _ in range(5):
        (tmp_path / "list.txt").write_text("".join(f"{number:02}/0.png\n" for number in draw.permutation(21)))
        forms.add(read(tmp_path / "list.txt").fields["image"].shape)
    assert forms == {(3, 6, 5)}


def test_transparency_is_kept_or_left_out_where_it_is_asked_for(tmp_path):
    clear = np.dstack([PIXELS[0], GREY])
    saved(tmp_path, a=PIXELS[0], b=clear)
    assert "must be opaque" in (text := refusal(tmp_path))
    assert "b/0.png" in text
    np.testing.assert_array_equal(
        read(tmp_path, colors="rgba").read(np.array([1]))["image"][0], clear.transpose(2, 0, 1)
    )
    np.testing.assert_array_equal(
        read(tmp_path, colors="rgb").read(np.array([1]))["image"][0], clear.transpose(2, 0, 1)[:3]
    )


@pytest.mark.parametrize("roles", [("train", "val"), ("val", "train")])
def test_images_of_all_roles_have_one_form(tmp_path, roles):
    saved(tmp_path / roles[0], a=GREY, b=GREY)
    saved(tmp_path / roles[1], a=PIXELS[0], b=GREY)
    for role in ("train", "validate"):
        reader = read(tmp_path, role=role)
        assert reader.fields["image"].shape == (3, 6, 5)
        assert reader.classes == {"label": ["a", "b"]}
    assert not [one for one in survey(readers_of(tmp_path)).problems if one.kind == "form"]


def test_roles_from_different_places_that_have_other_channels_are_found(tmp_path):
    saved(tmp_path / "one", a=GREY, b=GREY)
    saved(tmp_path / "two", a=PIXELS[0], b=PIXELS[1])
    readers = {"train": read(tmp_path / "one"), "test": read(tmp_path / "two", role="test")}
    [problem] = [one for one in survey(readers).problems if one.kind == "form"]
    assert problem.message == "'image' is (3, 6, 5) of uint8, and (1, 6, 5) of uint8 for 'train'"
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 2))
    with pytest.raises(DataError, match=r"'image' must have the channels .* 'train' have, 1, got 3 for 'validate'"):
        descend.fit(
            module,
            "cross_entropy",
            readers["train"],
            valid=readers["test"],
            batch_size=2,
            stop=descend.Epochs(1),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colors": "gry"}, "colors must be one of 'grey', 'rgb', 'rgba' or None, got 'gry'; did you mean 'grey'"),
        ({"depth": 12}, "depth must be 8 or 16, the bits of a channel, got 12"),
        ({"depth": True}, "depth must be 8 or 16"),
    ],
)
def test_wrong_options(tmp_path, options, words):
    with pytest.raises(ConfigurationError, match=words):
        read(saved(tmp_path, a=GREY), **options)


def test_options_of_images_are_refused_where_there_are_none(tmp_path):
    pa.parquet.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match=r"colors= is for images, and .*a\.parquet has none"):
        read(tmp_path / "a.parquet", colors="rgb")
    with pytest.raises(ConfigurationError, match="depth= is for images, and a Table has none"):
        read(pa.table({"x": [1.0]}), depth=8)


def test_a_linked_class_is_a_class_of_its_own(tmp_path):
    saved(tmp_path / "store", x=PIXELS[0])
    saved(tmp_path / "data", a=PIXELS[1], _b=PIXELS[2])
    for name in ("x", "y"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "store" / "x")
    reader = read(tmp_path / "data")
    assert reader.classes == {"label": ["_b", "a", "x", "y"]}
    same(reader, {"image": PIXELS[[2, 1, 0, 0]].transpose(0, 3, 1, 2), "label": range(4)})
    assert reader.notes == ()


def test_a_run_says_what_is_skipped(tmp_path, capsys):
    saved(tmp_path, a=PIXELS[0], b=PIXELS[1])
    (tmp_path / ".hidden").write_text("x")
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(90, 2))
    how = {"batch_size": 2, "stop": descend.Epochs(1), "optimizer": functools.partial(torch.optim.SGD, lr=0.1)}
    descend.fit(module, "cross_entropy", str(tmp_path), valid=str(tmp_path), **how)
    line = f"skipped 1 of 3 files in {tmp_path}: 1 hidden (.hidden)"
    assert capsys.readouterr().out.count(line) == 1
    (tmp_path / ".hidden").unlink()
    descend.fit(module, "cross_entropy", str(tmp_path), **how)
    assert "skipped" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["0.5", "1.5", "2.5"], "'label': all 3 cells are numbers with fractions"),
        (["0", "10", "x"], "2.png, 'label': 'x' is no number, and 2 of 3 cells are"),
    ],
)
def test_numbers_in_a_list_do_not_become_names_of_classes(tmp_path, labels, words):
    for number in range(3):
        Image.fromarray(PIXELS[number]).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text("".join(f"{number}.png {label}\n" for number, label in enumerate(labels)))
    assert words in refusal(tmp_path / "list.txt")
    assert read(tmp_path / "list.txt", classes=labels).column("label").tolist() == [0, 1, 2]


def test_a_role_with_one_class_of_the_training_images_has_labels(tmp_path):
    saved(tmp_path / "train", ant=PIXELS[0], bee=PIXELS[1])
    saved(tmp_path / "val", bee=PIXELS[2])
    same(read(tmp_path, role="validate"), {"image": PIXELS[2:3].transpose(0, 3, 1, 2), "label": [1]})
    (tmp_path / "val" / "bee").rename(tmp_path / "val" / "unknown")  # where test images without classes often lie
    assert list(read(tmp_path, role="validate").fields) == ["image"]


def test_classes_of_a_role_that_are_in_part_those_of_training_are_asked_about(tmp_path):
    saved(tmp_path / "train", ant=PIXELS[0], bee=PIXELS[1])
    saved(tmp_path / "val", bee=PIXELS[2], cow=PIXELS[3])
    assert "'cow' is none of the training images' classes, as 'bee' is" in refusal(tmp_path, role="validate")
    given = read(tmp_path, role="validate", classes=["ant", "bee", "cow"])
    assert given.column("label").tolist() == [1, 2]
    (tmp_path / "val" / "bee").rename(tmp_path / "val" / "dog")  # none is: other classes, as of few-shot learning
    assert read(tmp_path, role="validate").classes == {"label": ["cow", "dog"]}


def test_folders_that_training_does_not_have_are_said(tmp_path):
    for name in ("train/cat", "train/dog", "test/first", "test/second"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    with pytest.warns(UserWarning, match=r"test: no folder is called as a class of training \(cat, ...\)"):
        assert read(tmp_path, role="test").column("label").tolist() == [0, 1]
