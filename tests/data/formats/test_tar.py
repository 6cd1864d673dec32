"""Shards in webdataset's layout, written by Python's tarfile; by the library itself where it is installed."""

import bz2
import gc
import gzip
import io
import json
import lzma
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data.files import refusal, same
from data.formats.test_tar_index import write
from PIL import Image
from system_needs import library

from descend.data import Loading, open_data, read
from descend.errors import ConfigurationError, DataError

N = 10
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)
ARRAYS = RNG.normal(size=(N, 2, 3))
TRUTH = {
    "png": PIXELS.transpose(0, 3, 1, 2),
    "cls": np.arange(N) % 3,
    "txt": [f"text {i} ä" for i in range(N)],
    "v.npy": ARRAYS,
    "json.a": [i + 0.5 * (i == 4) for i in range(N)],
    "json.b.c": [[i, 2] for i in range(N)],
}


def png(pixels):
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def npy(array, **how):
    np.save(buffer := io.BytesIO(), array, **how)
    return buffer.getvalue()


def members(i):
    """The members of sample i."""
    return [
        (f"s/{i:04}.png", png(PIXELS[i])),
        (f"s/{i:04}.cls", str(i % 3).encode()),
        (f"s/{i:04}.txt", f"text {i} ä".encode()),
        (f"s/{i:04}.v.npy", npy(ARRAYS[i])),
        (f"s/{i:04}.json", json.dumps({"a": i + 0.5 if i == 4 else i, "b": {"c": [i, 2]}}).encode()),
    ]


@pytest.fixture
def shards(tmp_path):
    for number, part in enumerate((range(7), range(7, N))):
        write(tmp_path / f"shard-{number:06}.tar", [one for i in part for one in members(i)])
    return tmp_path


def test_samples_of_shards_in_any_order(shards):
    reader = read(shards, label="cls")
    same(reader, TRUTH)
    assert (reader.format, reader.pixels, reader.target) == ("tar", {"png"}, ("cls",))
    assert reader.source.place(8) == f"{shards / 'shard-000001.tar'}, s/0008"
    some = read(sorted(shards.iterdir()), columns=["cls", "txt"], target="txt")
    assert some.read(np.array([9, 0]))["txt"].tolist() == [9, 0]
    assert pickle.loads(pickle.dumps(reader)).read(np.array([3]))["cls"] == 0


def test_two_ranks_and_a_resumed_epoch_see_the_same_samples(shards):
    reader = read(shards, fields=["cls", "json.a"])
    whole = list(open_data(reader, Loading(batch_size=4, seed=1)).epoch(0))
    shares = [list(open_data(reader, Loading(batch_size=4, seed=1, rank=r, ranks=2)).epoch(0)) for r in (0, 1)]
    for one, left, right in zip(whole, *shares, strict=True):
        assert torch.equal(one.fields["json.a"], torch.cat([left.fields["json.a"], right.fields["json.a"]]))
    assert [b.ids.tolist() for b in open_data(reader, Loading(batch_size=4, seed=1)).epoch(0, 2)] == [
        whole[2].ids.tolist()
    ]


def test_ragged_arrays_need_a_length(tmp_path):
    contents = [np.arange(n) for n in (2, 3, 0)]
    write(tmp_path / "a.tar", [(f"{i}.npy", npy(array)) for i, array in enumerate(contents)])
    assert "sample 1 of reader 'tar' for 'train'" in (text := refusal(tmp_path / "a.tar"))
    assert "has the shape (3,) and (2,) in the first sample; pad or cut them with length=" in text
    wanted = {"npy": [[0, 1], [0, 1], [0, 0]], "npy_length": [2, 2, 0]}
    same(read(tmp_path / "a.tar", length=2), wanted)


def test_what_samples_lack_and_have_besides(tmp_path):
    contents = [("0.json", b'{"x": 1}'), ("0.mp4", b"?"), ("1.json", b'{"x": null}'), ("2.txt", b"no json")]
    reader = read(write(tmp_path / "a.tar", contents))
    assert reader.left_out == {"mp4": "there is no reader of .mp4"}
    np.testing.assert_array_equal(reader.read(np.array([1, 0]))["json.x"], [np.nan, 1])
    assert "sample 2" in (text := refusal(tmp_path / "a.tar"))
    assert "the sample has no member .json" in text
    with pytest.raises(ConfigurationError, match=r"no member \.jsn; did you mean 'json'"):
        read(tmp_path / "a.tar", columns=["jsn"])


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("code was run",))


def test_hostile_shards(tmp_path):
    path = tmp_path / "a.tar"
    harmful = pickle.dumps(Harmful())
    write(path, [("0.cls", b"1"), ("0.pyd", harmful)])
    assert "pickled objects, and reading it would run code" in refusal(path)
    same(read(path, columns=["cls"]), {"cls": [1]})
    write(path, [("0.npy", npy(np.array([Harmful()], dtype=object), allow_pickle=True))])
    assert "Python objects" in refusal(path)
    bomb = npy(np.zeros(3)).replace(b"(3,)", b"(9**9,)")
    write(path, [("0.npy", npy(np.zeros(3))), ("1.npy", bomb)])
    assert "sample 1" in refusal(path)
    write(path, [("0.cls", b"1"), ("1.cls", b"one")])
    assert "sample 1" in (text := refusal(path))
    assert "'cls' is 'one', and the first samples have int64" in text
    write(path, [("0.json", b"[" * 100_000)])
    assert "0: the member .json cannot be read" in refusal(path)
    write(path, [("README", b"")])
    assert "has no samples" in refusal(path)


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_compressed_shards(tmp_path, module):
    content = write(tmp_path / "a.tar", [member for i in range(N) for member in members(i)]).read_bytes()
    (tmp_path / "a.tar").write_bytes(module.compress(content))
    reader = read(tmp_path / "a.tar")
    same(reader, TRUTH)
    assert reader.source.place(3) == f"{tmp_path / 'a.tar'}, s/0003"
    (tmp_path / "a.tar").write_bytes(module.compress(content)[:-100])
    assert "a.tar cannot be decompressed into" in refusal(tmp_path / "a.tar")


def test_members_of_a_sample_that_are_apart(tmp_path):
    """As `tar -c` puts them, which takes names in the order of the folder."""
    apart = sorted((member for i in range(N) for member in members(i)), key=lambda member: member[0][::-1])
    same(read(write(tmp_path / "a.tar", apart)), {name: TRUTH[name] for name in read(tmp_path / "a.tar").fields})
    same(read(write(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("a.cls", b"3")])), {"cls": [1, 2, 3]})


def test_the_first_sample_lacks_a_member(tmp_path):
    reader = read(write(tmp_path / "a.tar", [("0.txt", b"x"), ("1.txt", b"y"), ("1.cls", b"5"), ("2.cls", b"6")]))
    assert list(reader.fields) == ["txt", "cls"]
    assert reader.read(np.array([1]))["cls"] == [5]
    with pytest.raises(DataError, match=r"sample 0 .* has no member \.cls"):
        reader.read(np.array([0]))


def test_the_library_itself(tmp_path):
    webdataset = library("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "shard-%06d.tar"), maxcount=4, verbose=0) as sink:
        for i in range(N):
            sink.write({"__key__": f"{i:04}", "png": PIXELS[i], "cls": i % 3, "npy": ARRAYS[i], "json": {"a": i}})
    truth = {"png": TRUTH["png"], "cls": TRUTH["cls"], "npy": ARRAYS, "json.a": range(N)}
    reader = read(tmp_path)
    assert len(reader) == N
    found = reader.read(np.arange(N))
    for name, values in truth.items():
        np.testing.assert_array_equal(found[name], values)
    theirs = webdataset.WebDataset(sorted(map(str, tmp_path.iterdir())), shardshuffle=False).decode("rgb8")
    for i, sample in enumerate(theirs):
        np.testing.assert_array_equal(found["png"][i], sample["png"].transpose(2, 0, 1))
        assert (found["cls"][i], found["json.a"][i]) == (sample["cls"], sample["json"]["a"])


def test_images_with_one_ending_or_another(tmp_path):
    """As in `to_tuple("jpg;png", "cls")` of webdataset."""
    gray = PIXELS[..., 0]
    kinds = ["png", "jpg", "webp"]
    some = [(f"{i}.{kinds[i]}", png(gray[i])) for i in range(3)] + [("3.cls", b"7")]
    path = write(tmp_path / "a.tar", [one for i in range(3) for one in (some[i], (f"{i}.cls", str(i).encode()))])
    reader = read(path, columns=["jpg;png;webp", "cls"])
    assert list(reader.fields) == ["jpg", "cls"]
    found = reader.read(np.array([2, 0, 1]))
    np.testing.assert_array_equal(found["jpg"][:, 0], gray[[2, 0, 1]])
    assert found["cls"].tolist() == [2, 0, 1]
    assert "the sample has no member .png, it has .jpg; columns=['png;jpg', ...] takes either" in refusal(path)


def test_no_file_is_left_open(shards, recwarn):
    def open_shards():
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(shards in link.readlink().parents for link in links)

    reader = read(shards)
    reader.read(np.arange(N))
    assert open_shards() == 2
    del reader
    gc.collect()
    assert open_shards() == 0
    assert not [one for one in recwarn if one.category is ResourceWarning]


def test_classes_of_text_have_numbers_without_being_asked_for(tmp_path):
    kinds = ["dog", "cat", "dog", "7"]
    write(tmp_path / "a.tar", [(f"{i}.cls", f"{kind}\n".encode()) for i, kind in enumerate(kinds)])
    reader = read(tmp_path / "a.tar")
    same(reader, {"cls": [2, 1, 2, 0]})
    assert reader.classes == {"cls": ["7", "cat", "dog"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"1.5", "'cls' is 1.5, and a class is an integer or text"), (b"\xe9", "'cls' is no text in UTF-8")],
)
def test_classes_that_are_none(tmp_path, content, words):
    write(tmp_path / "a.tar", [("0.cls", content)])
    assert words in refusal(tmp_path / "a.tar")


RED = np.full((6, 5, 3), [200, 30, 30], np.uint8)


@pytest.mark.parametrize("first", [PIXELS[0, ..., 0], PIXELS[0, ..., 0] > 127], ids=["grey", "1-bit"])
def test_one_grey_image_does_not_take_the_colours_of_all(tmp_path, first):
    images = [first, *[RED] * 4]
    for order in (images, images[::-1]):
        write(tmp_path / "a.tar", [(f"{i}.png", png(image)) for i, image in enumerate(order)])
        reader = read(tmp_path / "a.tar")
        assert reader.fields["png"].shape == (3, 6, 5)
        np.testing.assert_array_equal(reader.read(np.array([2]))["png"][0].transpose(1, 2, 0), RED)
    assert "image must be grey" not in str(read(tmp_path / "a.tar", colors="grey").fields)
    assert read(tmp_path / "a.tar", colors="grey").read(np.arange(5))["png"].shape == (5, 1, 6, 5)


def test_shards_of_all_roles_have_one_form(tmp_path):
    write(tmp_path / "train-0.tar", [("0.png", png(PIXELS[0, ..., 0]))])
    write(tmp_path / "val-0.tar", [("0.png", png(RED))])
    for role in ("train", "validate"):
        assert read(tmp_path, role=role).fields["png"].shape == (3, 6, 5)
        assert read(tmp_path, role=role, columns=["png"]).fields["png"].shape == (3, 6, 5)


@pytest.mark.parametrize("module", [None, gzip, bz2, lzma])
def test_joined_and_linked_shards(tmp_path, module):
    """As `cat a.tgz b.tgz` joins them, and as GNU tar writes a file with two names."""
    some = [("0.cls", b"0"), ("1.cls", b"1")]
    packed = []
    for number in range(2):
        path = write(tmp_path / "part", [(f"{number}{name}", content) for name, content in some])
        with tarfile.open(path, "a") as archive:
            info = tarfile.TarInfo(f"{number}2.cls")
            info.type, info.linkname = tarfile.LNKTYPE, f"{number}1.cls"
            archive.addfile(info)
        packed.append(path.read_bytes() if module is None else module.compress(path.read_bytes()))
    path.unlink()
    (tmp_path / "a.tar").write_bytes(b"".join(packed))
    reader = read(tmp_path / "a.tar")
    same(reader, {"cls": [0, 1, 1, 0, 1, 1]})
    assert reader.source.place(5) == f"{tmp_path / 'a.tar'}, 12"
    assert pickle.loads(pickle.dumps(reader)).read(np.array([2]))["cls"] == 1


def test_what_is_not_read_of_the_members_is_said(tmp_path):
    members = [
        ("README", b""),
        *((f"{i}.cls", b"1") for i in range(5)),
        ("4.mp4", b""),
        ("4.txt", b"x"),
        (".x.cls", b""),
    ]
    reader = read(write(tmp_path / "a.tar", members))
    assert reader.notes == (
        f"skipped 4 of 9 members of {tmp_path / 'a.tar'}: 1 without an ending (README), 1 hidden (.x.cls), 2 with an "
        "ending that is not read (.mp4, .txt)",
    )
    assert read(tmp_path / "a.tar", columns=["cls"]).notes == ()


def numbered(path, ending, contents):
    """A shard with a member of one ending for each sample."""
    write(path, [(f"{number:04}.{ending}", content) for number, content in enumerate(contents)])
    return path


@pytest.mark.parametrize(
    ("ending", "contents", "wrong"),
    [
        ("json", [b'{"n": 9007199254740993}', b'{"n": 0.5}'], "'json.n' must be float64, .* have 9007199254740993"),
        ("json", [b'{"n": 1}'] * 64 + [b'{"n": 18446744073709551615}'], "'json.n' must be int64"),
        (
            "npy",
            [npy(np.ones(2, np.int8))] * 64 + [npy(np.array([5, 300], np.int16))],
            "'npy' must be int8, .* 300",
        ),
        ("npy", [npy(np.ones(2, np.float32))] * 64 + [npy(np.full(2, 1e300))], "'npy' must be float32"),
    ],
)
def test_values_that_the_type_of_others_does_not_have_are_errors(tmp_path, ending, contents, wrong):
    reader = read(numbered(tmp_path / "a.tar", ending, contents))
    with pytest.raises(DataError, match=wrong):
        reader.read(np.arange(len(contents)))


def test_values_of_other_types_are_converted_where_nothing_is_lost(tmp_path):
    contents = [npy(np.ones(2, np.float32))] * 64 + [npy(np.array([np.nan, -np.inf]))]
    last = read(numbered(tmp_path / "a.tar", "npy", contents)).read(np.array([64]))["npy"]
    np.testing.assert_array_equal(last, np.array([[np.nan, -np.inf]], np.float32))
    days = [npy(np.array(["2020-01-01", "NaT"], "M8[D]"))] * 2
    assert read(numbered(tmp_path / "b.tar", "npy", days)).read(np.array([1]))["npy"].dtype.kind == "M"


def test_keys_that_the_first_sample_lacks(tmp_path):
    contents = [b'{"n": 1}', b'{"n": 2, "size": 3, "note": "x"}']
    reader = read(numbered(tmp_path / "a.tar", "json", contents))
    same(reader, {"json.n": [1, 2], "json.size": [np.nan, 3.0]})
    assert list(reader.left_out) == ["json.note"]


def test_an_integer_of_more_than_64_bits_is_named(tmp_path):
    assert "'json.n' must have 64 bits, got" in refusal(
        numbered(tmp_path / "a.tar", "json", [f'{{"n": {2**70}}}'.encode(), b'{"n": 1}'])
    )


def test_numbers_after_a_text_do_not_become_names_of_classes(tmp_path):
    contents = [b"x", *(str(number).encode() for number in range(12))]
    assert "'cls': 'x' is no number, and 12 of 13 cells are" in refusal(numbered(tmp_path / "a.tar", "cls", contents))


def test_a_key_that_appears_behind_the_first_samples_is_an_error_of_its_sample(tmp_path):
    rows = [{"json": '{"a": 1}', "cls": "1"}] * 64 + [{"json": '{"a": 1, "z": 2}', "cls": "1"}]
    members = [(f"{i:03}.{ending}", content.encode()) for i, row in enumerate(rows) for ending, content in row.items()]
    write(tmp_path / "a.tar", members)
    reader = read(tmp_path / "a.tar")
    assert reader.read(np.arange(64))["json.a"].tolist() == [1] * 64
    with pytest.raises(DataError, match=r"sample 64 .*'json.z', which none of the first 64 samples has: write null"):
        reader.read(np.arange(65))
    assert reader.column("cls").tolist() == [1] * 65
