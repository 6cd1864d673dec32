"""Samples come from the cache with the same bits, and only from a cache of the same data and settings."""

import multiprocessing
import os
import pickle
import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from other_users import ATTACKER, needs_root
from PIL import Image

from descend.data import files, read
from descend.data.formats.image_files import ImageFiles
from descend.data.sample_cache import cache_folder, is_private, make_private
from descend.errors import ConfigurationError

RNG = np.random.default_rng(0)
IDS = np.array([3, 0, 3, 5])


@pytest.fixture
def folder(tmp_path):
    """Six images of two classes."""
    for number in range(6):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (20, 30, 3)).astype(np.uint8)).save(path)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The numbers of the samples that are decoded, in order."""
    numbers = []
    original = ImageFiles.read

    def counting(self, samples):
        numbers.extend(samples.tolist())
        return original(self, samples)

    monkeypatch.setattr(ImageFiles, "read", counting)
    return numbers


def opened(folder, **options):
    return read(folder / "data", image_size=8, **{"cache": folder / "cache", **options})


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype
        assert found[name].flags.c_contiguous


def test_each_sample_is_decoded_once(folder, decoded):
    wanted = read(folder / "data", image_size=8).read(IDS)
    decoded.clear()
    first = opened(folder)
    same(first.read(IDS), wanted)
    assert sorted(set(decoded)) == [0, 3, 5]
    decoded.clear()
    for reader in (first, opened(folder), pickle.loads(pickle.dumps(first))):
        same(reader.read(IDS), wanted)
    assert decoded == []
    opened(folder).read(np.arange(6))
    assert decoded == [1, 2, 4]
    assert first.classes == {"label": ["a", "b"]}


def test_other_settings_and_other_content_have_other_caches(folder, decoded):
    opened(folder).read(IDS)
    decoded.clear()
    assert read(folder / "data", image_size=9, cache=folder / "cache").read(IDS)["image"].shape == (4, 3, 9, 9)
    assert set(decoded) == {0, 3, 5}
    path = folder / "data" / "b" / "3.png"
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(path)
    os.utime(path, ns=(0, time.time_ns() + 10**9))
    found = opened(folder).read(np.arange(6))["image"]
    assert not found[np.flatnonzero(read(folder / "data").column("label") == 1)[1]].any()
    assert len(list((folder / "cache").glob("*.samples"))) == 3


def test_a_damaged_record_is_decoded_again(folder, decoded):
    wanted = opened(folder).read(IDS)
    [path] = (folder / "cache").glob("*.samples")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in sample 3 of 6
    path.write_bytes(content)
    decoded.clear()
    same(opened(folder).read(IDS), wanted)
    assert set(decoded) == {3}
    decoded.clear()
    same(opened(folder).read(IDS), wanted)
    assert decoded == []


def test_the_folder_is_bounded(folder, decoded):
    record = 3 * 8 * 8 + 8 + 4
    reader = opened(folder, cache_bytes=4 * record)
    wanted = reader.read(np.arange(6))
    decoded.clear()
    same(reader.read(np.arange(6)), wanted)
    assert decoded == [4, 5]
    other = folder / "cache" / "notes.txt"
    other.write_text("not ours")
    before = set((folder / "cache").glob("*.samples"))
    read(folder / "data", image_size=7, cache=folder / "cache", cache_bytes=6 * record).read(IDS)
    assert before.isdisjoint((folder / "cache").glob("*.samples"))
    assert other.exists()
    with pytest.raises(ConfigurationError, match="a sample has 200 bytes and cache_bytes is 100"):
        opened(folder, cache_bytes=100)


def test_a_full_disk_costs_time_alone(folder, decoded, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("descend.data.sample_cache.os.pwrite", full)
    reader = opened(folder)
    wanted = reader.read(IDS)
    same(reader.read(IDS), wanted)
    assert len(decoded) == 8


def _read_all(folder):
    reader = opened(folder)
    return [reader.read(np.random.default_rng(seed).permutation(6))["image"].sum() for seed in range(20)]


@pytest.mark.slow
def test_several_processes(folder):
    wanted = read(folder / "data", image_size=8).read(np.arange(6))["image"].sum()
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        for sums in pool.map(_read_all, [folder] * 6):
            assert set(sums) == {wanted}


def test_text_and_objects_have_no_cache(folder):
    (folder / "t.csv").write_text("a,b\n1,x\n2,y\n")
    with pytest.raises(ConfigurationError, match="'b' is text of any length"):
        read(folder / "t.csv", cache=folder / "cache")
    assert read(folder / "t.csv", cache=folder / "cache", label="b").read(np.array([1]))["b"].tolist() == [1]
    with pytest.raises(ConfigurationError, match="cache"):
        read({"x": np.zeros(3)}, cache=True)
    with pytest.raises(ConfigurationError, match="cache must be a folder, True or False"):
        read(folder / "t.csv", cache=3)
    (folder / "file").write_text("")
    with pytest.warns(UserWarning, match="file cannot be used .*: samples are decoded each time"):
        assert read(folder / "t.csv", cache=folder / "file", label="b").read(np.array([1]))["b"].tolist() == [1]


def test_a_cache_that_is_removed_before_its_first_use_costs_time_alone(folder):
    source = opened(folder)
    expected = source.read(IDS)
    later = opened(folder)
    shutil.rmtree(folder / "cache")
    with pytest.warns(UserWarning, match="cannot be read"):
        found = later.read(IDS)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_the_default_folder(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "home"))
    opened(folder, cache=True).read(IDS)
    assert len(list((folder / "home" / "descend" / "samples").iterdir())) == 2
    assert files.read(folder / "data", image_size=8).read(IDS)["image"].shape == (4, 3, 8, 8)


def test_the_default_folder_is_not_used_where_others_may_write_into_it(folder, decoded, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "home"))
    opened(folder, cache=True).read(IDS)
    cache = folder / "home" / "descend" / "samples"
    cache.chmod(0o777)
    decoded.clear()
    with pytest.warns(UserWarning, match=r"cache=True is not used: .*samples is not of this user alone.*chmod go-w"):
        opened(folder, cache=True).read(IDS)
    assert set(decoded) == {0, 3, 5}
    (folder / "cache").mkdir()
    (folder / "cache").chmod(0o777)  # named by the caller, who may share it
    opened(folder).read(IDS)
    decoded.clear()
    opened(folder).read(IDS)
    assert decoded == []


def test_a_file_whose_time_was_set_back_is_another_one(folder, decoded):
    opened(folder).read(IDS)
    path = folder / "data" / "b" / "3.png"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    decoded.clear()
    opened(folder).read(IDS)
    assert set(decoded) == {0, 3, 5}


# ---- where caches are, and who may have written into them


def test_the_folder_is_that_of_the_environment_or_below_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder("tar") == tmp_path / "x" / "descend" / "tar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert cache_folder("tar") == home / ".cache" / "descend" / "tar"
    assert list(tmp_path.iterdir()) == [home]
    assert not list(home.iterdir())  # nothing is made by asking


def test_without_a_home_users_do_not_share_a_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert str(os.getuid()) in cache_folder("tar").parts[-3]


def test_a_folder_is_made_for_this_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        assert make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.parametrize(
    ("mode", "private"), [(0o700, True), (0o755, True), (0o775, False), (0o777, False), (0o1777, False)]
)
def test_a_folder_that_others_may_write_is_not_private(tmp_path, mode, private):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert is_private(tmp_path / "a") is private
    assert make_private(tmp_path / "a") is private  # and is left as it is
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_folder_of_another_user_is_not_private(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not is_private(tmp_path / "a")
    assert not is_private(Path("/nonexistent"))


@needs_root
def test_a_folder_that_another_user_can_exchange_is_not_private(tmp_path):
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, ATTACKER, ATTACKER)
    (theirs / "tar").symlink_to(own)
    (tmp_path / "link").symlink_to(own)
    assert is_private(tmp_path / "link")
    os.lchown(tmp_path / "link", ATTACKER, ATTACKER)
    for folder in (theirs / "tar", tmp_path / "link", theirs / "new"):
        assert not is_private(folder)
        assert not make_private(folder)
    assert not (theirs / "new").exists()
