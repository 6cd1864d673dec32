"""Where caches are, and who may have written into them."""

import os
import stat
from pathlib import Path

import pytest
from other_users import ATTACKER, needs_root

from descend.data.cache_folder import cache_folder, is_private, make_private


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
