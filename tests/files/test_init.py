"""Names in files' names; and pipes, sockets and devices in the place of files, which are refused and not waited for."""

import contextlib
import functools
import os
import resource
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import pytest
import torch
from other_users import VICTIM, as_user, needs_root, status_of

import descend
from descend.errors import DescendError, TextError
from descend.files import (
    bounded_lines,
    bounded_text,
    escape,
    has_file,
    has_folder,
    no_directory,
    regular_file,
    unescape,
)
from descend.runtime import good_checkpoints
from descend.study.comparing import read_directory
from descend.study.design import read_study
from descend.study.suite import is_suite
from tests.fuzz import fuzz_records


class Waited(BaseException):
    """No handler of `Exception` keeps it."""


@contextlib.contextmanager
def within(seconds):
    """Fails where something waits, as a reader of a pipe without a writer does, or reads without an end."""

    def end(number, frame):
        raise Waited

    before = signal.signal(signal.SIGALRM, end)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**31, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["a", "../x", "a/b", "..", ".", "__metadata__", "a%2Fb", "\n", "é"])
def test_names_are_parts_of_files_names_and_come_back(name):
    assert "/" not in escape(name)
    assert escape(name) not in ("..", ".", "__metadata__")
    assert unescape(escape(name)) == name


def test_what_is_no_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets have at most 107 characters
    Path("file").write_text("x")
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    assert regular_file(Path("file")).read_text() == "x"
    for name, kind in (("pipe", "pipe"), ("link", "pipe"), ("socket", "a socket"), ("/dev/zero", "a device")):
        with pytest.raises(OSError, match=f"it is .*{kind}, and a file was expected"):
            regular_file(Path(name))
    with pytest.raises(FileNotFoundError):
        regular_file(Path("nothing"))


X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def fit(run_dir, epochs, **more):
    torch.manual_seed(0)
    return descend.fit(
        torch.nn.Linear(3, 1),
        "mse",
        (X, X.sum(1, keepdim=True)),
        optimizer=functools.partial(descend.optim.Adam, lr=0.01),
        batch_size=4,
        stop=descend.Epochs(epochs),
        run_dir=run_dir,
        callbacks=[descend.Checkpoint(every_epochs=1)],
        verbose=False,
        **more,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run") / "r"
    fit(run_dir, 2)
    return run_dir


OF_A_RUN = [
    "run.json",
    "metrics.jsonl",
    "checkpoints.json",
    "log.txt",
    "owner.json",
    "checkpoints/step-4/manifest.json",
]
OF_A_RUN += [f"checkpoints/step-4/{name}" for name in ("weights.safetensors", "training/state.json")]
OF_A_RUN += ["checkpoints/step-4/training/optimizer.safetensors"]


@pytest.mark.parametrize("what", ["a pipe", "a device"])
@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.filterwarnings("ignore")
def test_no_file_of_a_run_that_is_a_pipe_is_waited_for(finished, tmp_path, name, what):
    run_dir = tmp_path / "r"
    shutil.copytree(finished, run_dir)
    place = run_dir / name
    place.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    for use in (
        lambda: good_checkpoints(run_dir / "checkpoints"),
        lambda: descend.load_weights(torch.nn.Linear(3, 1), run_dir, which="last"),
        lambda: fit(run_dir, 3, resume=True),
    ):
        with within(10), contextlib.suppress(DescendError):
            use()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.json", "records"])
@pytest.mark.filterwarnings("ignore")
def test_no_file_of_a_study_that_is_a_pipe_is_waited_for(tmp_path, name):
    shutil.copytree(fuzz_records._base(), tmp_path / "s")
    directory = tmp_path / "s"
    found = [path for path in directory.rglob("*") if path.is_file() and name in str(path.relative_to(directory))]
    assert found
    for place in found:
        place.unlink()
        os.mkfifo(place)
    with within(10), contextlib.suppress(DescendError):
        read_directory(tmp_path / "s")


def test_a_study_file_and_a_prototext_that_are_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "p")
    with within(5):
        with pytest.raises(descend.ConfigurationError, match=r"cannot read .*named pipe"):
            read_study(tmp_path / "p")
        assert not is_suite(tmp_path / "p")
        with pytest.raises(TextError, match="named pipe"):
            descend.load(tmp_path / "p")


def test_a_text_without_an_end_is_refused_by_its_size(monkeypatch):
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "1000")
    with within(5), pytest.raises(TextError, match="more than the limit of 1,000"):
        descend.load("/dev/zero")


def sparse(path, beginning=b""):
    """Make a file of 2 GB that takes no place on the disk."""
    with path.open("wb") as file:
        file.write(beginning)
        file.truncate(2 * 10**9)


def test_a_file_larger_than_any_of_ours_is_not_read_into_memory(tmp_path):
    sparse(tmp_path / "a", b"{}\n")
    with within(20), pytest.raises(OSError, match="more than 64,000,000 bytes"):
        bounded_text(tmp_path / "a")
    with within(20):
        assert [len(line) for line in bounded_lines(tmp_path / "a")] == [3, 16_000_000]
        assert [len(line) for line in bounded_lines(tmp_path / "a", begin=2 * 10**9 - 5)] == [5]


def test_whole_lines_come_with_their_ends(tmp_path):
    (tmp_path / "a").write_bytes(b"ab\n\ncd")
    assert [*bounded_lines(tmp_path / "a")] == [b"ab\n", b"\n", b"cd"]
    assert [*bounded_lines(tmp_path / "a", begin=3)] == [b"\n", b"cd"]
    assert [*bounded_lines(tmp_path / "a", at_most=1)] == [b"a", b"\n", b"c"]


@needs_root
def test_what_may_not_be_seen_is_not_there():
    with tempfile.TemporaryDirectory() as place:  # under which others may look, unlike pytest's
        Path(place).chmod(0o755)
        hidden = Path(place, "hidden", "a")
        hidden.parent.mkdir(mode=0o700)
        hidden.touch()

        def look():
            with pytest.raises(PermissionError):
                hidden.is_file()
            assert not has_file(hidden)
            assert not has_folder(hidden)
            assert has_folder(Path(place))
            assert no_directory(hidden) == "this user may not look there"

        assert status_of(as_user(VICTIM, look)) == 0
