"""HDF5 files of any content, some damaged: read as h5py reads them, or refused with an error of ours.

    python tests/fuzz/fuzz_hdf5.py --count 3000 --seed 0

Data sets of all types, shapes, chunks and filters, in groups and behind links, with attributes of netCDF; then some
bytes are changed, cut off or repeated. Of files that are whole every data set is a field with h5py's values, or is left
out with a reason.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import h5py
import numpy as np

import descend
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

NUMBERS = ("f2", "f4", ">f4", "f8", ">f8", "i1", "i2", ">i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "g", "c8", "c16")
NAMES = (
    "x",
    "y",
    "t",
    "label",
    "x_train",
    "x_test",
    "y_train",
    "train",
    "test",
    "é",
    "a b",
    "_i_x",
    "x_length",
    "x.y",
    "0",
)
TEXTS = ("", "a", "né", "日本", "x" * 40, " b ", "1.5", "nan")
BYTES = (b"", b"a", b"n\xc3\xa9", b"\xff\xfe", b"x" * 8)
ATTRIBUTES = ("_FillValue", "missing_value", "scale_factor", "add_offset", "valid_min", "valid_max", "valid_range")
_FILE = Path(tempfile.mkdtemp(prefix="fuzz_hdf5_")) / "a.h5"


def _numbers(draw: random.Random, kind: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(draw.getrandbits(32))
    values = rng.integers(-9, 9, size=shape).astype(kind)
    if kind.kind in "fc" and values.size and draw.random() < 0.3:
        values.reshape(-1)[0] = (
            draw.choice((np.nan, np.inf, 9.969209968386869e36, 0.1)) if kind.itemsize > 2 else np.inf
        )
    if kind.kind in "iu" and values.size and draw.random() < 0.2:
        values.reshape(-1)[-1] = draw.choice((np.iinfo(kind).min, np.iinfo(kind).max))
    return values


def _content(draw: random.Random, count: int) -> tuple[Any, Any]:
    """Values and the type that they are stored in; None for that of the values."""
    match draw.randrange(12):
        case 0:
            kind = h5py.string_dtype(draw.choice(("utf-8", "ascii")), draw.choice((None, None, 3, 50)))
            texts = TEXTS if h5py.check_string_dtype(kind).encoding == "utf-8" else ("a", "bc", "")
            chosen = [draw.choice(texts) for _ in range(count)]
            fixed = kind.kind == "S"
            return np.array([text.encode() for text in chosen]).astype(kind) if fixed else chosen, kind
        case 1:
            return np.array([draw.choice(BYTES) for _ in range(count)], "S8"), None
        case 2:
            rows = np.empty(count, object)
            inner = np.dtype(draw.choice(("i2", "f4", ">f8", "u8")))
            for row in range(count):
                rows[row] = _numbers(draw, inner, (draw.randrange(4),))
            return rows, h5py.vlen_dtype(inner)
        case 3:
            names = {name: place * draw.choice((1, 1, 3)) for place, name in enumerate(("cat", "dog", "né"))}
            return np.array([draw.choice(list(names.values())) for _ in range(count)], "i1"), h5py.enum_dtype(
                names, "i1"
            )
        case 4:
            parts = [("a", draw.choice(NUMBERS)), ("b", draw.choice(("i4", "S3", "f4"))), ("c", "f4", (2,))]
            return np.zeros(count, parts[: draw.randrange(1, 4)]), None
        case 5:
            dates = np.array([draw.randrange(10**9) for _ in range(count)], "M8[s]")
            return dates.astype(h5py.opaque_dtype(dates.dtype)), None
        case 6 if count:
            return [None] * count, draw.choice((h5py.ref_dtype, h5py.regionref_dtype))
        case _:
            shape = (count, *draw.choice(((), (), (2,), (3, 1), (0,), (2, 2, 2))))
            return _numbers(draw, np.dtype(draw.choice(NUMBERS)), shape), None


def _attribute(draw: random.Random, kind: np.dtype[Any]) -> Any:
    match draw.randrange(40):
        case 0:
            return draw.choice(("0.5", "none", "", b"\xff", "-9"))
        case 1:
            return h5py.Empty("f4")
        case 2:
            return [draw.randrange(-9, 9) for _ in range(draw.randrange(1, 4))]
        case 3:
            return draw.choice((float("nan"), float("inf"), 0.0, 1e300))
        case _:
            value = draw.choice((draw.randrange(-9, 9), 0.5, 1.0, 273.15))
            return np.array(value).astype(kind if kind.kind in "iuf" and draw.random() < 0.6 else "f4")[()]


def _data_set(draw: random.Random, group: Any, name: str, count: int) -> None:
    values, kind = _content(draw, count)
    options: dict[str, Any] = {}
    if count and draw.random() < 0.5 and not (isinstance(values, np.ndarray) and 0 in values.shape):
        rest = values.shape[1:] if isinstance(values, np.ndarray) else ()
        options["chunks"] = (draw.choice((1, 2, count, 64)), *rest) if draw.random() < 0.7 else True
        if options["chunks"] is not True and options["chunks"][0] > count:
            options["maxshape"] = (None, *rest)
        options |= draw.choice(({}, {"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}))
        options |= draw.choice(({}, {"fletcher32": True})) if kind is None else {}
    made = group.create_dataset(name, dtype=kind, data=values, **options)
    for attribute in draw.sample(ATTRIBUTES, draw.choice((0, 0, 0, 1, 2, 4))):
        made.attrs[attribute] = _attribute(draw, made.dtype)
    if draw.random() < 0.1:
        made.attrs["_Unsigned"] = draw.choice(("true", "false", b"TRUE", 1))
    if draw.random() < 0.05:
        made.make_scale(draw.choice(("time", "This is a netCDF dimension but not a netCDF variable.  4")))


def made(draw: random.Random) -> bytes:
    """A file."""
    stream, count = io.BytesIO(), draw.choice((0, 1, 3, 3, 5, 5, 5, 5, 5, 5, 130))
    with h5py.File(stream, "w", libver=draw.choice(("earliest", "latest", "v110"))) as file:
        if draw.random() < 0.4:
            file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2"
        for name in draw.sample(NAMES, draw.randrange(1, 5)):
            nested = draw.choice(("train group", "test group", "g", "g/h")) if draw.random() < 0.2 else None
            group = file if nested is None else file.require_group(nested)
            if name in group:
                continue
            match draw.randrange(16):
                case 0:
                    group[name] = h5py.SoftLink(draw.choice(("/x", "/nowhere", name, "/")))
                case 1:
                    group[name] = h5py.ExternalLink(draw.choice(("/etc/passwd", "b.h5", _FILE.name)), "/x")
                case 2:
                    group[name] = draw.choice((3.5, "text", h5py.Empty("f4")))
                case 3:
                    large = draw.choice((2, 10**4, 2**22 // (count or 1), 10**9, 2**62 // 8))
                    group.create_dataset(name, (count or 1, large), "f4", chunks=(1, min(large, 10**6)))
                case 4:
                    group.create_dataset(name, (count or 1, 3), "i4", fillvalue=draw.choice((0, 7)))
                case 5:
                    group[name] = file
                case _:
                    own = count if draw.random() < 0.97 else count + 1
                    _data_set(draw, group, name, own)
    return stream.getvalue()


def attempt(draw: random.Random) -> None:
    """Write a file, perhaps damage it, read all of it, and compare."""
    content, is_whole = made(draw), draw.random() < 0.6
    _FILE.write_bytes(content if is_whole else other_bytes(content, draw))
    options: dict[str, Any] = {"mask_and_scale": draw.random() < 0.5}
    if draw.random() < 0.1:
        options["target"] = draw.choice(NAMES)
    if draw.random() < 0.1:
        options["key"] = draw.choice((*NAMES, "g", "train"))
    reader = descend.data.read(_FILE, **options)
    ids = np.array([draw.randrange(len(reader)) for _ in range(draw.randrange(1, 8))])
    parts = [ids, np.arange(len(reader))]
    found = [reader.read(part) for part in parts]
    if is_whole:
        _compare(reader, parts, found, options)


def _compare(reader: Any, parts: list[Any], found: list[Any], options: dict[str, Any]) -> None:
    with h5py.File(_FILE, locking=False) as file:
        if not any(word in name for name in file for word in ("train", "test")) and options.get("key") is None:
            _check_that_none_is_lost(reader, file)
        for part, fields in zip(parts, found, strict=True):
            for name, values in fields.items():
                assert values.shape == (len(part), *reader.fields[name].shape), f"the shape of {name}"
                assert values.dtype.kind == reader.fields[name].dtype.kind, f"the type of {name}"
                inside = reader.source._names.get(name) if hasattr(reader.source, "_names") else None
                if inside is None or name in reader.classes or file[inside].dtype.names:
                    continue
                _same(name, values, file[inside], part, options["mask_and_scale"])


def _check_that_none_is_lost(reader: Any, file: Any) -> None:
    own = getattr(reader.source, "_source", reader.source)  # of texts that are numbered as classes
    read = [file[inside] for inside in own._names.values()]

    def check(path: str, one: Any) -> None:
        names = (path, path.replace("/", "."))
        left_out = any(name in (key, key[: len(name)]) for key in reader.left_out for name in names)
        assert not isinstance(one, h5py.Dataset) or left_out or one in read, f"{path} is neither read nor left out"

    file.visititems(check)


def _same(name: str, values: Any, stored: Any, ids: Any, meant: bool) -> None:
    expected = stored[()][ids]
    if h5py.check_string_dtype(stored.dtype) is not None or stored.dtype.kind == "S":
        expected = np.array([one.decode() for one in expected.reshape(-1)], str).reshape(expected.shape)
    elif h5py.check_vlen_dtype(stored.dtype) is not None:
        if not meant:
            for row, one in zip(values, expected, strict=True):
                assert np.array_equal(row[: len(one)], one, equal_nan=True), f"the values of {name}"
        return
    elif meant and any(key in stored.attrs for key in (*ATTRIBUTES, "_Unsigned")):
        return  # compared by tests/data/formats/test_cf_attributes.py
    elif meant and values.dtype.kind == "f" and values.dtype.itemsize > 2:
        # What netCDF fills in is missing in its files, of which these have several marks.
        fill = expected.dtype.type(9.969209968386869e36)
        values, expected = (np.where(one == fill, np.nan, one) for one in (values, expected))
    assert np.array_equal(values, expected, equal_nan=expected.dtype.kind in "fc"), f"the values of {name}"


if __name__ == "__main__":
    main(attempt, __doc__ or "")
