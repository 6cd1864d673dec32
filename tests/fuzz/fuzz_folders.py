"""Folders of images with odd names, links and kinds of pixels: every image is a sample with its own pixels.

    python tests/fuzz/fuzz_folders.py --count 3000 --seed 0

What a folder holds is known from how it is made, and pixels from Pillow; so a sample that is missing or comes twice, a
wrong label, and a value that is not that of the file are findings, and so is the refusal of a folder without a fault.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from PIL import Image

import descend.data
from descend.errors import DescendError
from tests.fuzz.harness import main

if TYPE_CHECKING:
    import random

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_folders_"))
CLASSES = ("a", "b", "_background_noise_", "ä ö", "year=2024", "train", "x.y", "[z]", "é\u0301")
NAMES = ("1.png", "_DSC0001.png", "2.PNG", "a b.png", "ü.png", "x.y.png", "-.png", "[1].png", "~.png", "#1.png")
NO_DATA = (".hidden.png", ".DS_Store", "Thumbs.db", "_SUCCESS", "README.md", "desktop.ini")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "transparent")
SIZE = (4, 3)  # height and width


@dataclass
class Made:
    """What was put into a folder.

    Attributes:
        root: The folder.
        images: Path and mode of each image that is a sample.
        faults: What must, or may, make reading an error.
    """

    root: Path
    images: dict[Path, str] = field(default_factory=dict[Path, str])
    faults: list[str] = field(default_factory=list[str])


def picture(draw: random.Random, mode: str) -> Image.Image:
    """An image of a mode; one with alpha is opaque unless it is called transparent."""
    numbers = np.random.default_rng(draw.getrandbits(32))
    if mode == "I;16":
        return Image.fromarray(numbers.integers(0, 2**16, SIZE).astype(np.uint16))
    if mode == "transparent":
        return Image.fromarray(numbers.integers(0, 255, (*SIZE, 4)).astype(np.uint8))
    return Image.fromarray(numbers.integers(0, 256, (*SIZE, 3)).astype(np.uint8)).convert(mode)


def put_image(draw: random.Random, made: Made, folder: Path, modes: tuple[str, ...]) -> None:
    """Save an image, at times a broken one, or a link to one."""
    mode, path = draw.choice(modes), folder / draw.choice(NAMES)
    if path in made.images or path.is_symlink():
        return
    target = made.root.parent / "store" / f"{draw.getrandbits(40)}.png" if draw.random() < 0.1 else path
    target.parent.mkdir(exist_ok=True)
    picture(draw, mode).save(target, "PNG")
    if target != path:
        path.symlink_to(target)
    if draw.random() < 0.02:
        target.write_bytes(target.read_bytes()[: draw.choice((0, 10, 60))])
        made.faults.append("a broken file")
    made.images[path] = mode
    if mode == "transparent":
        made.faults.append("transparency")


def put_links(draw: random.Random, made: Made) -> None:
    """Links to folders: one elsewhere, one beside, one above, itself, or nowhere."""
    folders = sorted({path.parent for path in made.images})
    link = draw.choice(folders).parent / f"link{draw.getrandbits(16)}"
    match draw.randrange(5):
        case 0:
            target = made.root.parent / "elsewhere"
            target.mkdir(exist_ok=True)
            picture(draw, "RGB").save(target / "1.png")
            link.symlink_to(target)
        case 1:
            target = draw.choice(folders)
            link = target.parent / link.name
            link.symlink_to(target.name)
        case 2:
            link = draw.choice(folders) / link.name
            link.symlink_to("..")
        case 3:
            link.symlink_to(".")
        case _:
            if draw.random() < 0.3:
                link.symlink_to("nowhere")
                made.faults.append("a link that leads nowhere")


def made_folder(draw: random.Random) -> Made:
    """A folder of classes, in some of which nothing is wrong."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    made = Made(_FOLDER / "data")
    modes = tuple(draw.sample(MODES[:-1], draw.randint(1, 3))) + (("transparent",) if draw.random() < 0.05 else ())
    for name in draw.sample(CLASSES, draw.randint(1, 4)):
        folder = made.root / name
        folder.mkdir(parents=True)
        put_image(draw, made, folder, modes)
        for _ in range(draw.randrange(5)):
            put_image(draw, made, folder, modes)
        if draw.random() < 0.3:
            (folder / draw.choice(NO_DATA)).write_bytes(b"x")
    if draw.random() < 0.3:
        (made.root / draw.choice((".git", "__MACOSX", "_temporary"))).mkdir()
        picture(draw, "RGB").save(next(one for one in made.root.iterdir() if one.name in _SKIPPED) / "1.png")
    for _ in range(draw.choice((0, 0, 1, 2))):
        put_links(draw, made)
    return made


_SKIPPED = (".git", "__MACOSX", "_temporary")


def expected(made: Made) -> dict[Path, Path]:
    """The images that a walk through links finds, and where each really is, without folders that a path is in."""
    found: dict[Path, Path] = {}

    def enter(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name in NO_DATA or path.name in _SKIPPED or not path.exists():
                continue
            if path.is_dir():
                inside = folder.resolve()
                if path.resolve() not in (inside, *inside.parents):
                    enter(path)
            else:
                found[path] = path.resolve()

    enter(made.root)
    return found


def truth(path: Path, channels: int, deep: bool) -> np.ndarray:
    """The pixels of an image in a form, by Pillow."""
    with Image.open(path) as image:
        if image.mode == "I;16":
            planes = np.asarray(image)[None].astype(np.int64)
            planes = planes if deep else np.rint(planes / 257).astype(np.int64)
            rgb = np.repeat(planes, 3, axis=0)
        else:
            rgb = np.asarray(image.convert("RGB")).transpose(2, 0, 1).astype(np.int64) * (257 if deep else 1)
        if channels == 1:
            return (
                rgb[:1] if image.mode == "I;16" else np.asarray(image.convert("L"))[None] * np.int64(257 if deep else 1)
            )
        alpha = np.full((1, *SIZE), 255, np.int64)
        if image.mode != "I;16":
            alpha = np.asarray(image.convert("RGBA"))[None, ..., 3].astype(np.int64)
        return rgb if channels == 3 else np.concatenate([rgb, alpha * (257 if deep else 1)])


def attempt(draw: random.Random) -> None:
    """Make a folder, read it or a list of its images, and compare all samples."""
    made = made_folder(draw)
    files = expected(made)
    options: dict[str, Any] = {}
    if draw.random() < 0.2:
        options["colors"] = draw.choice(("grey", "rgb", "rgba"))
        made.faults = [fault for fault in made.faults if fault != "transparency"]
    if draw.random() < 0.2:
        options["depth"] = draw.choice((8, 16))
    listed = draw.random() < 0.2 and not any(" " in str(path) for path in files)
    source = made.root
    if listed:
        source = made.root.parent / "list.txt"
        source.write_text("".join(f"{path}\n" for path in draw.sample(sorted(files), len(files))))
        made.faults = [fault for fault in made.faults if "nowhere" not in fault]
    try:
        reader = descend.data.read(str(source), **options)
        found = reader.read(np.arange(len(reader)))
    except DescendError as error:
        if not made.faults:
            raise AssertionError(f"a folder without a fault was refused: {error}") from error
        raise
    places = [Path(reader.source.place(sample)) for sample in range(len(reader))]
    assert sorted(places) == sorted(files), f"{len(places)} samples of {len(files)} images"
    channels, deep = reader.fields["image"].shape[0], reader.fields["image"].dtype == np.uint16
    for place, pixels in zip(places, found["image"], strict=True):
        assert (pixels == truth(place, channels, deep)).all(), f"other pixels of {place}"
    if "label" in found and not listed:
        root = Path(os.path.commonpath([path.parent for path in files]))
        names = [reader.classes["label"][label] for label in found["label"]]
        assert names == [place.relative_to(root).parts[0] for place in places]


if __name__ == "__main__":
    main(attempt, __doc__ or "")
