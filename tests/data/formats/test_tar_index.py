"""Tar files written by Python's tarfile in its three formats."""

import io
import json
import os
import subprocess
import tarfile
import time

import numpy as np
import pytest

from descend.data.formats import tar_index, tar_members
from descend.data.formats.tar_index import index_of, key_and_ending
from descend.data.formats.tar_members import Member, members_of, name_before
from descend.errors import DataError


@pytest.fixture(autouse=True)
def no_index_is_kept(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(tar_index, "KEPT_SECONDS", 1e9)


LONG = "folder/" * 30 + "k" * 120 + ".txt"


def write(path, members, kind=tarfile.PAX_FORMAT):
    """A tar file of (name, content)."""
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_where_tarfile_finds_them(tmp_path, kind):
    names = ["a.txt", "b/c.x", "d" * 90 + "/" + "e" * 90 + ".y", "ü.z" if kind != tarfile.USTAR_FORMAT else "u.z"]
    names += [LONG] if kind != tarfile.USTAR_FORMAT else []
    path = write(tmp_path / "a.tar", [(name, bytes([65 + i]) * (i * 300)) for i, name in enumerate(names)], kind)
    with tarfile.open(path) as archive:
        wanted = [Member(one.name, one.offset_data, one.size) for one in archive.getmembers()]
    assert list(members_of(path)) == wanted
    assert name_before(path, wanted[0].offset) == "a.txt"


def test_samples_are_neighbours_with_the_same_key(tmp_path):
    names = ["README", "0.a", "0.b.c", "x/1.a", "2.a", "2.b.c", ".hidden", "x/.also.a", "2.D"]
    index = index_of(write(tmp_path / "a.tar", [(name, name.encode()) for name in names]))
    assert index.endings == ("a", "b.c", "d")
    assert index.sizes.tolist() == [[3, 5, 0], [5, 0, 0], [3, 5, 3]]
    assert (index.offsets < 0).tolist() == [[False, False, True], [False, True, True], [False, False, False]]
    assert key_and_ending("a.b/0001.seg.png") == ("a.b/0001", "seg.png")


def test_names_and_links_lead_nowhere(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("/etc/0.a", tarfile.REGTYPE), ("../0.b", tarfile.SYMTYPE), ("c", tarfile.DIRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    found = {member.name: member.kind for member in members_of(tmp_path / "a.tar")}
    assert found == {"/etc/0.a": "file", "../0.b": "symbolic link", "c/": "folder"}
    with pytest.raises(DataError, match=r"a member '/etc/0\.a', a name that leads out"):
        index_of(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["/etc/1.a", "../1.a", "b/../../1.a"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    path = write(tmp_path / "a.tar", [("0..a", b"x"), (name, b"y")])
    with pytest.raises(DataError, match=f"sample 1 has a member '{name}', a name that leads out"):
        index_of(path)


def test_damaged_and_hostile_files(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tar", [("0.a", b"x" * 2000), ("1.a", b"y")])
    content = path.read_bytes()

    def refusal(changed):
        path.write_bytes(changed)
        with pytest.raises(DataError) as caught:
            index_of(path)
        return str(caught.value)

    assert "is truncated" in refusal(content[:1500])
    assert "ends within the header" in refusal(content[: 512 + 2048 + 100])
    assert "is not a tar file" in refusal(b"A" * 1024)
    assert "is damaged at byte 2,560" in refusal(content[:2600] + b"?" + content[2601:])

    def header(**changes):
        info = tarfile.TarInfo("0.a")
        for name, value in changes.items():
            setattr(info, name, value)
        return info.tobuf(tarfile.GNU_FORMAT)

    assert "is truncated" in refusal(header(size=2**60) + bytes(1024))
    assert "unknown type b'X'" in refusal(header(type=b"X") + bytes(1024))
    assert "is sparse" in refusal(header(type=b"S") + bytes(1024))
    assert "at most 65,536 do" in refusal(header(type=b"L", size=2**17) + bytes(2**18))
    settings = b"22 GNU.sparse.major=1\n"
    assert "is sparse" in refusal(header(type=b"x", size=22) + settings.ljust(512, b"\0") + header() + bytes(1024))
    assert "settings of a member" in refusal(header(type=b"x", size=4) + b"9 ab".ljust(512, b"\0") + bytes(1024))
    assert "two members of sample 0" in refusal(header() + header() + bytes(1024))
    monkeypatch.setattr(tar_index, "MEMBER_BYTES", 1000)
    assert "has 2,000 bytes; at most 1,000" in refusal(content)
    many = [(f"0.e{i}", b"") for i in range(300)]
    write(path, many)
    assert "more than 256 endings" in refusal(path.read_bytes())


def test_an_index_that_took_long_is_kept_for_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "a.tar", [("0.a", b"x"), ("1.a", b"yy")])
    index_of(path)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(tar_index, "KEPT_SECONDS", -1)
    first = index_of(path)
    [kept] = (tmp_path / "cache" / "descend" / "tar").iterdir()
    monkeypatch.setattr(tar_index, "members_of", None)  # not called again
    again = index_of(path)
    assert again.endings == first.endings
    assert again.offsets.tolist() == first.offsets.tolist()
    assert again.sizes.tolist() == first.sizes.tolist()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tar_index, "KEPT_SECONDS", -1)
    kept.write_bytes(kept.read_bytes()[:100])
    assert len(index_of(path)) == 2
    monkeypatch.setattr(tar_index, "KEPT_BYTES", 1)
    write(path, [("0.a", b"x"), ("1.a", b"yy"), ("2.a", b"z" * 3000)])
    assert len(index_of(path)) == 3
    assert len(list(kept.parent.iterdir())) == 1


def test_a_file_that_was_cut_between_two_members_is_found(tmp_path):
    """All headers and contents are whole; only the end is not there."""
    path = write(tmp_path / "a.tar", [("1.txt", b"a"), ("2.txt", b"b")])
    assert len(list(members_of(path))) == 2
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(DataError, match=r"a\.tar is truncated: behind its last member .* 'truncate -s \+1024 FILE'"):
        list(members_of(path))
    path.write_bytes(path.read_bytes() + bytes(1024))
    assert [member.name for member in members_of(path)] == ["1.txt"]


def link(name, target, kind=tarfile.SYMTYPE):
    """A link as `archive_of` takes it."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def archive_of(path, *members, form=tarfile.PAX_FORMAT):
    """A tar file of contents by (name, content), and of links."""
    with tarfile.open(path, "w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def contents_of(path):
    """The contents of all samples by key and ending."""
    index, file = index_of(path), path.read_bytes()
    return {
        f"{index.key(row)}.{ending}": file[offset : offset + size]
        for row, (offsets, sizes) in enumerate(zip(index.offsets.tolist(), index.sizes.tolist(), strict=True))
        for ending, offset, size in zip(index.endings, offsets, sizes, strict=True)
        if offset >= 0
    }


def contents_by_tarfile(path):
    with tarfile.open(path, ignore_zeros=True) as archive:
        files = [one for one in archive.getmembers() if not one.isdir()]
        return {os.path.normpath(one.name): archive.extractfile(one).read() for one in files}


HARD = tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("1.a", b"x"), link("2.a", "1.a", HARD), link("3.a", "2.a", HARD)],
        [("s/1.a", b"x"), link("s/2.a", "1.a"), link("t/3.a", "../s/2.a"), link("4.a", "./t/.././t/3.a")],
        [link("0.a", "1.a"), ("1.a", b"later")],
        [("./1.a", b"x"), link("./2.a", "./1.a", HARD), link("3.a", "1.a", HARD)],
        [("1.a", b"x" * 600), ("1.b", b"y"), link("2.a", "1.a"), ("2.b", b"z"), ("3.a", b"w"), link("3.b", "2.b")],
        [("k/" * 40 + "k.a", b"x"), link("l" * 150 + ".a", "k/" * 40 + "k.a"), link("2.a", "l" * 150 + ".a")],
    ],
)
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_have_the_content_of_what_they_lead_to(tmp_path, members, form):
    path = archive_of(tmp_path / "a.tar", *members, form=form)
    truth = contents_by_tarfile_but_folders(path)
    assert {os.path.normpath(name): content for name, content in contents_of(path).items()} == truth


def test_folders_that_are_links_are_followed(tmp_path):
    """As a shell does where the archive is unpacked; Python's tarfile does not."""
    members = [("real/1.a", b"x"), link("folder", "real"), link("2.a", "folder/1.a"), link("real/3.a", "../folder/1.a")]
    path = archive_of(tmp_path / "a.tar", *members)
    subprocess.run(["tar", "xf", path], cwd=tmp_path, check=True)
    names = ("real/1.a", "2.a", "real/3.a")
    assert contents_of(path) == {name: (tmp_path / name).read_bytes() for name in names}
    assert index_of(path).skipped == {"without an ending": (["folder"], 1)}


def contents_by_tarfile_but_folders(path):
    """The same, without links to folders, whose names have no ending."""
    with tarfile.open(path) as archive:
        files = [one for one in archive.getmembers() if "." in one.name.rpartition("/")[2]]
        return {os.path.normpath(one.name): archive.extractfile(one).read() for one in files}


def test_links_that_gnu_tar_writes_by_itself(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.cls").write_text(str(number))
    os.link(tmp_path / "1.cls", tmp_path / "7.cls")
    (tmp_path / "8.cls").symlink_to("2.cls")
    subprocess.run(["tar", "cf", "a.tar", *sorted(one.name for one in tmp_path.iterdir())], cwd=tmp_path, check=True)
    assert contents_of(tmp_path / "a.tar") == contents_by_tarfile(tmp_path / "a.tar")
    assert contents_of(tmp_path / "a.tar")["7.cls"] == b"1"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("1.a", b""), link("2.a", "3.a")], r"'2\.a' is a symbolic link to '3\.a', and the file has no member"),
        ([("1.a", b""), link("2.a", "3.a", HARD)], r"'2\.a' is a hard link to '3\.a', and the file has no member"),
        ([("s/1.a", b""), link("2.a", "s")], r"is a symbolic link to 's', and the file has no member"),
        ([("1.a", b""), link("2.a", "/etc/passwd")], "which leads out of the file; write contents in place of links"),
        ([("1.a", b""), link("s/2.a", "../../1.a")], "which leads out of the file"),
        ([link("up", "../x"), link("2.a", "up/1.a")], "which leads out of the file"),
        ([link("1.a", "1.a")], r"'1\.a' is a symbolic link that leads in a circle"),
        ([link("1.a", "2.a"), link("2.a", "1.a")], "leads in a circle"),
        ([link("x", "x/x"), link("1.a", "x/1.a")], "leads in a circle|no file can have|no member"),
        ([link("1.a", "x/" * 300 + "1.a")], "to a name that no file can have"),
    ],
)
def test_links_that_lead_to_no_member_are_errors_that_say_so(tmp_path, members, words):
    with pytest.raises(DataError, match=words):
        index_of(archive_of(tmp_path / "a.tar", *members))


def test_a_hard_link_is_to_the_member_before_it_and_a_symbolic_one_to_the_last(tmp_path):
    """As `tar -r` appends a newer file of the same name."""
    path = archive_of(
        tmp_path / "a.tar", ("1.a", b"old"), link("2.a", "1.a", HARD), link("3.a", "1.a"), ("1.a", b"new")
    )
    index, file = index_of(path), path.read_bytes()
    found = [file[offset : offset + size] for (offset,), (size,) in zip(index.offsets, index.sizes, strict=True)]
    assert found == [b"old", b"old", b"new", b"new"]
    old = ("1.a", b"old"), link("2.a", "1.a", HARD), link("3.a", "2.a"), ("1.a", b"new")  # by way of the hard link
    assert contents_of(archive_of(tmp_path / "a.tar", *old))["3.a"] == b"old"


def test_many_links_are_resolved_in_time_and_too_many_are_refused(tmp_path, monkeypatch):
    names = [("0.a", b"x"), *(link(f"{number}.a", f"{number - 1}.a", HARD) for number in range(1, 5000))]
    short = [("0.a", b"x"), *(link(f"{number}.a", "0.a", HARD) for number in range(1, 5000))]
    for members in (names, names[:1] + names[:0:-1], short):
        path = archive_of(tmp_path / "a.tar", *members)
        begin = time.process_time()
        assert set(contents_of(path).values()) == {b"x"}
        assert len(index_of(path)) == 5000
        assert time.process_time() - begin < 10
    monkeypatch.setattr(tar_members, "MAX_PASSED_OVER", 100)
    with pytest.raises(DataError, match="more than 100 links, folders and devices"):
        index_of(tmp_path / "a.tar")
    monkeypatch.undo()
    monkeypatch.setattr(tar_members, "_LINK_BYTES", 1000)
    with pytest.raises(DataError, match="names have more than 1,000 bytes"):
        index_of(tmp_path / "a.tar")


@pytest.mark.parametrize("zeros", [0, 512, 10240, 2**20])
def test_archives_that_are_joined_are_read_to_the_last(tmp_path, zeros):
    parts = [write(tmp_path / f"{i}.tar", [(f"{i}{j}.a", f"{i}{j}".encode()) for j in range(2)]) for i in range(3)]
    joined = bytes(zeros).join(part.read_bytes() for part in parts)
    (tmp_path / "a.tar").write_bytes(joined + bytes(zeros))
    assert contents_of(tmp_path / "a.tar") == {f"{i}{j}.a": f"{i}{j}".encode() for i in range(3) for j in range(2)}
    assert contents_of(tmp_path / "a.tar") == contents_by_tarfile(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(joined + bytes(zeros + 100))  # no whole block
    assert len(index_of(tmp_path / "a.tar")) == 6


@pytest.mark.parametrize("rest", [b"rest", b"x" * 512, b"\x1f\x8b" + bytes(700), bytes(512) + b"y" * 600])
def test_what_follows_the_end_and_is_no_archive_is_an_error(tmp_path, rest):
    content = write(tmp_path / "a.tar", [("1.a", b"x")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(content + rest)
    with pytest.raises(DataError, match=r"has bytes behind its end, at byte \d|ends within the header of a member"):
        index_of(tmp_path / "a.tar")


def test_links_lead_to_members_of_any_of_the_joined_archives(tmp_path):
    one = archive_of(tmp_path / "1.tar", ("1.a", b"x"), link("2.a", "3.a")).read_bytes()
    two = archive_of(tmp_path / "2.tar", ("3.a", b"y"), link("4.a", "1.a", HARD)).read_bytes()
    (tmp_path / "a.tar").write_bytes(one + two)
    assert contents_of(tmp_path / "a.tar") == {"1.a": b"x", "2.a": b"y", "3.a": b"y", "4.a": b"x"}


def test_a_hole_behind_the_end_takes_no_time(tmp_path):
    path = write(tmp_path / "a.tar", [("1.a", b"x")])
    os.truncate(path, 2**40)
    begin = time.process_time()
    assert len(index_of(path)) == 1
    assert time.process_time() - begin < 5


def test_members_that_are_no_samples_are_counted(tmp_path):
    pipe = link("pipe.a", "", tarfile.FIFOTYPE)
    members = [
        ("README", b""),
        ("s/.hidden.a", b""),
        ("LICENSE", b""),
        pipe,
        link("d", "", tarfile.DIRTYPE),
        ("1.a", b"x"),
    ]
    index = index_of(archive_of(tmp_path / "a.tar", *members))
    assert index.skipped == {
        "without an ending": (["README", "LICENSE"], 2),
        "hidden": (["s/.hidden.a"], 1),
        "device": (["pipe.a"], 1),
    }
    assert (len(index), index.members) == (1, 5)


def test_a_global_header_that_would_move_members_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"comment": "of git archive"}) as archive:
        archive.addfile(tarfile.TarInfo("1.a"))
    assert len(index_of(tmp_path / "a.tar")) == 1
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"path": "2.a"}) as archive:
        archive.addfile(tarfile.TarInfo("1.a"))
    with pytest.raises(DataError, match=r"global header .* sets 'path' of all members"):
        index_of(tmp_path / "a.tar")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of indices, each of which is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tar_index, "KEPT_SECONDS", -1)
    return tmp_path / "cache" / "descend" / "tar"


def test_an_index_keeps_what_is_known_of_links_and_of_what_is_skipped(tmp_path, kept):
    path = archive_of(tmp_path / "a.tar", ("README", b""), ("1.a", b"x"), link("2.a", "1.a"))
    made, loaded = index_of(path), index_of(path)
    assert len(list(kept.iterdir())) == 1
    assert loaded.keys == made.keys == {1: "2"}
    assert loaded.skipped == made.skipped
    assert loaded.members == made.members == 3


def test_an_index_of_another_form_or_of_another_file_is_not_believed(tmp_path, kept):
    path = write(tmp_path / "a.tar", [("0.a", b"x"), ("1.a", b"yy")])
    index_of(path)
    [file] = kept.iterdir()
    with np.load(file) as archive:
        arrays = dict(archive)
    for changes in ({"form": 1}, {"endings": None}, {"keys": [1]}, {"skipped": {"hidden": 3}}):
        about = {**json.loads(arrays["about"].tobytes()), **changes}
        wrong = {
            **arrays,
            "offsets": arrays["offsets"] * 0,
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        }
        np.savez(file, **wrong)
        assert contents_of(path) == {"0.a": b"x", "1.a": b"yy"}
    before = path.stat()
    write(path, [("0.a", b"z"), ("1.a", b"ww")])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as programs set it that copy files
    assert contents_of(path) == {"0.a": b"z", "1.a": b"ww"}


def test_an_index_that_others_could_have_written_is_not_believed(tmp_path, kept):
    path = write(tmp_path / "a.tar", [("0.a", b"x"), ("1.a", b"yy")])
    index_of(path)
    assert [folder.stat().st_mode & 0o777 for folder in (kept, *list(kept.parents)[:2])] == [0o700] * 3
    [file] = kept.iterdir()
    with np.load(file) as archive:
        planted = {**archive, "offsets": archive["offsets"] + 1}
    np.savez(file, **planted)
    assert b"x" not in contents_of(path).values()  # what is planted would be believed
    for mode in (0o777, 0o770, 0o1777):
        kept.chmod(mode)
        assert contents_of(path)["0.a"] == b"x"
    kept.chmod(0o755)
    assert b"x" not in contents_of(path).values()
    if os.getuid() == 0:
        os.chown(kept, 12345, -1)
        assert contents_of(path)["0.a"] == b"x"


def test_sizes_of_links_in_their_headers_mean_nothing(tmp_path):
    """Some programs write the size of what a hard link leads to, whose content does not follow."""
    one = link("2.a", "1.a", HARD)
    one.size = 5000
    path = archive_of(tmp_path / "a.tar", ("1.a", b"x"), one, ("3.a", b"y"))
    assert contents_of(path) == {"1.a": b"x", "2.a": b"x", "3.a": b"y"}


def test_many_links_to_a_name_that_many_members_have_take_no_time(tmp_path):
    names = [(f"{'ab'[number % 2]}.a", b"x") for number in range(6000)]
    path = archive_of(tmp_path / "a.tar", *names, *(link(f"{number}.a", "a.a", HARD) for number in range(6000)))
    begin = time.process_time()
    assert len(index_of(path)) == 12_000
    assert time.process_time() - begin < 10


def test_a_hard_link_to_itself_leads_nowhere(tmp_path):
    with pytest.raises(DataError, match=r"'1\.a' is a hard link to '1\.a', and the file has no member"):
        index_of(archive_of(tmp_path / "a.tar", link("1.a", "1.a", HARD)))
