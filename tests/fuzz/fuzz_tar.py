"""Tar archives with links, joined by `cat`, compressed, cut and damaged: every member is a sample with its own content.

    python tests/fuzz/fuzz_tar.py --count 3000 --seed 0

What is in an archive is what Python's tarfile finds, which follows links and goes on behind the end of an archive. A
sample that is missing or comes twice, another content, and the refusal of an archive without a fault are findings; of a
cut or damaged one, fewer samples than tarfile finds in it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import descend.data
from descend.errors import DescendError
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_tar_"))
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
PACKERS = (gzip.compress, bz2.compress, lzma.compress)
KINDS = {
    "symbolic": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "folder": tarfile.DIRTYPE,
    "device": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
}


def new_name(draw: random.Random, names: list[str]) -> str:
    """The name of a next member, with a key of its own."""
    folder = draw.choice(("", "", "s/", "./", "s/t/", "_b/", "ä/", "d" * 60 + "/" + "e" * 60 + "/"))
    return f"{folder}{draw.choice(('', '_', 'k' * 90))}{len(names):04}.txt"


def target_of(draw: random.Random, name: str, names: list[str], kind: str, faults: list[str]) -> str:
    """Where a link leads: mostly to a member, at times to one that comes later, or nowhere."""
    chance = draw.random()
    if chance < 0.98 and names:
        target = draw.choice(names)
        if kind == "hard":
            return target
        here, there = name.split("/")[:-1], target.split("/")
        return (
            "/".join(["..", *there] if here in (["s"], ["ä"], ["_b"]) else there)
            if len(here) < 2
            else "/".join([*[".."] * len([part for part in here if part != "."]), *there])
        )
    faults.append("a link that may lead nowhere")
    return draw.choice(("nothing.txt", "/etc/passwd", "../../x.txt", name, "s", "later.txt", "", "x/" * 200))


def archive(draw: random.Random, names: list[str], faults: list[str]) -> bytes:
    """A tar archive with members that it adds to `names`, and what is wrong with it to `faults`."""
    stream = io.BytesIO()
    ascii_only = (form := draw.choice(FORMATS)) == tarfile.USTAR_FORMAT
    with tarfile.open(fileobj=stream, mode="w", format=form) as file:
        for _ in range(draw.randrange(1, 9)):
            name = new_name(draw, names)
            if ascii_only and (not name.isascii() or len(name) > 90):
                continue
            info, content = tarfile.TarInfo(name), b""
            match draw.randrange(12):
                case 0 | 1 | 2:
                    kind = draw.choice(("symbolic", "hard"))
                    info.type, info.linkname = KINDS[kind], target_of(draw, name, names, kind, faults)
                    if ascii_only and len(info.linkname) > 90:
                        continue
                    names.append(name)
                case 3:
                    info.name = draw.choice(("README", ".hidden.txt", "s/LICENSE", "s/.x"))
                    content = b"no sample"
                case 4:
                    kind = draw.choice(("folder", "device", "pipe", "sparse") if draw.random() < 0.2 else ("folder",))
                    info.type = KINDS[kind]
                    faults += [kind] if kind != "folder" else []
                case 5 if draw.random() < 0.1:
                    info.name = draw.choice(("/abs.txt", "../out.txt", *names[:1]))
                    faults.append("a name")
                case _:
                    content = draw.choice((b"", b"x", b"text " * 200, f"of {name}".encode(), b"\0" * 700))
                    names.append(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def joined(draw: random.Random) -> tuple[bytes, bytes, list[str]]:
    """The bytes of a file, those of the archives in it without compression, and what is wrong with them."""
    names: list[str] = []
    faults: list[str] = []
    parts = [archive(draw, names, faults) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    plain = b"".join(part + bytes(draw.choice((0, 0, 512, 5120))) for part in parts)
    chance = draw.random()
    if chance < 0.1:
        plain += draw.choice((b"rest", b"z" * 512, gzip.compress(plain)))
        faults.append("bytes behind the end")
    elif chance < 0.2:
        plain = plain[: draw.randrange(len(plain))]
        faults.append("cut")
    elif chance < 0.35:
        plain = other_bytes(plain, draw)
        faults.append("damage")
    if draw.random() < 0.7:
        return plain, plain, faults
    pack = draw.choice(PACKERS)
    at = draw.randrange(0, len(plain) + 1)
    packed = pack(plain) if draw.random() < 0.5 else pack(plain[:at]) + pack(plain[at:])
    if draw.random() < 0.1:
        packed = packed[: draw.randrange(len(packed))]
        faults.append("cut")
    return packed, plain, faults


def truth(plain: bytes) -> list[str]:
    """The contents of all samples in their order, by tarfile."""
    found: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(plain), ignore_zeros=True) as file:
        for member in file.getmembers():
            name = member.name.rpartition("/")[2]
            if name.startswith(".") or "." not in name or not (member.isfile() or member.islnk() or member.issym()):
                continue
            content = file.extractfile(member)
            assert content is not None
            found.append(content.read().decode("utf-8"))
    return found


def attempt(draw: random.Random) -> None:
    """Make a file, read all its samples, and compare their contents with those that tarfile finds."""
    content, plain, faults = joined(draw)
    path = _FOLDER / draw.choice(("a.tar", "a.tgz"))
    path.write_bytes(content)
    try:
        reader = descend.data.read(str(path))
        texts = reader.read(np.arange(len(reader)))["txt"].tolist()
    except DescendError as error:
        if not faults and "has no samples" not in str(error):
            raise AssertionError(f"an archive without a fault was refused: {error}") from error
        raise
    try:
        wanted = truth(plain)
    except (tarfile.TarError, KeyError, OSError, UnicodeDecodeError, RecursionError, AssertionError):
        assert faults, "tarfile refuses an archive without a fault"
        return
    # NumPy's texts have no zeros at their end.
    wanted = [text.rstrip("\0") for text in wanted]
    if "damage" in faults:
        assert len(texts) >= len(wanted), f"{len(texts)} samples of {len(wanted)}"
    else:
        assert texts == wanted, f"{len(texts)} samples of {len(wanted)}, or other contents ({faults})"


if __name__ == "__main__":
    main(attempt, __doc__ or "")
