"""A cache folder that this user alone can write: nothing that others have put there, or could exchange, is read."""

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from other_users import ATTACKER, VICTIM, as_user, needs_root, status_of
from system_needs import needs_compiler

from descend.files.private_folder import PrivateFolder, cache_root, load_library


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DESCEND_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/"}, "/b/descend"),
        ({"XDG_CACHE_HOME": "b", "HOME": "/"}, "/.cache/descend"),
        ({"HOME": "/"}, "/.cache/descend"),
        ({"HOME": "/", "TORCHINDUCTOR_CACHE_DIR": "/d"}, "/.cache/descend"),
    ],
)
def test_the_folder_of_caches_is_the_users(monkeypatch, variables, expected):
    for name in ("DESCEND_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)


def test_without_a_home_there_is_no_folder_and_none_is_made(monkeypatch, tmp_path):
    for name in ("DESCEND_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="HOME is not set"):
        cache_root()
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    with pytest.raises(OSError, match="does not exist"):
        cache_root()
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_is_read_and_no_other_user_can_look_in(tmp_path):
    folder = PrivateFolder(tmp_path / "a" / "b")
    folder.write("one", b"content")
    assert folder.read("one") == b"content"
    assert folder.read("two") is None
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b" / "one").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["one"]
    folder.write("one", b"other content")
    assert PrivateFolder(tmp_path / "a" / "b").read("one") == b"other content"


def test_any_changed_byte_is_seen(tmp_path):
    folder, file = PrivateFolder(tmp_path / "a"), tmp_path / "a" / "one"
    folder.write("one", b"content")
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert folder.read("one") is None
        assert not file.exists()
    for cut in range(len(good)):
        file.write_bytes(good[:cut])
        assert folder.read("one") is None


def test_what_is_no_file_is_not_read(tmp_path):
    folder = PrivateFolder(tmp_path / "a")
    folder.write("real", b"content")
    (tmp_path / "a" / "link").symlink_to("real")
    os.mkfifo(tmp_path / "a" / "pipe")
    (tmp_path / "a" / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(OSError, match=r"."):
            folder.read(name)


def test_links_of_ones_own_are_followed(tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("elsewhere/deep")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    PrivateFolder(tmp_path / "absolute" / "cache").write("one", b"content")
    assert (tmp_path / "elsewhere" / "deep" / "cache" / "one").is_file()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"."):
        PrivateFolder(tmp_path / "circle" / "cache")


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o702])
def test_a_folder_that_others_may_write_is_refused_wherever_it_stands(tmp_path, mode):
    (tmp_path / "open" / "cache").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    with pytest.raises(PermissionError, match="another user"):
        PrivateFolder(tmp_path / "open" / "cache")
    with pytest.raises(PermissionError, match="another user"):
        PrivateFolder(tmp_path / "open")
    (tmp_path / "open").chmod(mode | stat.S_ISVTX)  # as /tmp: entries of this user stay
    PrivateFolder(tmp_path / "open" / "cache").write("one", b"content")


def test_a_folder_that_is_removed_or_exchanged_is_not_read_from_its_path(tmp_path):
    folder = PrivateFolder(tmp_path / "a")
    folder.write("one", b"content")
    (tmp_path / "a").rename(tmp_path / "away")
    PrivateFolder(tmp_path / "a").write("one", b"other")
    assert folder.read("one") == b"content"
    shutil.rmtree(tmp_path / "away")
    assert folder.read("one") is None
    with pytest.raises(OSError, match=r"."):
        folder.write("two", b"content")


@pytest.mark.parametrize("name", ["a file", "a file/below", "/proc/descend", "/dev/null/cache"])
def test_a_place_that_cannot_be_a_folder_is_an_error_of_the_system(tmp_path, name):
    (tmp_path / "a file").touch()
    with pytest.raises(OSError, match=r"."):
        PrivateFolder(tmp_path / name)


def library(folder: Path, number: int, more: str = "") -> bytes:
    source = f'extern "C" int number() {{ return {number}; }}\n{more}'
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / "made.so")]
    subprocess.run(command, input=source.encode(), check=True)
    return (folder / "made.so").read_bytes()


@needs_compiler
@pytest.mark.parametrize("has_anonymous_files", [True, False])
def test_a_library_is_loaded_from_memory_and_each_is_its_own(tmp_path, monkeypatch, has_anonymous_files):
    if not has_anonymous_files:
        monkeypatch.delattr(os, "memfd_create")
    loaded = [load_library(library(tmp_path, n)) for n in range(3)]
    assert [one.number() for one in loaded] == [0, 1, 2]
    assert load_library(library(tmp_path, 7), ctypes.PyDLL).number() == 7


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF" + bytes(60)])
def test_what_is_no_library_is_an_error_of_the_system(content):
    with pytest.raises(OSError, match=r"."):
        load_library(content)


@pytest.fixture
def public():
    """A folder such as /tmp, of which both users have the way."""
    folder = Path(f"/tmp/descend-public-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_folder_that_another_user_made_first_is_refused(public):
    assert status_of(as_user(ATTACKER, lambda: (public / "cache" / "kernels").mkdir(parents=True))) == 0
    (public / "cache" / "kernels").chmod(0o777)
    with pytest.raises(PermissionError, match="another user"):
        PrivateFolder(public / "cache" / "kernels")
    shutil.chown(public / "cache" / "kernels", 0)  # even where the last one is this user's
    with pytest.raises(PermissionError, match="another user"):
        PrivateFolder(public / "cache" / "kernels")


def exchange_links(public: Path) -> None:
    """Let `cache` be a link to the victim's folder and to one's own in turn, as fast as that can be done."""
    (public / "evil" / "kernels").mkdir(parents=True)
    content = b"evil"
    (public / "evil" / "kernels" / "one").write_bytes(content + hashlib.sha256(content).digest())
    targets = {"good": public / "own", "bad": public / "evil"}
    for name, target in targets.items():
        (public / name).symlink_to(target)
    (public / "ready").touch()
    while True:
        for name, target in targets.items():
            (public / name).rename(public / "cache")
            (public / name).symlink_to(target)


def look_for_foreign_files(public: Path, seconds: float) -> None:
    until, found = time.monotonic() + seconds, set[bytes | None]()
    PrivateFolder(public / "own" / "kernels").write("one", b"own")
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            folder = PrivateFolder(public / "cache" / "kernels", make=False)
            found.add(folder.read("one"))
            folder.close()
    assert b"evil" not in found


@needs_root
@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("inside", ["", "parent"])
def test_links_that_another_user_exchanges_never_lead_to_their_files(public, inside):
    """In a folder such as /tmp, and in one of the attacker's own."""
    place = public / inside
    place.mkdir(exist_ok=True)
    if inside:
        shutil.chown(place, ATTACKER, ATTACKER)
        place.chmod(0o777)
    attack = as_user(ATTACKER, lambda: exchange_links(place))
    try:
        while not (place / "ready").exists():
            time.sleep(0.05)
        (place / "own").mkdir()
        shutil.chown(place / "own", VICTIM, VICTIM)
        if not inside:
            assert status_of(as_user(VICTIM, lambda: look_for_foreign_files(place, 4.0))) == 0
        else:
            assert status_of(as_user(VICTIM, lambda: refuses(place))) == 0
        assert os.waitpid(attack, os.WNOHANG) == (0, 0)
    finally:
        os.kill(attack, signal.SIGKILL)
        os.waitpid(attack, 0)


def refuses(place: Path) -> None:
    for _ in range(1000):
        with pytest.raises(OSError, match=r"."):
            PrivateFolder(place / "cache" / "kernels", make=False)
