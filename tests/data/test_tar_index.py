"""Tar files written by Python's tarfile in its three formats."""

import io
import tarfile

import pytest

from descend.data import tar_index
from descend.data.tar_index import Member, index_of, key_and_ending, members_of, name_before
from descend.errors import DataError

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
    assert [member.name for member in members_of(tmp_path / "a.tar")] == ["/etc/0.a"]


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
